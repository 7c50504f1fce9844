"""Runs a model in OneFlow's lazy mode and keeps the forward job that it builds.

The model's own modules run, with lazy tensors in place of their parameters and buffers. Each call
of a submodule opens a name scope `c<k>`, so every operator's name tells which call issued it. All
that was replaced is restored, even after an error. `TensorNameScope` is OneFlow's table from
tensors to job names; it outlives a job that is never compiled, and later tensors would be mistaken
for those of an older trace, so it is cleared before each job.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import oneflow as flow
import oneflow._oneflow_internal as internal
import oneflow.core.job.job_pb2 as job_pb
import oneflow.nn as nn
from oneflow.framework import graph_build_util, session_context
from oneflow.nn.graph.graph_config import GraphConfig

from ....calling import Calling
from ....nested import take_tensors
from ....tracing.carried import Carried
from ....tracing.modes import reading_modes
from .device_guard import devices_checked
from .recorder import LOSS, Call, Recorder, name_scope
from .repeats import Copy, Layer, Repeats
from .shape_guard import shapes_checked

_AGAIN = "again"  # scope of a second pass
_job_numbers = itertools.count()


@dataclass
class LazyJob:
    """A forward job, and what its names stand for.

    params, buffers: job name -> dotted name in the model
    outputs:         job names of the tensors that the model returned, in `structure`'s order
    structure:       the model's result with a `Slot` in the place of each tensor
    captured:        job name -> eager tensor that the model read from elsewhere
    rewritten:       dotted name of a parameter or buffer that the model changed -> job name of its
                     last value (BatchNorm's counters are left out)
    kinds, copies: of layers that are alike, the calls that ran and those that did not
    asked: the modules whose `training` the model's own code has read
    leaves: the pass has left something in Python (`Carried`)
    """

    proto: job_pb.Job
    calls: list[Call]
    params: dict[str, str]
    buffers: dict[str, str]
    inputs: list[str]
    outputs: list[str] = field(default_factory=list)
    structure: Any = None
    loss: str = ""
    captured: dict[str, flow.Tensor] = field(default_factory=dict)
    rewritten: dict[str, str] = field(default_factory=dict)
    kinds: list[list[Layer]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    asked: list[nn.Module] = field(default_factory=list)
    leaves: bool = False


def build_job(
    model: nn.Module,
    example: tuple[flow.Tensor, ...],
    calling: Calling,
    loss: Callable[..., flow.Tensor] | None,
    boundaries: frozenset[str] = frozenset(),
    training: bool = True,
    apart: Collection[str] = (),
    proven: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> LazyJob:
    """The job of a model and its loss, called with the tensors of an example.

    boundaries: paths of submodules ("" the model, LOSS the loss) whose tensor arguments and results
                go through `identity` operators in the scope `b<k>`
    training:   False: as in evaluation mode
    apart:      paths of layers that are recorded as they are, though others may be alike
    proven:     path of a layer -> those that have issued the same in an earlier job
    Raises CallError naming the submodule that failed.
    """
    session = session_context.GetDefaultSession()
    session.TryInit()
    with _building(model, example, session, training) as (job, lazy, names, job_name):
        carried = Carried(model.named_modules(), flow.Tensor)
        recorder = Recorder(model, job.calls, boundaries)
        repeats = Repeats(model, recorder, names.of, boundaries, apart, proven)
        recorder.instead = repeats.call
        modes = reading_modes(nn.Module, "oneflow.nn.")
        with recorder.recording(), shapes_checked(), devices_checked(), modes as job.asked:
            arguments, named, target = calling.called(lazy, loss is not None)
            result = recorder.run("", model, arguments, named)
            if loss is not None:
                value = recorder.run(LOSS, loss, [result, target], {})
                if not isinstance(value, flow.Tensor):
                    raise ValueError(
                        f"loss(output, target) gave a {type(value).__name__}; it must give a "
                        "scalar oneflow.Tensor"
                    )
                job.loss = names.of(_in_job(value))
        job.leaves = carried.has_changed()
        job.kinds, job.copies = repeats.kinds, repeats.copies
        job.structure, returned = take_tensors(result, flow.Tensor)
        job.outputs = [names.of(_in_job(tensor)) for tensor in returned]
        job.rewritten = _rewritten(model, job, names)
        internal.CurJobBuildAndInferCtx_Complete()
        job.proto.ParseFromString(internal.GetSerializedCurrentJob())
        job_id = internal.JobBuildAndInferCtx_GetCurrentJobId()
    job.captured = _captured_tensors(job.proto, job_name, job_id, session)
    return job


def check_passes(
    model: nn.Module,
    example: tuple[flow.Tensor, ...],
    calling: Calling,
    has_target: bool,
    as_they_are: Collection[Any],
) -> None:
    """ValueError if a pass of the model reads what the one before has left in Python.

    as_they_are: modules that run in each step, and may leave what they like
    """
    session = session_context.GetDefaultSession()
    left_out = {m for one in as_they_are if isinstance(one, nn.Module) for m in one.modules()}
    with _building(model, example, session, model.training) as (_, fed, names, _name):
        recorded = ((path, m) for path, m in model.named_modules() if m not in left_out)
        carried = Carried(recorded, flow.Tensor)
        arguments, named, _ = calling.called(fed, has_target)
        model(*arguments, **named)
        carried.has_changed()
        lazy = (x for x in carried.left if isinstance(x, flow.Tensor) and x.is_lazy)
        kept = {name: id(x) for x in lazy if (name := names.found(x))}
        with name_scope(_AGAIN):
            model(*arguments, **named)
        internal.CurJobBuildAndInferCtx_Complete()
        proto = job_pb.Job()
        proto.ParseFromString(internal.GetSerializedCurrentJob())
        second = (op for op in proto.net.op if op.name.startswith(f"{_AGAIN}-"))
        read = {x for op in second for one in op.user_conf.input.values() for x in one.s}
        carried.after_second({number for name, number in kept.items() if name in read})
        carried.check()


@contextmanager
def _building(
    model: nn.Module, example: tuple[flow.Tensor, ...], session: Any, training: bool
) -> Iterator[tuple[LazyJob, list[flow.Tensor], _TensorNames, str]]:
    """A job in the making, its inputs, the names of tensors, and its own."""
    config = GraphConfig().proto
    config.job_name = f"autoddl_trace_{next(_job_numbers)}"
    # completing the job then only writes its shapes, and runs no pass that rewrites operators
    config.flag_name2flag_value["__is_user_function__"].at_bool = False
    names = _TensorNames()
    names.clear()
    with graph_build_util.graph_build_context(config, session), _restored(model):
        lazy = [graph_build_util.build_graph_input_arg(f"in{i}", t) for i, t in enumerate(example)]
        if model.training != training:
            for module in model.modules():
                module.training = training
        job = LazyJob(job_pb.Job(), [], {}, {}, [f"in{i}/out" for i in range(len(lazy))])
        _feed_state(model, job)
        yield job, lazy, names, config.job_name


class _TensorNames:
    """OneFlow's table of the names that tensors have in the current job, which Python lacks."""

    def __init__(self) -> None:
        library = ctypes.CDLL(internal.__file__)
        found = library._ZN7oneflow3one15TensorNameScope6GlobalEv
        found.restype = ctypes.c_void_p
        self._clear = library._ZN7oneflow3one15TensorNameScope5ClearEv
        self._clear.argtypes, self._clear.restype = [ctypes.c_void_p], None
        self._look_up = (
            library._ZNK7oneflow3one15TensorNameScope6LookupERKSt10shared_ptrINS0_6TensorEE
        )
        self._look_up.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._look_up.restype = ctypes.POINTER(ctypes.c_char_p)
        self._table = found()

    def clear(self) -> None:
        """Forget the tensors of earlier jobs."""
        self._clear(self._table)

    def of(self, tensor: flow.Tensor) -> str:
        """The name of the last value of a lazy tensor of the job."""
        name = self.found(tensor)
        assert name, "a tensor that is not of the job"
        return name

    def found(self, tensor: flow.Tensor) -> str:
        """As `of`; empty for a lazy tensor of another job."""
        # behind its header, a Python tensor is a std::shared_ptr<Tensor>
        return self._look_up(self._table, id(tensor) + object.__basicsize__)[0].decode()


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """A context that undoes what a forward pass changes in modules: state, attributes, modes."""
    saved = []
    for module in model.modules():
        kept = dict(module.__dict__)
        dicts = {k: dict(v) for k, v in kept.items() if isinstance(v, dict)}
        saved.append((module, kept, dicts))
    try:
        yield
    finally:
        for module, kept, dicts in saved:
            module.__dict__.clear()
            module.__dict__.update(kept)
            for name, items in dicts.items():
                kept[name].clear()
                kept[name].update(items)


def _feed_state(model: nn.Module, job: LazyJob) -> None:
    """Put a lazy variable in place of every parameter and buffer; tied ones share one."""
    fed: dict[flow.Tensor, flow.Tensor] = {}
    for path, module in model.named_modules():
        for slots, names in ((module._parameters, job.params), (module._buffers, job.buffers)):
            for key, tensor in slots.items():
                if tensor is None:
                    continue
                if tensor not in fed:
                    name = f"v{len(fed)}"
                    names[f"{name}/out"] = f"{path}.{key}" if path else key
                    fed[tensor] = _variable(name, tensor)
                slots[key] = fed[tensor]


def _variable(name: str, tensor: flow.Tensor) -> flow.Tensor:
    """The job's variable for a tensor."""
    # as OneFlow's own `build_graph_state`, which writes this text anew, and so takes twice as long
    text = 'in_0: "in_0" out_0: "out_0"'
    op = internal.one.FeedVariableOpExpr(name, text, ["in_0"], ["out_0"])
    return flow._C.dispatch_feed_variable(op, tensor, l2=0.0)


def _rewritten(model: nn.Module, job: LazyJob, names: _TensorNames) -> dict[str, str]:
    """Dotted name of a changed parameter or buffer -> its last value's name in the job.

    BatchNorm's counters, which count at each forward pass, are left out.
    """
    fed = {path: name for found in (job.params, job.buffers) for name, path in found.items()}
    changed: dict[str, str] = {}
    for path, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{path}.{key}" if path else key
            if name in fed and tensor is not None and key != "num_batches_tracked":
                last = names.of(_in_job(tensor))
                if last != fed[name]:
                    changed[name] = last
    return changed


def _in_job(tensor: flow.Tensor) -> flow.Tensor:
    """A tensor of the job with the values of `tensor`, which may be one that the model made."""
    if tensor.is_lazy:
        return tensor
    with name_scope("c0"):  # an operator of the model's own call
        return flow._C.identity(tensor)


def _captured_tensors(
    proto: job_pb.Job, name: str, job_id: int, session: Any
) -> dict[str, flow.Tensor]:
    """The eager tensors that the job read, by the names of the variables that represent them.

    Only OneFlow's compiled graph exposes them. It registers them, then refuses a job whose variable
    nobody registered: a job with one such variable yields them without being compiled.
    """
    variables = [op for op in proto.net.op if op.WhichOneof("op_type") == "variable_conf"]
    if not any("FreeEagerTensor" in op.name for op in variables):
        return {}
    refused = job_pb.Job()
    refused.job_conf.CopyFrom(proto.job_conf)
    unknown = refused.net.op.add()
    unknown.CopyFrom(variables[0])
    unknown.name = "unknown"
    group = refused.placement.placement_group.add()
    group.parallel_conf.CopyFrom(proto.placement.placement_group[0].parallel_conf)
    group.op_set.op_name.append(unknown.name)
    graph = internal.nn.graph.CNNGraph(
        name, refused.SerializeToString(), job_id, session._session_ctx
    )
    try:
        graph.complie_and_init_runtime()
    except Exception as error:
        if "must be a variable created" not in str(error):
            raise
    names = (f"{name}/out" for name in graph.additional_var_names)
    return dict(zip(names, graph.additional_var_tensors, strict=True))
