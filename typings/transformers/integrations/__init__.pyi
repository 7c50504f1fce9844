# transformers is not installed where types are checked: all in it is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
