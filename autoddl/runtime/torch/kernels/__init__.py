"""Operator kernels on local shards: ATen's functions, one file per family.

`input`, `param`, `buffer` and `loss` have no kernel: the executor itself feeds and reads them.
"""

from ...kernel import Kernel
from . import elementwise, lookup, loss, normalize, product, reduce, shape, softmax, structure

_FAMILIES = elementwise, lookup, loss, normalize, product, reduce, shape, softmax, structure
KERNELS: dict[str, Kernel] = {k: v for family in _FAMILIES for k, v in family.KERNELS.items()}
CHAINED = {k: v for k, v in {**KERNELS, **product.CHAINED}.items() if k != "opaque"}
IN_PLACE = elementwise.IN_PLACE
