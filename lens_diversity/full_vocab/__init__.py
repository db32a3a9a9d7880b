"""The whole vocabulary without its logits: moments for squared losses, streams for softmax."""

from lens_diversity.full_vocab.coordinates import whitened_logits, whitened_target
from lens_diversity.full_vocab.gram import clear_cache
from lens_diversity.full_vocab.members import MemberReadout, member_readout
from lens_diversity.full_vocab.targets import ResidualTarget

__all__ = [
    "MemberReadout",
    "ResidualTarget",
    "clear_cache",
    "member_readout",
    "whitened_logits",
    "whitened_target",
]
