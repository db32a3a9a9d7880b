"""Documents cut into windows that a model can read, with every token predicted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """Consecutive tokens of a document and what follows each."""

    document: int
    """Which document of the shard."""
    tokens: list[int]
    """What the model reads."""
    targets: list[int]
    """The tokens to predict, at the last ``len(targets)`` positions."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Windows padded on the right, and the positions at which something is predicted."""

    tokens: Int[Tensor, "window pos"]
    mask: Int[Tensor, "window pos"]
    scored: Bool[Tensor, "window pos"]
    targets: Int[Tensor, " row"]
    """Next tokens at the scored positions, row by row."""
    documents: Int[Tensor, " row"]
    """The document of each."""
    positions: Int[Tensor, " row"]
    """The position of each in its window."""
    documents_of_windows: list[int]
    """The document of each window."""


def windows_of(document: int, ids: Sequence[int], context: int, bos: int | None) -> list[Window]:
    """Cut a document into windows of at most ``context`` tokens.

    Every token but the document's first is the target of one position. Where the document begins
    with BOS, so does every window: many models need it there.

    Args:
        document: Index to keep.
        ids: Token ids of the whole document.
        context: Length of a window.
        bos: Id of the token that may begin a document.

    Returns:
        The windows in order; none if there is nothing to predict.

    Example:
        >>> for window in windows_of(0, [1, 5, 6, 7, 8], context=3, bos=1):
        ...     print(window.tokens, window.targets)
        [1, 5, 6] [5, 6, 7]
        [1, 7] [8]
    """
    inputs, targets = list(ids[:-1]), list(ids[1:])
    prefix = [ids[0]] if inputs and ids[0] == bos else []
    windows = [Window(document, inputs[:context], targets[:context])] if inputs else []
    room = context - len(prefix)
    for start in range(context, len(inputs), room):
        end = start + room
        windows.append(Window(document, [*prefix, *inputs[start:end]], targets[start:end]))
    return windows


def batches_of(windows: Sequence[Window], batch_size: int) -> Iterator[Batch]:
    """Put windows of similar length together, the longest first."""
    order = sorted(windows, key=lambda window: -len(window.tokens))
    for start in range(0, len(order), batch_size):
        yield _padded(order[start : start + batch_size])


def _padded(windows: Sequence[Window]) -> Batch:
    shape = (len(windows), max(len(window.tokens) for window in windows))
    tokens, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    scored = torch.zeros(shape, dtype=torch.bool)
    for row, window in enumerate(windows):
        length = len(window.tokens)
        tokens[row, :length] = torch.tensor(window.tokens)
        mask[row, :length] = 1
        scored[row, length - len(window.targets) : length] = True
    rows, positions = scored.nonzero().unbind(1)
    owners = [window.document for window in windows]
    return Batch(
        tokens=tokens,
        mask=mask,
        scored=scored,
        targets=torch.tensor([target for window in windows for target in window.targets]),
        documents=torch.tensor(owners)[rows],
        positions=positions,
        documents_of_windows=owners,
    )
