"""ATen's operators in our own kinds, as far as that needs no torch."""

from . import loss as loss
from . import shape as shape
from .table import HANDLERS as HANDLERS
from .table import handled as handled
