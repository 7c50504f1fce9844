"""Records which submodule call issues each operator of a lazy job, by name scopes.

Call number k opens the scope `c<k>`, or `n<k>` where gradients are off; the arguments and results
of an opaque call pass through `identity` operators in the scope `b<k>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import oneflow as flow
import oneflow._oneflow_internal as internal
import oneflow.nn as nn
from oneflow.autograd import autograd_mode

from ....nested import put_tensors, take_tensors
from .one_operator import OneOperator

LOSS = "loss"


@dataclass
class Call:
    """One call of a submodule: the call around it (an index, -1 for none) and the module's path.

    A call at a boundary (see `build_job`) also keeps its arguments, (args, kwargs), and its result,
    both with a `Slot` in the place of each tensor, and how many tensors those are.
    operator: the module called, if its call is one operator; it is at a boundary
    """

    parent: int
    path: str
    is_boundary: bool = False
    arguments: Any = None
    result: Any = None
    num_arguments: int = 0
    num_results: int = 0
    operator: OneOperator | None = None


class CallError(Exception):
    """The call of a submodule failed under the trace; the cause is the original error.

    path:   of the submodule
    shapes: of the tensors that it was called with
    """

    def __init__(self, path: str, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(path)
        self.path = path
        self.shapes = shapes


class Recorder:
    """Opens a name scope around each submodule call and remembers the calls."""

    def __init__(self, model: nn.Module, calls: list[Call], boundaries: frozenset[str]) -> None:
        self.paths = {module: path for path, module in model.named_modules()}
        self.calls = calls
        self.boundaries = boundaries
        self.current = -1
        self.is_inside_boundary = False
        self.gradient_free = 0
        self.instead: Callable[..., Any] = _as_it_is
        self.outside = internal.GetCurrentScope()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record module calls, `Tensor.detach` and gradient-free regions until it ends."""
        recorder = self
        call_before, mode_before = nn.Module.__call__, autograd_mode.AutoGradMode
        detach_before, data_before = flow.Tensor.detach, flow.Tensor.data

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if isinstance(module, OneOperator) and not self.is_inside_boundary:
                return self.run(self.path, partial(_call_module, module), args, kwargs, module)
            path = self.paths.get(module)
            # modules made on the fly belong to their caller, and the root's scope is open already
            if not path:
                return _call_module(module, *args, **kwargs)
            run = partial(self.run, path, partial(_call_module, module), args, kwargs)
            return self.instead(path, module, run, args, kwargs)

        def detach(tensor: flow.Tensor) -> flow.Tensor:
            # lazy mode would drop it, and gradients would flow
            with self.without_gradient():
                return flow._C.identity(detach_before(tensor))

        class GradMode(mode_before):
            """Also opens a scope while gradients are off. OneFlow ends a mode by deleting it."""

            def __init__(self, enabled: bool) -> None:
                super().__init__(enabled)
                self.scope = None if enabled else recorder.without_gradient()
                if self.scope is not None:
                    self.scope.__enter__()

            def __del__(self) -> None:
                if self.scope is not None:
                    self.scope.__exit__(None, None, None)

        nn.Module.__call__ = call
        flow.Tensor.detach = detach
        flow.Tensor.data = property(detach, data_before.__set__)
        autograd_mode.AutoGradMode = GradMode
        try:
            yield
        finally:
            nn.Module.__call__ = call_before
            flow.Tensor.detach, flow.Tensor.data = detach_before, data_before
            autograd_mode.AutoGradMode = mode_before
            # an error can leave gradient-free scopes open, which would hide it behind an assertion
            while internal.GetCurrentScope() is not self.outside:
                internal.GlobalScopeStackPop()

    @property
    def path(self) -> str:
        """Of the module in whose call the program is."""
        return self.calls[self.current].path

    def run(
        self,
        path: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operator: OneOperator | None = None,
    ) -> Any:
        """`function(*args, **kwargs)` as a new call of the module at `path`, or of an operator."""
        outer, self.current = self.current, len(self.calls)
        call = Call(outer, path, operator=operator)
        self.calls.append(call)
        is_boundary = operator is not None or path in self.boundaries
        call.is_boundary = is_boundary and not self.is_inside_boundary
        try:
            with self.scope(self.current):
                if not call.is_boundary:
                    return function(*args, **kwargs)
                self.is_inside_boundary = True
                call.arguments, given = self.marked((tuple(args), kwargs))
                call.num_arguments = len(given)
                args, kwargs = put_tensors(call.arguments, given)
                call.result, results = self.marked(function(*args, **kwargs))
                call.num_results = len(results)
                self.is_inside_boundary = False
                return put_tensors(call.result, results)
        except CallError:
            raise
        except Exception as error:
            shapes = [
                tuple(tensor.shape) for tensor in take_tensors((args, kwargs), flow.Tensor)[1]
            ]
            raise CallError(path, shapes) from error
        finally:
            self.current = outer

    def marked(self, tree: Any) -> tuple[Any, list[flow.Tensor]]:
        """`take_tensors(tree)` with the tensors behind boundary operators."""
        structure, tensors = take_tensors(tree, flow.Tensor)
        with name_scope(f"b{self.current}", self.outside):
            return structure, [flow._C.identity(tensor) for tensor in tensors]

    def scope(self, call: int) -> AbstractContextManager[None]:
        """The name scope of a call."""
        return name_scope(f"{'n' if self.gradient_free else 'c'}{call}", self.outside)

    @contextmanager
    def without_gradient(self) -> Iterator[None]:
        """The scope of operators of the current call that pass no gradient."""
        self.gradient_free += 1
        try:
            with self.scope(self.current):
                yield
        finally:
            self.gradient_free -= 1


@contextmanager
def name_scope(name: str, around: Any = None) -> Iterator[None]:
    """Operators made inside get the prefix `name`, behind those of the scope `around`.

    around: a OneFlow scope; None for the current one
    """
    around = internal.GetCurrentScope() if around is None else around
    made: list[Any] = []
    # OneFlow's own `make_new_name_scope` takes six times as long: it goes through protobuf texts
    internal.deprecated.PhysicalRun(
        lambda builder: made.append(builder.BuildScopeWithNewScopeName(around, name))
    )
    internal.GlobalScopeStackPush(made[0])
    try:
        yield
    finally:
        if internal.GetCurrentScope() is made[0]:
            internal.GlobalScopeStackPop()


def _as_it_is(path: str, module: nn.Module, run: Callable[[], Any], args: Any, kwargs: Any) -> Any:
    """A call of a module, where no other has the say (`repeats.Repeats.call`)."""
    return run()


def _call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What `Module.__call__` does, without its warning about lazy mode."""
    for hook in tuple(module._forward_pre_hooks.values()):
        changed = hook(module, args)
        if changed is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for hook in tuple(module._forward_hooks.values()):
        changed = hook(module, args, result)
        if changed is not None:
            result = changed
    return result
