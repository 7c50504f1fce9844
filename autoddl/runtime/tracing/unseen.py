"""Changes in place that autograd does not see: a plan's gradients would follow them.

`with torch.no_grad(): y.clamp_(0, 1)` changes the values of y, and its gradient passes as if it had
not; so does `y.detach().clamp_(0, 1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Unseen:
    """Watches the calls of a run.

    found: the first function that made such a change; "" if none did
    tensor: the class of tensors; sees: whether autograd follows what is called now
    """

    def __init__(self, tensor: type, sees: Callable[[], bool]) -> None:
        self.found = ""
        self._tensor, self._sees = tensor, sees
        self._cut: list[Any] = []  # of tensors with a gradient, what `detach` gave

    def call(self, func: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The result of a call."""
        first: Any = args[0] if args else None
        if not isinstance(first, self._tensor) or first.is_inference():
            return func(*args, **named)
        version, name = first._version, getattr(func, "__name__", "")
        result = func(*args, **named)
        if name == "detach" and first.requires_grad:
            self._cut.append(result)
        if first._version != version and not self.found and self._is_hidden(first):
            self.found = name
        return result

    def _is_hidden(self, x: Any) -> bool:
        place = x.untyped_storage()._cdata
        cut = any(y.untyped_storage()._cdata == place for y in self._cut)
        return cut or x.requires_grad and not self._sees()
