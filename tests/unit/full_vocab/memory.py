"""The memory of tensors that an analysis makes, counted storage by storage."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorMemory(TorchDispatchMode):
    """Bytes of the storages made inside the context: the most at once, and the largest."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._known = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, torch.Tensor):
                self._known.add(leaf.untyped_storage())
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage):
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        weakref.finalize(storage, self._freed, size)
        self.now += size
        self.peak = max(self.peak, self.now)
        self.largest = max(self.largest, size)

    def _freed(self, size):
        self.now -= size
