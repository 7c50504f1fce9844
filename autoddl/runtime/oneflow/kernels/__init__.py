"""Operator kernels on local shards, one file per family. Importing this package fills `KERNELS`.

`input`, `param`, `buffer` and `loss` have no kernel: the executor itself feeds and reads them.
"""

from ..kernels import elementwise as elementwise
from ..kernels import lookup as lookup
from ..kernels import loss as loss
from ..kernels import normalize as normalize
from ..kernels import pool as pool
from ..kernels import product as product
from ..kernels import random as random
from ..kernels import reduce as reduce
from ..kernels import shape as shape
from ..kernels import softmax as softmax
from ..kernels import structure as structure
from .registry import KERNELS as KERNELS
