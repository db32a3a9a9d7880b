"""A few hundred numbers with the moments of a logit vector over the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity.full_vocab._sample import sampled_tokens
from lens_diversity.full_vocab.basis import VocabularyBasis
from lens_diversity.full_vocab.targets import ResidualTarget
from lens_diversity.readout import Readout

# Below this share of a row's own variance, what a Cholesky pivot still holds is mostly rounding.
_SMALLEST_PIVOT = 1e-10
# More of them save less of the product than their own number costs.
_AXIS_BLOCKS = 4


class CompactVocabulary:
    """Pseudo-tokens over which logits have the mean and the covariances of the vocabulary.

    With the basis ``B`` [basis, V] (rows of ``W_U``, and ``b_U``), its mean ``w`` over the
    vocabulary and the centred Gram matrix ``(B - w)(B - w)^T = R^T R``, a logit vector ``y B`` has
    the whitened coordinates ``(R y, 0, sqrt(V) w.y)``: lengths and angles are those over the
    vocabulary (the last coordinate is its direction of ones, the one before it is for what a
    target has outside the span of ``B``). A reflection turns the last axis into the direction of
    ones of the ``n = rank + 2`` coordinates, and ``sqrt(n / V)`` rescales, so that *means over the
    n coordinates* of logits, of their squares and of their products equal means over the V tokens.
    Every function that takes logits and forms only such means (squared error, diversity, pairs,
    junctions, Brown's terms, the centred gauge) therefore takes these coordinates unchanged.

    (A factored Gram matrix instead of the outputs: Vincent et al. 2015, arXiv 1412.7091. The factor
    is applied before differences are squared, which keeps the digits that a quadratic form in
    float32 loses.)
    """

    def __init__(self, basis: VocabularyBasis) -> None:
        self.d_vocab = basis.d_vocab
        self._mean = basis.mean()
        gram = torch.zeros(basis.size, basis.size, dtype=torch.float64, device=self._mean.device)
        for _, columns in basis.wide_chunks():
            centred = columns - self._mean.unsqueeze(1)
            gram.addmm_(centred, centred.T)
        self._factor, self._dual = factored(gram)
        self._tokens: dict[torch.dtype, Tensor] = {}
        self._axes: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
        self._cross: WeakKeyDictionary[CompactVocabulary, Tensor] = WeakKeyDictionary()

    @property
    def n_tokens(self) -> int:
        """Number of pseudo-tokens: the rank of the centred basis, plus two."""
        return int(self._factor.shape[0]) + 2

    @torch.inference_mode(False)
    @torch.no_grad()
    def tokens(self, like: Tensor) -> Float[Tensor, "basis pseudo"]:
        """The basis at the pseudo-tokens, in the dtype and place of ``like``."""
        if like.dtype not in self._tokens:
            outside = torch.zeros_like(self._mean)
            tokens = self._over_pseudo_tokens(self._factor.T, outside, self._mean)
            self._tokens[like.dtype] = tokens.to(like.dtype)
        return self._tokens[like.dtype].to(like.device)

    @torch.inference_mode(False)
    @torch.no_grad()
    def axes(self, like: Tensor) -> list[tuple[int, Float[Tensor, "row axis"]]]:
        """The basis on the whitened axes themselves, in blocks without their leading zero rows.

        A Cholesky factor is triangular, so a few blocks hold little more than half of it. The last
        block is the direction of ones, which members in the centred gauge have nothing in.

        Returns:
            For each block, the first row of the basis that is not zero in it, and its rows.
        """
        if like.dtype not in self._axes:
            inside = [
                _below_zeros(block)
                for block in self._factor.T.to(like.dtype).tensor_split(_AXIS_BLOCKS, 1)
            ]
            ones = self.d_vocab**0.5 * self._mean.to(like.dtype)
            self._axes[like.dtype] = [*inside, (0, ones.unsqueeze(1))]
        return [(first, block.to(like.device)) for first, block in self._axes[like.dtype]]

    def on_axes(self, target: Float[Tensor, "row pseudo"]) -> Float[Tensor, "row axis"]:
        """A target over the pseudo-tokens on the axes of `axes`, and last the one outside them."""
        whitened = self._reflected(target) * (self.d_vocab / self.n_tokens) ** 0.5
        inside, outside, ones = whitened.tensor_split((self.n_tokens - 2, self.n_tokens - 1), -1)
        return torch.cat([inside, ones, outside], -1)

    @torch.no_grad()
    def target(
        self, basis: VocabularyBasis, targets: Tensor | ResidualTarget
    ) -> Float[Tensor, "row pseudo"]:
        """Integer labels, dense vectors or residuals as targets over the pseudo-tokens."""
        if isinstance(targets, ResidualTarget):
            return self._of_residual(basis, targets)
        if targets.is_floating_point():
            return self._of_dense(basis, targets)
        return self._of_labels(basis, targets)

    def _of_labels(
        self, basis: VocabularyBasis, labels: Int[Tensor, " row"]
    ) -> Float[Tensor, "row pseudo"]:
        """One-hot targets, from the labels' columns of the unembedding."""
        columns = basis.columns(labels, like=self._mean)
        inside = (columns - self._mean.unsqueeze(1)).T @ self._dual.T
        mean = torch.full_like(inside.sum(1), 1 / self.d_vocab)
        return self._target(inside, 1 - mean, mean)

    def _of_dense(
        self, basis: VocabularyBasis, target: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row pseudo"]:
        """Targets that are given over the vocabulary."""
        mean = target.mean(1, dtype=torch.float64).to(self._mean.device)
        products = torch.zeros(
            len(target), len(self._mean), dtype=torch.float64, device=self._mean.device
        )
        square = torch.zeros_like(mean)
        for tokens, columns in basis.wide_chunks():
            # With the target centred, the mean of the columns drops out of the products.
            centred = target[:, tokens].to(products) - mean.unsqueeze(1)
            products.addmm_(centred, columns.T)
            square += centred.square().sum(1)
        return self._target(products @ self._dual.T, square, mean)

    def _of_residual(
        self, basis: VocabularyBasis, target: ResidualTarget
    ) -> Float[Tensor, "row pseudo"]:
        """Targets that are the logits of another residual stream."""
        other_basis = VocabularyBasis.of(target.readout)
        other = compact_vocabulary(other_basis)
        stream = target.scale * target.stream.to(device=self._mean.device, dtype=torch.float64)
        vectors = other_basis.widen(stream, target.scale)
        mean = vectors @ other._mean.to(vectors.device)
        whole = vectors @ other._factor.to(vectors.device).T
        if other is self:
            return self._over_pseudo_tokens(whole, torch.zeros_like(mean), mean)
        if other not in self._cross:
            self._cross[other] = self._dual @ self._cross_gram(basis, other_basis)
        return self._target(vectors @ self._cross[other].T, whole.square().sum(-1), mean)

    def _cross_gram(
        self, basis: VocabularyBasis, other: VocabularyBasis
    ) -> Float[Tensor, "basis other_basis"]:
        device = self._mean.device
        gram = torch.zeros(basis.size, other.size, dtype=torch.float64, device=device)
        pairs = zip(basis.wide_chunks(other.size), other.wide_chunks(basis.size), strict=True)
        for (_, columns), (_, theirs) in pairs:
            gram.addmm_(columns - self._mean.unsqueeze(1), theirs.T.to(device))
        return gram

    def _target(
        self, inside: Float[Tensor, "row rank"], square: Tensor, mean: Tensor
    ) -> Float[Tensor, "row pseudo"]:
        outside = (square - inside.square().sum(-1)).clamp_min(0).sqrt()
        return self._over_pseudo_tokens(inside, outside, mean)

    def _over_pseudo_tokens(
        self, inside: Float[Tensor, "row rank"], outside: Tensor, mean: Tensor
    ) -> Float[Tensor, "row pseudo"]:
        """Reflect the last axis, of the vocabulary's ones, into that of the pseudo-tokens' ones."""
        ones = self.d_vocab**0.5 * mean
        whitened = torch.cat([inside, torch.stack([outside, ones], -1)], -1)
        scale: float = (self.n_tokens / self.d_vocab) ** 0.5
        return scale * self._reflected(whitened)

    def _reflected(self, vectors: Float[Tensor, "row pseudo"]) -> Float[Tensor, "row pseudo"]:
        count = self.n_tokens
        mirror = torch.full_like(vectors[0], -(count**-0.5))
        mirror[-1] += 1
        along = vectors @ mirror / (1 - count**-0.5)
        reflected: Tensor = vectors - along.unsqueeze(-1) * mirror
        return reflected


def factored(
    gram: Float[Tensor, "basis basis"],
) -> tuple[Float[Tensor, "rank basis"], Float[Tensor, "rank basis"]]:
    """``R`` with ``R^T R = gram``, and its dual ``R^-T`` (pseudo-inverse where rank-deficient).

    Rows are scaled to unit length first, so that neither a small bias nor an outlier dimension
    passes for a rank deficiency. Cholesky where the pivots allow it; otherwise eigenvectors, those
    of eigenvalues within rounding of zero left out.
    """
    lengths = gram.diagonal().sqrt()
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    scaled = gram / lengths / lengths.unsqueeze(1)
    lower, failed = torch.linalg.cholesky_ex(scaled)
    if not bool(failed) and bool((lower.diagonal().square() > _SMALLEST_PIVOT).all()):
        identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        dual = torch.linalg.solve_triangular(lower, identity, upper=False)
        return lower.T * lengths, dual / lengths
    values, vectors = torch.linalg.eigh(scaled)
    kept = values > len(gram) * torch.finfo(gram.dtype).eps * values[-1]
    roots, rows = values[kept].sqrt().unsqueeze(1), vectors[:, kept].T
    return roots * rows * lengths, rows / roots / lengths


def _below_zeros(block: Float[Tensor, "basis axis"]) -> tuple[int, Float[Tensor, "row axis"]]:
    rows = (block != 0).any(1).nonzero()
    first = int(rows[0]) if len(rows) else 0
    return first, block[first:].clone()


@dataclass(frozen=True, eq=False)
class _Cached:
    """A compact vocabulary with what tells whether the weights it was made from are the same."""

    vocabulary: CompactVocabulary
    layout: tuple[object, ...]
    sample: Tensor
    bias: Tensor

    @classmethod
    def make(cls, basis: VocabularyBasis) -> _Cached:
        return cls(CompactVocabulary(basis), *_fingerprint(basis.readout))

    def fits(self, readout: Readout) -> bool:
        layout, sample, bias = _fingerprint(readout)
        return (
            self.layout == layout
            and torch.equal(self.sample, sample)
            and torch.equal(self.bias, bias)
        )


# By the memory that holds W_U, which lives as long as the model: a readout is made for each stack.
_CACHE: WeakKeyDictionary[torch.UntypedStorage, _Cached] = WeakKeyDictionary()


@torch.inference_mode(False)
@torch.no_grad()
def compact_vocabulary(basis: VocabularyBasis) -> CompactVocabulary:
    """The compact form of a basis, made once per unembedding and again when its weights change.

    A change through ``.data`` or under ``torch.inference_mode`` that touches neither the sampled
    columns nor ``b_U`` is not seen: call `clear_cache` after one.
    """
    storage = basis.readout.W_U.untyped_storage()
    found = _CACHE.get(storage)
    if found is None or not found.fits(basis.readout):
        found = _CACHE[storage] = _Cached.make(basis)
    return found.vocabulary


def _fingerprint(readout: Readout) -> tuple[tuple[object, ...], Tensor, Tensor]:
    """Layout and autograd version of ``W_U``, and copies of some columns and of ``b_U``.

    In-place changes raise the version, except inside ``torch.inference_mode`` and through
    ``.data``; a training step or a merged adapter then still changes the sampled columns.
    """
    W_U = readout.W_U
    version = None if W_U.is_inference() else W_U._version
    layout = (W_U.data_ptr(), W_U.shape, W_U.stride(), W_U.dtype, W_U.device, version)
    return layout, W_U[:, sampled_tokens(readout)].clone(), readout.b_U.clone()


def clear_cache() -> None:
    """Forget every compact vocabulary, after unembeddings were edited through ``.data``.

    Ordinary in-place changes are noticed. One through ``.data`` or under ``torch.inference_mode``
    leaves no trace in PyTorch and is noticed only where it touches a sample of the columns.

    Example:
        >>> clear_cache()
    """
    _CACHE.clear()
