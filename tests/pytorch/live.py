"""Bytes of the tensors that are alive in a step, by what torch dispatches in this thread."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Keeps the largest sum of the storages that are alive after an operator.

    apart: tensors that do not count, the caller's own
    """

    def __init__(self, apart: Any = ()) -> None:
        super().__init__()
        self.peak = 0
        self.moment = ""
        self._apart = {x.untyped_storage()._cdata for x in apart}
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see((args, kwargs, result))
        now = self.held()
        if now > self.peak:
            self.peak, self.moment = now, str(func)
        return result

    def see(self, tensors: Any) -> None:
        """Count them from here on."""
        for x in tree_leaves(tensors):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self._apart:
                    self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def held(self) -> int:
        """Bytes of all that is alive now."""
        self._known = {k: v for k, v in self._known.items() if not v[0].expired()}
        return sum(size for _, size in self._known.values())
