"""Operator kernels on local shards, one file per family. Importing this package fills `KERNELS`.

`input`, `param`, `buffer` and `loss` have no kernel: the executor itself feeds and reads them.
"""

from . import elementwise as elementwise
from . import lookup as lookup
from . import loss as loss
from . import normalize as normalize
from . import pool as pool
from . import product as product
from . import reduce as reduce
from . import shape as shape
from . import softmax as softmax
from . import structure as structure
from .registry import KERNELS as KERNELS
