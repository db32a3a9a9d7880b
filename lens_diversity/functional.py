"""Ambiguity decompositions of any ensemble, as pure and differentiable tensor functions.

``members`` is ``[component, batch..., vocab]`` everywhere: logits of a model's components, or of
independent models, seeds or checkpoints.

Example:
    >>> import torch
    >>> members = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> terms = cross_entropy_ambiguity(members, torch.tensor(0))
    >>> bool(torch.isclose(terms.error, terms.bias - terms.diversity))
    True
"""

from lens_diversity.decomposition._members import combine_members
from lens_diversity.decomposition.brown import BrownTerms, brown_covariance
from lens_diversity.decomposition.junctions import junctions
from lens_diversity.decomposition.leave_one_out import leave_one_out
from lens_diversity.decomposition.modules import module_split
from lens_diversity.decomposition.nested import nested_diversity
from lens_diversity.decomposition.pairwise import pairwise_diversity
from lens_diversity.decomposition.probability import (
    bias_diversity,
    brier_ambiguity,
    cross_entropy_ambiguity,
)
from lens_diversity.decomposition.squared import krogh_vedelsby
from lens_diversity.decomposition.terms import AmbiguityTerms, JunctionTerms

__all__ = [
    "AmbiguityTerms",
    "BrownTerms",
    "JunctionTerms",
    "bias_diversity",
    "brier_ambiguity",
    "brown_covariance",
    "combine_members",
    "cross_entropy_ambiguity",
    "junctions",
    "krogh_vedelsby",
    "leave_one_out",
    "module_split",
    "nested_diversity",
    "pairwise_diversity",
]
