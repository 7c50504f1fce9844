"""ATen's operators in our own kinds, one file per family; see `graph/aten/table.py`."""

from .....graph.aten import HANDLERS as HANDLERS
from .....graph.aten import handled as handled
from . import attention as attention
