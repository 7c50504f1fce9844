# Only what the tests import: autograd's own decorators hide what its functions take.
from collections.abc import Callable, Sequence
from typing import Any

def grad(fun: Callable[..., Any], argnum: int | Sequence[int] = 0) -> Callable[..., Any]: ...
