# OneFlow 0.9.0's own annotations do not hold (flow.Tensor is a variable, nn.init is unknown), so
# the type checker takes everything in it as Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
