# PyTorch is not installed where types are checked: the type checker takes everything in it as Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
