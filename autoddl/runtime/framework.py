"""The framework that a model is of: whether it can be used here, and what the runtime has for it.

What depends on the framework stands in `runtime/NAME/framework.py`, a module that is itself a
`Framework`. It is imported when a model of it is there, and nothing else imports the framework.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from .entry import HUGGING_FACE, Entry, find_entry
from .jobs.output import NO_NEWS

if TYPE_CHECKING:
    import numpy as np

    from ..graph.graph import Graph
    from ..plans import Plan
    from .backend import Backend, OptimizerFn, Tensor
    from .traced import Traced
    from .trainer import Trainer

_FIRST = "oneflow"  # what a model is taken for that is of none


class Framework(Protocol):
    """What is written for one framework."""

    NAME: str

    def new_backend(self, device: str | None = None) -> Backend:
        """This rank's, on a "cpu" or "cuda"; by default on the best that is here."""
        ...

    def trace_with_state(
        self, model: Any, *example: Any, loss: Callable[..., Any] | None, name: str | None = None
    ) -> Traced: ...

    def build_trainer(
        self, traced: Traced, plan: Plan, optimizer: OptimizerFn, **options: Any
    ) -> Trainer:
        """The trainer of this rank. All ranks of the job call it; it installs the guard."""
        ...

    # ---- models given by name (`entry.py`)

    def trace_entry(self, model: str, batch: int | None = None) -> Graph:
        """The graph of `model` (module:function), built without memory for its parameters."""
        ...

    def build_entry(self, model: str, batch: int | None, seed: int) -> Entry:
        """(model, example, loss) for training, with the initial parameters of `seed`."""
        ...

    def optimizer_maker(self, name: str, lr: float) -> OptimizerFn:
        """parameters -> the optimizer called `name`: adam, adamw, momentum (of 0.9) or sgd."""
        ...

    def to_arrays(self, example: Any) -> list[np.ndarray]:
        """The values of an example's tensors."""
        ...

    def to_arguments(self, arrays: Sequence[np.ndarray], example: Any) -> tuple[Any, ...]:
        """A batch like `example`, of these values, as `Trainer.step` takes it."""
        ...

    def to_tensors(self, arrays: Sequence[np.ndarray]) -> list[Tensor]: ...


# they communicate by themselves
_WRAPPERS = "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"


def framework(name: str, call: str) -> Framework:
    """By its name. BackendMissing, naming the call, if it cannot be imported."""
    need(name, call)
    found: Any = importlib.import_module(f"{__package__}.{name}.framework")
    return found


def framework_of(model: Any, call: str) -> Framework:
    """That of the classes which `model` is of; of what is no model one that is here, to say so."""
    kinds = type(model).__mro__
    if wrapper := next((kind.__name__ for kind in kinds if kind.__name__ in _WRAPPERS), None):
        raise ValueError(
            f"the model is in torch's {wrapper}, whose place a plan takes: give the module itself"
        )
    origins = {kind.__module__.partition(".")[0] for kind in kinds}
    names = _FIRST, "torch"
    here = [name for name in names if name not in origins and importlib.util.find_spec(name)]
    of = [name for name in names if name in origins]
    return framework(next(iter([*of, *here]), _FIRST), call)


def framework_of_entry(name: str, call: str) -> Framework:
    """That which the module of `name` (module:function) has imported."""
    if name.startswith(HUGGING_FACE):
        return framework("torch", call)
    if ":" not in name:
        return framework(_FIRST, call)
    with _without_no_news(), _ctrl_c_afterwards():
        module = sys.modules[find_entry(name).__module__]
    origins = {_origin(value) for value in vars(module).values()}
    return framework("torch" if "torch" in origins and _FIRST not in origins else _FIRST, call)


def _origin(value: Any) -> str:
    """The package that a value of a module comes from."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).partition(".")[0]


class BackendMissing(ImportError):
    """A framework is needed for this call and cannot be imported."""


def need(framework: str, call: str) -> None:
    """Raise BackendMissing, naming the call, if `framework` ("oneflow", "torch") is not here."""
    if framework == "oneflow":
        need_oneflow(call)
        return
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise BackendMissing(
            f"{call} needs PyTorch, which cannot be imported here ({error}): "
            "pip install 'autoddl[torch]'. Planning saved graphs works without it"
        ) from error


def need_oneflow(call: str) -> None:
    """Raise BackendMissing, naming the call, if OneFlow cannot be imported."""
    try:
        with _without_no_news(), _ctrl_c_afterwards():
            import oneflow  # noqa: F401
    except ImportError as error:
        raise BackendMissing(
            f"{call} needs OneFlow, which cannot be imported here ({error}). Planning saved graphs "
            "works without it; 'autoddl doctor' says how to install it"
        ) from error


@contextlib.contextmanager
def _ctrl_c_afterwards() -> Iterator[None]:
    """Ctrl-C while OneFlow is imported comes after that, which it would make fail or abort.

    Not on a rank, whose import waits for all others, maybe for ever. While OneFlow's own handler is
    in that place, for a tenth of the import, Ctrl-C ends the process without a word.
    """
    known = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not (is_main and callable(known)) or os.environ.get("WORLD_SIZE", "1") != "1":
        yield
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        spec = getattr(sys.modules.get("oneflow"), "__spec__", None)
        if getattr(spec, "_initializing", False):
            pressed = True
        else:
            known(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, known)
    if pressed:
        raise KeyboardInterrupt


def let_python_interrupt() -> None:
    """Python's handler of Ctrl-C again, whichever it is.

    OneFlow's import puts its own in that place, of which Python does not know. It ends the process
    at once, and with it the search that has a plan to give.
    """
    known = signal.getsignal(signal.SIGINT)
    if known is not None:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGINT, known)


@contextlib.contextmanager
def _without_no_news() -> Iterator[None]:
    """Everything that this process writes to stderr meanwhile arrives, but for the line `NO_NEWS`.

    OneFlow's libraries write it themselves, so it is taken out on its way; by another process, as
    nothing else must be lost if this one is killed, and which Ctrl-C does not end.
    """
    if "oneflow" in sys.modules:  # it has been said
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        command = ["grep", "-vxF", "--line-buffered", NO_NEWS]
        grep = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=kept, start_new_session=True)
    except OSError:  # there is no grep: then the line is seen
        os.close(kept)
        yield
        return
    with grep:
        assert grep.stdin is not None
        os.dup2(grep.stdin.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            let_python_interrupt()
