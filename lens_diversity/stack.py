"""Everything that was written to a residual stream, with its names and the readout that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lens_diversity import _bridge
from lens_diversity.readout import Readout


@dataclass(frozen=True, eq=False)
class FinalStream:
    """What the model itself computed from the sum of the components, row by row."""

    scale: Float[Tensor, "*batch 1"]
    """The final norm's denominator (ones without a norm)."""
    residual: Float[Tensor, "*batch d_model"] | None = None
    """The stream that the final norm read, where the cache holds it."""
    normalised: Float[Tensor, "*batch d_model"] | None = None
    """The stream that the unembedding read, where the cache holds it."""
    logits: Float[Tensor, "*batch d_vocab"] | None = None
    """The unembedding's output (before logit scale and soft cap), where the cache holds it."""

    def map(self, function: Callable[[Tensor], Tensor]) -> FinalStream:
        """Apply one function to every recorded tensor."""
        parts = {name: getattr(self, name) for name in ("residual", "normalised", "logits")}
        return FinalStream(
            function(self.scale),
            **{name: None if part is None else function(part) for name, part in parts.items()},
        )


@dataclass(frozen=True, eq=False)
class ComponentStack:
    """The components of a residual stream with their names and the readout that fits them.

    Example:
        >>> import torch
        >>> readout = Readout(W_U=torch.eye(2), b_U=torch.zeros(2))
        >>> ComponentStack.from_values(torch.ones(3, 4, 2), readout)
        ComponentStack(3 components x batch 4 x d_model 2: 3 other)
    """

    values: Float[Tensor, "component *batch d_model"]
    """What each component added to the stream, in the model's dtype."""
    labels: list[str]
    """Component names as TransformerLens' ``decompose_resid`` gives them."""
    modules: list[str]
    """Kind of each component: ``embed``, ``attn`` or ``mlp``."""
    axes: tuple[str, ...]
    """Names of the axes between component and d_model: ``batch`` and/or ``pos``."""
    stream: FinalStream
    """The model's own record of the sum, for the norm's statistics and the checks."""
    readout: Readout
    """The affine map from residual vectors to logits."""

    @classmethod
    def from_values(
        cls,
        values: Tensor,
        readout: Readout,
        labels: Sequence[str] | None = None,
        modules: Sequence[str] | None = None,
    ) -> ComponentStack:
        """Stack residual vectors that come from elsewhere than a cache.

        Args:
            values: The vectors ``[component, (batch, (pos,)) d_model]``; the norm's statistics
                are those of their sum.
            readout: Final norm and unembedding.
            labels: Names (default ``"0"``, ``"1"``, ...).
            modules: Kinds (default ``"other"``).

        Returns:
            A stack whose stream is the sum of ``values``.

        Raises:
            TypeError: If ``values`` is no floating-point tensor.
            ValueError: If it has another number of axes or width than the readout takes, a NaN or
                infinite number, or another number of components than labels or modules.
        """
        _require_vectors(values, int(readout.W_U.shape[0]))
        count = values.shape[0]
        names = [str(i) for i in range(count)] if labels is None else list(labels)
        kinds = ["other"] * count if modules is None else list(modules)
        if len(names) != count or len(kinds) != count:
            raise ValueError(
                f"{len(names)} labels and {len(kinds)} modules for {count} components; give one "
                "of each to every component"
            )
        require_finite(values, names)
        return cls(
            values=values,
            labels=names,
            modules=kinds,
            axes=("batch", "pos")[: values.ndim - 2],
            stream=FinalStream(scale=readout.statistic(widened(values).sum(0))),
            readout=readout,
        )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Sizes of ``axes``."""
        return tuple(self.values.shape[1:-1])

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the components."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Where the components are."""
        return self.values.device

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient with respect to any component is wanted."""
        return self.values.requires_grad

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def total(self, dtype: torch.dtype) -> Float[Tensor, "*batch d_model"]:
        """The sum of all components."""
        return self.values.to(dtype).sum(0)

    def linear_logits(
        self, ids: Int[Tensor, " vocab"] | None, dtype: torch.dtype
    ) -> Float[Tensor, "component *batch vocab"]:
        """Every component's ``u_i`` without the constant."""
        normalised = self.readout.normalise(self.values.to(dtype), self.stream.scale.to(dtype))
        return self.readout.project(normalised, ids)

    def __repr__(self) -> str:
        sizes = [
            f"{axis} {size}" for axis, size in zip(self.axes, self.batch_shape, strict=True)
        ] + [f"d_model {self.values.shape[-1]}"]
        counts = {module: self.modules.count(module) for module in self.modules}
        kinds = ", ".join(f"{count} {module}" for module, count in counts.items())
        return f"ComponentStack({len(self)} components x {' x '.join(sizes)}: {kinds})"

    def to(self, device: torch.device | str) -> ComponentStack:
        """Move the activations (not the model's weights) to a device."""
        return replace(
            self,
            values=self.values.to(device),
            stream=self.stream.map(lambda tensor: tensor.to(device)),
        )

    def rows(self) -> ComponentStack:
        """The same stack with all batch axes flattened into one."""
        count = len(self)
        return replace(
            self,
            values=self.values.reshape(count, -1, self.values.shape[-1]),
            axes=("batch",),
            stream=self.stream.map(lambda tensor: tensor.reshape(-1, tensor.shape[-1])),
        )

    def select_rows(self, rows: slice) -> ComponentStack:
        """Part of a stack along its first batch axis."""
        return replace(
            self,
            values=self.values[:, rows],
            stream=self.stream.map(lambda tensor: tensor[rows]),
        )

    def with_remainder(self) -> ComponentStack:
        """Append what the stream holds and no component wrote, as one more member.

        The remainder is the rounding of the model's own additions (about 1% of the stream in
        bfloat16) or an edit of the stream itself by a hook. With it the components sum exactly.

        Returns:
            A stack with a last component ``remainder`` of module ``remainder``, in float32 at
            least.

        Raises:
            ValueError: If the cache did not hold the final stream (``ln_final.hook_in``), or the
                stack has its remainder already.
        """
        values = widened(self.values)
        remainder = self.remainder_of(values.sum(0))
        return replace(
            self,
            values=torch.cat([values, remainder.unsqueeze(0)]),
            labels=[*self.labels, "remainder"],
            modules=[*self.modules, "remainder"],
        )

    def remainder_of(
        self, total: Float[Tensor, "*batch d_model"]
    ) -> Float[Tensor, "*batch d_model"]:
        """What the stream holds beside a sum of components.

        Raises:
            ValueError: If the stream is unknown, or the remainder is a component already.
        """
        if "remainder" in self.modules:
            raise ValueError("the stack has its remainder already")
        residual = self.stream.residual
        if residual is None:
            raise ValueError(
                f"the cache holds no {_bridge.FINAL_NORM_INPUT}, so the remainder is unknown; run "
                "the model with names_filter=lens_diversity.names_filter"
            )
        return residual.to(total.dtype) - total


def widened(values: Tensor) -> Tensor:
    """float32 at least, in which sums over many components keep their digits."""
    return values if values.dtype == torch.float64 else values.float()


def _require_vectors(values: Tensor, d_model: int) -> None:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"values must be a floating-point tensor, got {found}")
    if not 2 <= values.ndim <= 4 or len(values) == 0 or values.shape[-1] != d_model:
        raise ValueError(
            f"values must be [component, (batch, (pos,)) d_model={d_model}] with at least one "
            f"component, got shape {tuple(values.shape)}"
        )


def require_finite(values: Float[Tensor, "component *batch d_model"], labels: list[str]) -> None:
    """Name the components that hold NaN or infinite numbers.

    Raises:
        ValueError: If there are any.
    """
    # One reading of the values; what overflows only in the sum is looked at again.
    if bool(values.sum().isfinite()):
        return
    finite = values.isfinite()
    if bool(finite.all()):
        return
    bad = ~finite.reshape(len(finite), -1).all(1)
    names = [label for label, is_bad in zip(labels, bad.tolist(), strict=True) if is_bad]
    rows = (~finite.all(-1).all(0)).sum()
    raise ValueError(
        f"NaN or infinite activations in {len(names)} components (first: {names[0]}), in "
        f"{int(rows)} of {finite[0, ..., 0].numel()} rows. Look for overflow in float16 (use "
        "bfloat16 or float32) or a hook that divides by zero."
    )
