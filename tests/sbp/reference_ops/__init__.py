"""Operators in NumPy, from their definitions; HIPS autograd differentiates them.

One file per family; importing this package fills `FORWARD`.

`FORWARD[kind](inputs, attrs, shard)` returns the outputs. `shard` says where a device's tensors
begin: a lookup in a part of a table needs it. `kernel(kind)` is the form that the oracle takes.
"""

from . import binary as binary
from . import conv as conv
from . import elementwise as elementwise
from . import gather as gather
from . import loss as loss
from . import matmul as matmul
from . import normalize as normalize
from . import padding as padding
from . import patches as patches
from . import pooling as pooling
from . import reduce as reduce
from . import sampling as sampling
from . import scatter as scatter
from . import shape as shape
from . import softmax as softmax
from . import source as source
from . import unary as unary
from . import upsample as upsample
from .registry import FORWARD as FORWARD
from .registry import kernel as kernel
