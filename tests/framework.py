"""The framework of this environment, whose back end the tests of the runtime run on.

Test models and workers are written once, in what OneFlow and PyTorch have alike: `flow` is the
module of OneFlow where it is installed, else torch.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

NAME = "oneflow" if find_spec("oneflow") else "torch"
flow: Any = import_module(NAME)
nn: Any = import_module(f"{NAME}.nn")
F: Any = import_module(f"{NAME}.nn.functional")
_made: Any = import_module(f"autoddl.runtime.{NAME}.framework")
build_trainer, new_backend, trace_with_state = (
    _made.build_trainer, _made.new_backend, _made.trace_with_state
)  # fmt: skip
