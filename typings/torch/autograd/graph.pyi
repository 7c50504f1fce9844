from typing import Any, NamedTuple

class GradientEdge(NamedTuple):
    node: Any
    output_nr: int

def get_gradient_edge(tensor: Any) -> GradientEdge: ...
