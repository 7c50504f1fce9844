"""ATen's operators in our own kinds, as far as that needs no torch."""

from . import elementwise as elementwise
from . import loss as loss
from . import normalize as normalize
from . import reduce as reduce
from . import shape as shape
from . import windows as windows
from .table import HANDLERS as HANDLERS
from .table import handled as handled
