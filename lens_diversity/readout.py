"""The logit lens as a linear map: from what a component wrote to its exact share of the logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from lens_diversity.neurons import Stack

P = ParamSpec("P")
R = TypeVar("R")
Vocab = Sequence[int] | Tensor | None

CONSTANTS = ("spread", "component", "drop")

# Relative error of the summed components against the model. float32 families measured here stay
# below 3e-6, and bfloat16 rounds the stream itself by about 1% at 48 layers; a wrong readout (a
# missing norm weight, bias or logit scale) is off by 10% and more. HF norms run in float32 even
# in a float64 model.
RECONSTRUCTION_TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
}


@dataclass(frozen=True, eq=False)
class Readout:
    """The final norm at fixed statistics, the unembedding and the logit scale: an affine map.

    For a stream ``x`` with norm statistic ``s`` (the norm's denominator), ``N_x(z) = A_x z + b``
    with ``A_x z = gamma * z / s`` (LayerNorm also centres ``z``), and
    ``logits = c (A_x x + b) W_U + c b_U`` before any soft cap.
    """

    W_U: Float[Tensor, "d_model d_vocab"]
    """Unembedding, as the model holds it."""
    b_U: Float[Tensor, " d_vocab"]
    """Unembedding bias (zeros where the model has none)."""
    norm_weight: Float[Tensor, " d_model"] | None = None
    """The final norm's stored weight, or None for a norm without one."""
    norm_weight_offset: float = 0.0
    """What is added to the stored weight to give gamma (1 for Gemma)."""
    norm_bias: Float[Tensor, " d_model"] | None = None
    """The final norm's bias ``b``."""
    centred: bool = False
    """Whether the norm subtracts the mean over ``d_model`` (LayerNorm)."""
    eps: float = 0.0
    """The norm's epsilon."""
    normalised: bool = False
    """Whether there is a final norm at all."""
    logit_scale: float = 1.0
    """``c``: the linear factor on the logits (Cohere, Granite)."""
    soft_cap: float | None = None
    """The cap of ``cap * tanh(logits / cap)`` (Gemma 2); only what precedes it is decomposed."""

    @property
    def d_vocab(self) -> int:
        """Size of the vocabulary."""
        return int(self.W_U.shape[1])

    def statistic(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... 1"]:
        """The norm's denominator at a stream: ``sqrt(mean(x^2) + eps)``, centred for LayerNorm."""
        if not self.normalised:
            return torch.ones_like(stream[..., :1])
        if self.centred:
            stream = stream - stream.mean(-1, keepdim=True)
        return (stream.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    def normalise(
        self, values: Float[Tensor, "... d_model"], scale: Float[Tensor, "... 1"]
    ) -> Float[Tensor, "... d_model"]:
        """``A_x z``: the linear part of the final norm, its statistics held at ``scale``."""
        if self.centred:
            values = values - values.mean(-1, keepdim=True)
        values = values / scale
        if self.norm_weight is None:
            return values
        return values * (self.norm_weight.to(values) + self.norm_weight_offset)

    def normalise_adjoint(
        self, vectors: Float[Tensor, "... d_model"]
    ) -> Float[Tensor, "... d_model"]:
        """Transpose `normalise` at scale one: ``A z . v = z . A^T v``."""
        if self.norm_weight is not None:
            vectors = vectors * (self.norm_weight.to(vectors) + self.norm_weight_offset)
        return vectors - vectors.mean(-1, keepdim=True) if self.centred else vectors

    def norm_constant(self, like: Tensor) -> Float[Tensor, " d_model"]:
        """``b``: what the final norm adds whatever it reads, in the dtype and place of ``like``."""
        if self.norm_bias is None:
            return like.new_zeros(self.W_U.shape[0])
        return self.norm_bias.to(like)

    def project(
        self, normalised: Float[Tensor, "... d_model"], ids: Int[Tensor, " vocab"] | None
    ) -> Float[Tensor, "... vocab"]:
        """``c y W_U`` on the chosen columns."""
        return self.logit_scale * (normalised @ self._columns(ids, normalised))

    def constant(self, ids: Int[Tensor, " vocab"] | None, like: Tensor) -> Float[Tensor, " vocab"]:
        """``kappa = c (b W_U + b_U)``: the logits that no component wrote."""
        bias = self.b_U if ids is None else self.b_U[ids.to(self.b_U.device)]
        bias = self.logit_scale * bias.to(like)
        return (
            bias if self.norm_bias is None else bias + self.project(self.norm_constant(like), ids)
        )

    def _columns(self, ids: Tensor | None, like: Tensor) -> Tensor:
        if ids is None:
            if self.W_U.device != like.device:
                raise ValueError(
                    f"the components are on {like.device} and the unembedding on "
                    f"{self.W_U.device}; over the full vocabulary the unembedding is not copied "
                    "behind your back: move the stack or the model, or choose a vocab."
                )
            return self.W_U.to(like.dtype)
        return self.W_U[:, ids.to(self.W_U.device)].to(like)


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Keep matrix products in the dtype of their factors, whatever autocast the caller is in."""

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as contexts:
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    contexts.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return exact


@without_autocast
def component_logits(
    stack: Stack,
    vocab: Vocab = None,
    constant: str = "spread",
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "component *batch vocab"]:
    r"""Project every component through the logit lens: ``u_i = c (A_x z_i) W_U``, exactly.

    The final norm's statistics are those of the whole stream, so the map is linear in the
    component and ``sum_i u_i + kappa`` is the model's logits (before a soft cap), with
    ``kappa = c (b W_U + b_U)`` the part no component wrote (Kamigaito et al. 2025, Eqs. 2-3, made
    exact for norms and unembeddings with biases).

    Args:
        stack: Components of the residual stream, from
            [`component_stack`][lens_diversity.component_stack].
        vocab: Distinct token ids to read out, or None for the whole vocabulary (a tensor of
            ``component x batch x d_vocab`` numbers: `decompose` never builds it).
        constant: What becomes of ``kappa``: ``"spread"`` gives every member ``kappa / L``, so that
            the members sum to the logits; ``"component"`` appends it as one more member;
            ``"drop"`` leaves it out.
        dtype: ``torch.float32`` (default) or ``torch.float64``; half-precision components are
            read out in float32 at least.

    Returns:
        Logits ``[component, batch(, pos), vocab]``, on the stack's device.

    Raises:
        TypeError: If ``dtype`` or the ids have a wrong type.
        ValueError: If ``vocab`` is empty, repeats an id or leaves the vocabulary; if ``constant``
            is unknown; or if the components do not sum to what the model computed.

    Example:
        >>> import torch
        >>> from lens_diversity.stack import ComponentStack
        >>> from lens_diversity.readout import Readout
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.tensor([0.0, 1.0]))
        >>> stack = ComponentStack.from_values(torch.tensor([[[1., 0.]], [[0., 2.]]]), readout)
        >>> component_logits(stack).sum(0)
        tensor([[1., 3.]])
    """
    if constant not in CONSTANTS:
        raise ValueError(f"constant must be one of {CONSTANTS}, got {constant!r}")
    ids = check_vocab(vocab, stack.readout.d_vocab)
    logits, kappa = linear_logits(stack, ids, dtype)
    check_reconstruction(stack, logits.sum(0) + kappa, ids)
    return place_constant(logits, kappa, constant)


def linear_logits(
    stack: Stack, ids: Int[Tensor, " vocab"] | None, dtype: torch.dtype | None = None
) -> tuple[Float[Tensor, "component *batch vocab"], Float[Tensor, " vocab"]]:
    """Every component's ``u_i`` without the constant, and the constant ``kappa``."""
    compute = readout_dtype(stack.dtype, dtype)
    like = torch.empty(0, dtype=compute, device=stack.device)
    return stack.linear_logits(ids, compute), stack.readout.constant(ids, like)


def place_constant(
    logits: Float[Tensor, "component *batch vocab"],
    kappa: Float[Tensor, " vocab"],
    constant: str,
) -> Float[Tensor, "member *batch vocab"]:
    """Give ``kappa`` its place among the members."""
    if constant == "drop":
        return logits
    if constant == "spread":
        return logits + kappa / logits.shape[0]
    return torch.cat([logits, kappa.expand_as(logits[:1])])


def readout_dtype(stored: torch.dtype, requested: torch.dtype | None) -> torch.dtype:
    """float32 at least: half-precision sums would lose what the decomposition is about."""
    if requested is None:
        return torch.float64 if stored == torch.float64 else torch.float32
    if requested not in (torch.float32, torch.float64):
        raise TypeError(f"dtype must be torch.float32 or torch.float64, got {requested}")
    return requested


def check_vocab(vocab: Vocab, d_vocab: int) -> Int[Tensor, " vocab"] | None:
    """Validate chosen token ids; None stands for the whole vocabulary."""
    if vocab is None:
        return None
    ids = torch.as_tensor(vocab)
    if ids.numel() == 0:
        raise ValueError("vocab is empty; give at least one token id, or None for all tokens")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"vocab must hold integer token ids, got dtype {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"vocab must be one list of token ids, got shape {tuple(ids.shape)}")
    ids = ids.long()
    outside = ids[(ids < 0) | (ids >= d_vocab)].tolist()
    if outside:
        raise ValueError(f"token ids {outside[:5]} are outside the vocabulary [0, {d_vocab})")
    repeated = [token for token, count in Counter(ids.tolist()).items() if count > 1]
    if repeated:
        raise ValueError(
            f"vocab repeats the token ids {repeated[:5]}; every token counts once in a mean over "
            "the vocabulary"
        )
    return ids


@dataclass(frozen=True)
class Reconstruction:
    """How closely the summed components give back what the model computed."""

    error: float
    """Largest error over rows and over all that the cache holds of the model's own readout."""
    reference: str
    """What the largest error is of: ``"logits"`` (relative to the row's logit range),
    ``"normalised stream"``, ``"residual stream"`` or ``"norm statistic"`` (relative norms), or
    ``"nothing"`` where the cache holds none of them."""


def check_reconstruction(
    stack: Stack,
    total: Float[Tensor, "*batch vocab"],
    ids: Int[Tensor, " vocab"] | None,
) -> Reconstruction:
    """Compare ``sum_i u_i + kappa`` with the best record of the model's own computation.

    Raises:
        ValueError: If the error exceeds the tolerance of the model's dtype.
    """
    with torch.no_grad():
        found = _reconstruction(stack, total, ids)
    # A stack with its remainder is wider than the model whose logits it is compared with.
    tolerance = max(RECONSTRUCTION_TOLERANCE[t.dtype] for t in (stack, stack.readout.W_U))
    if not found.error <= tolerance:
        raise ValueError(
            f"the components do not add up: their sum misses the model's {found.reference} by "
            f"{found.error:.3g} (relative; tolerance {tolerance:g} for {stack.dtype}). "
            "Likely causes: a hook that edits the residual stream itself (hook_resid_*) instead "
            "of a component; a cache mixed from different runs, or weights changed since; blocks "
            "that run several times (use looped_component_stack); a model that transforms the "
            "stream in a way its hooks do not show. Keep the missing part as "
            "a member with stack.with_remainder(), or run `lens-diversity verify MODEL`."
        )
    return found


def _reconstruction(
    stack: Stack, total: Float[Tensor, "*batch vocab"], ids: Tensor | None
) -> Reconstruction:
    stream, readout = stack.stream, stack.readout
    x = stack.total(total.dtype)
    scale = stream.scale.to(total.dtype)
    found = [Reconstruction(0.0, "nothing")]
    if stream.logits is not None:
        own = stream.logits
        spread = readout.logit_scale * (own.amax(-1) - own.amin(-1)).to(total)
        chosen = own if ids is None else own[..., ids.to(own.device)]
        misses = (total - readout.logit_scale * chosen.to(total)).abs().amax(-1)
        found.append(Reconstruction(_worst_ratio(misses, spread), "logits"))
    # Also beside the logits, whose range a hook that bans a token makes infinite.
    if stream.normalised is not None:
        ours = readout.normalise(x, scale) + readout.norm_constant(x)
        found.append(Reconstruction(_relative_miss(ours, stream.normalised), "normalised stream"))
    elif stream.residual is not None:
        found.append(Reconstruction(_relative_miss(x, stream.residual), "residual stream"))
    elif readout.normalised and stream.logits is None:
        misses = (readout.statistic(x) - scale).abs()
        found.append(Reconstruction(_worst_ratio(misses, scale), "norm statistic"))
    return max(found[1:] or found, key=lambda check: _or_infinite(check.error))


def _or_infinite(error: float) -> float:
    """NaN compares with nothing, but is the worst of errors."""
    return math.inf if math.isnan(error) else error


def _relative_miss(ours: Tensor, own: Tensor) -> float:
    own = own.to(ours)
    return _worst_ratio((ours - own).norm(dim=-1), own.norm(dim=-1))


def _worst_ratio(misses: Tensor, size: Tensor) -> float:
    tiny = torch.finfo(misses.dtype).tiny
    return float((misses / size.clamp_min(tiny)).max())
