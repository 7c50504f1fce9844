"""ATen's operators in our own kinds, one file per family; see `table.py`."""

from . import elementwise as elementwise
from . import lookup as lookup
from . import loss as loss
from . import normalize as normalize
from . import product as product
from . import reduce as reduce
from . import shape as shape
from .table import HANDLERS as HANDLERS
from .table import handled as handled
