"""ATen's operators in our own kinds, as far as that needs no torch."""

from . import batched as batched
from . import complex as complex
from . import elementwise as elementwise
from . import lookup as lookup
from . import loss as loss
from . import normalize as normalize
from . import product as product
from . import random as random
from . import reduce as reduce
from . import shape as shape
from . import windows as windows
from .complex import called as called
from .table import HANDLERS as HANDLERS
from .table import handled as handled
