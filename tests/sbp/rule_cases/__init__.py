"""Operators with which the rules are proven: specs as the tracer gives them, and inputs.

One file per family. `CASES` has a few operators per kind: shapes, transpose flags, broadcasting,
kept dims. No two sizes of one operator are equal unless they belong together, so that a rule that
mixes up dims is found, and most have the factors 2 and 3.
"""

from .conv import CONV
from .elementwise import ELEMENTWISE
from .gather import GATHER
from .loss import LOSS
from .matmul import MATMUL
from .normalize import NORMALIZE
from .padding import PADDING_BY_OWN, PADDING_BY_VALUE
from .patches import PATCHES
from .pooling import POOLING
from .reduce import REDUCE
from .sampling import SAMPLING
from .shape import SHAPE
from .softmax import SOFTMAX
from .source import SOURCE
from .transposed_conv import TRANSPOSED_CONV
from .upsample import UPSAMPLE

CASES = (
    *MATMUL,
    *CONV,
    *TRANSPOSED_CONV,
    *POOLING,
    *UPSAMPLE,
    *PADDING_BY_OWN,
    *PATCHES,
    *SAMPLING,
    *PADDING_BY_VALUE,
    *ELEMENTWISE,
    *REDUCE,
    *SOFTMAX,
    *LOSS,
    *NORMALIZE,
    *GATHER,
    *SHAPE,
    *SOURCE,
)
