"""Sizes of temporaries, and contexts in which a matrix product would lose digits."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lens_diversity.decomposition.losses import LOSSES
from lens_diversity.functional import (
    brown_covariance,
    junctions,
    leave_one_out,
    pairwise_diversity,
)

CALLS = (
    {loss: LOSSES[loss] for loss in LOSSES}
    | {f"without, {loss}": lambda u, y, loss=loss: leave_one_out(u, y, loss) for loss in LOSSES}
    | {f"junctions, {loss}": lambda u, y, loss=loss: junctions(u, y, loss) for loss in LOSSES}
    | {"trade-off": brown_covariance, "pairs": lambda u, _: pairwise_diversity(u)}
)


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages seen and not yet freed, their peak, and the largest one."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return result

    def add(self, storage):
        key = storage._cdata
        if key not in self.known:
            self.known.add(key)
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            self.largest = max(self.largest, storage.nbytes())
            weakref.finalize(storage, self.drop, key, storage.nbytes())

    def drop(self, key, size):
        self.known.discard(key)
        self.live -= size


@pytest.mark.parametrize("name", CALLS)
def test_temporaries_are_a_few_times_the_members(name):
    """Nothing of size ``[component, component, batch, vocab]``, and not many of the members'."""
    members, labels = torch.randn(12, 2, 1000), torch.tensor([1, 2])
    with torch.no_grad(), LiveBytes() as memory:
        CALLS[name](members, labels)
    size = members.untyped_storage().nbytes()
    assert memory.largest <= size
    assert memory.peak < 9 * size


@pytest.mark.parametrize("name", CALLS)
def test_autocast_rounds_nothing(name):
    members, labels = torch.randn(5, 2, 7), torch.tensor([1, 2])
    expected = CALLS[name](members, labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = CALLS[name](members, labels)
    for value, truth in zip(numbers(found), numbers(expected), strict=True):
        assert torch.equal(value, truth)


def numbers(result):
    return [result] if isinstance(result, torch.Tensor) else list(vars(result).values())
