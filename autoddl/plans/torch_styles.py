"""A plan in the words of PyTorch's own tools, as a file of Python that needs torch alone.

Every axis of the mesh must be of one of two kinds. Along a *data* axis each operator has its rows
of the batch and whole parameters: `DistributedDataParallel`, or `fully_shard`. Along a *model* axis
`nn.Linear`s and `nn.Embedding`s are split, and nothing but them communicates: `parallelize_module`
with their styles, whose layouts are the placements of the tensors that come and go. All other
operators run on what each device has. A plan that does something else is refused, with what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.graph import SOURCE_KINDS, Graph, Op
from ..graph.placed import PlannedOp
from ..sbp.placement import B, NdSbp, P, Placement
from ..sbp.signature import is_matmul
from .plan import Plan
from .stage import StagePlan

_DATA, _MODEL = "data", "model"
_TEXT = '''\
"""{name} as autoddl has planned it, by PyTorch alone: each of {size} ranks calls `parallelize`."""

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

MICRO_BATCHES = {micro_batches}  # gradients of so many are added up before a step
RANKS = {ranks}  # in a row: those with the same rows of the batch
STYLES = {{{styles}}}


def parallelize(model, device="cpu"):
    mesh = DeviceMesh(device, RANKS, mesh_dim_names=("data", "model"))
    if STYLES:
        parallelize_module(model, mesh["model"], STYLES)
{data}    return model, mesh
'''
_WRAP = {
    "none": "",
    "replicated": """\
    model = DistributedDataParallel(model, process_group=mesh["data"].get_group())
""",
    "sharded": """\
    for path in {blocks}:
        fully_shard(model.get_submodule(path), mesh=mesh["data"], reshard_after_forward={again})
    fully_shard(model, mesh=mesh["data"], reshard_after_forward={again})
""",
}


@dataclass(frozen=True)
class Style:
    """Of a module: which of its weight's dims is split, and the layouts of its input and output."""

    name: str
    given: str
    gives: str

    def __str__(self) -> str:
        return f"{self.name}(input_layouts={self.given}, output_layouts={self.gives})"


def torch_styles(plan: Plan) -> str:
    """The file. ValueError if the plan is none that these tools know, saying what is not."""
    if len(plan.stages) > 1:
        raise _unknown("it has several stages")
    stage = plan.stage
    if stage.shares:
        raise _unknown("hosts have unequal shares")
    if stage.recomputed:
        raise _unknown("it recomputes blocks; plan with checkpointing='none'")
    kinds = [_DATA if _is_data(stage, a) else _MODEL for a in range(stage.mesh.num_axes)]
    model_axes = tuple(a for a, kind in enumerate(kinds) if kind == _MODEL)
    data_axes = tuple(a for a, kind in enumerate(kinds) if kind == _DATA)
    styles = _Styles(stage, model_axes).all() if model_axes else {}
    extents = stage.mesh.extents
    order = np.arange(stage.mesh.size).reshape(extents or (1,))
    if extents:
        order = order.transpose(*data_axes, *model_axes)
    ranks = order.reshape(int(np.prod([extents[a] for a in data_axes], dtype=int)), -1)
    stages = {edge.zero_stage for edge in stage.edges.values()}
    way = "none" if len(ranks) == 1 else "sharded" if styles or stages - {0} else "replicated"
    lines = "".join(f"\n    {path!r}: {style}," for path, style in styles.items())
    return _TEXT.format(
        name=stage.graph.name, size=stage.mesh.size, micro_batches=stage.micro_batches,
        ranks=ranks.tolist(), styles=f"{lines}\n" if lines else "",
        data=_WRAP[way].format(again=3 in stages, blocks=_blocks(stage.graph)),
    )  # fmt: skip


def _blocks(graph: Graph) -> list[str]:
    """The outermost modules that are numbered and have parameters: those of lists and sequences."""
    found = {}
    for op in graph.params:
        path = str(op.attrs["name"]).split(".")[:-1]
        ends = [n for n, part in enumerate(path) if part.isdecimal()]
        if ends:
            found[".".join(path[: ends[0] + 1])] = None
    return list(found)


def _unknown(why: str) -> ValueError:
    return ValueError(f"torch's own tools have no word for this plan: {why}")


def _placed(stage: StagePlan) -> Iterator[tuple[Op, PlannedOp]]:
    """The operators that compute what is split."""
    free = stage.graph.free_ops
    for op in stage.graph.ops:
        if op.kind not in SOURCE_KINDS and op.name not in free:
            yield op, stage.ops[op.name]


def _is_data(stage: StagePlan, axis: int) -> bool:
    """Whether each operator has its rows of the batch along an axis."""
    graph = stage.graph
    for op, planned in _placed(stage):
        if axis in planned.inner_axes:
            return False
        names = (
            *zip(op.inputs, planned.ins, strict=True),
            *zip(op.outputs, planned.outs, strict=True),
        )
        for name, nd in names:
            dims = graph.tensors[name].batch_dims
            whole = graph.producers[name].kind == "param"
            if (whole and nd[axis] != B) or (dims and nd[axis].code not in dims):
                return False
    return True


@dataclass
class _Styles:
    """axes: the model's."""

    stage: StagePlan
    axes: Sequence[int]

    @property
    def graph(self) -> Graph:
        return self.stage.graph

    def all(self) -> dict[str, Style]:
        """By the paths of modules."""
        found = {}
        split = {op.module: op for op, planned in _placed(self.stage) if self._splits(op, planned)}
        for path, op in split.items():
            found[path] = self._style(path, op)
        for op, planned in _placed(self.stage):
            if set(self.axes) & set(planned.inner_axes) and op.module not in found:
                raise _unknown(
                    f"{op.name} communicates inside, as a loss of a split vocabulary does"
                )
            for index, name in enumerate(op.inputs):
                source = self.graph.producers[name]
                inside = source.module in found or op.module in found or source.kind == "param"
                if not inside and self._label(self._made(name), name) != self._label(
                    planned.ins[index], name
                ):
                    raise _unknown(f"what {source.name} gives is redistributed before {op.name}")
        return found

    def _splits(self, op: Op, planned: PlannedOp) -> bool:
        """Whether an operator reads a split weight; refused if that is no module with a style."""
        found = False
        for index, name in enumerate(op.inputs):
            source = self.graph.producers[name]
            if source.kind != "param":
                continue
            label = self._label(planned.ins[index], name)
            if self._label(self._made(name), name) != label:
                raise _unknown(f"{source.name} is stored in other parts than {op.name} reads")
            weight = str(source.attrs["name"])
            if weight == f"{op.module}.bias" or label == B:
                continue
            is_linear = is_matmul(op.kind) and index == 1 and op.attrs.get("transpose_b")
            if weight != f"{op.module}.weight" or not (is_linear or op.kind == "gather"):
                raise _unknown(f"{weight} is split, which is no weight of a Linear or an Embedding")
            found = True
        return found

    def _style(self, path: str, op: Op) -> Style:
        planned = self.stage.ops[op.name]
        table = op.kind == "gather"
        weight, x = (0, 1) if table else (1, 0)
        by_rows = planned.ins[weight][self.axes[0]].code == (0 if table else 1)
        wanted = self._label(planned.ins[x], op.inputs[x])
        given = self._label(self._made(op.inputs[x]), op.inputs[x])
        source = self.graph.producers[op.inputs[x]]
        last = len(self.graph.tensors[op.inputs[x]].spec.shape) - 1
        if wanted.code != (last if by_rows and not table else B.code):
            raise _unknown(f"{op.name} reads its input as {wanted}")
        if self._is_split(source):
            given = wanted  # its own layouts bring it so
        if given == P:
            raise _unknown(f"{op.name} reads parts of a sum")
        gives = set(self._gives(path))
        if len(gives) != 1:
            raise _unknown(f"what {path} gives is wanted in {len(gives)} ways")
        name = "RowwiseParallel" if by_rows else "ColwiseParallel"
        return Style(name, _layout(given, last), gives.pop())

    def _is_split(self, op: Op) -> bool:
        """Whether an operator is of a module whose weight is split."""
        return any(
            self._label(self.stage.ops[reader.name].ins[index], param.outputs[0]) != B
            for param in self.graph.params
            if param.attrs["name"] == f"{op.module}.weight"
            for reader, index in self.graph.consumers[param.outputs[0]]
        )

    def _gives(self, path: str) -> Iterator[str]:
        """How the readers outside of a module want what it gives."""
        for op in self.graph.ops:
            if op.module != path or op.kind in SOURCE_KINDS:
                continue
            for name in op.outputs:
                for reader, index in self.graph.consumers[name]:
                    if reader.module == path and reader.kind != "fork":
                        continue
                    label = self._label(self.stage.ops[reader.name].ins[index], name)
                    if label == P:
                        raise _unknown(f"parts of a sum go on from {path} to {reader.name}")
                    yield _layout(label, len(self.graph.tensors[name].spec.shape) - 1)

    def _made(self, name: str) -> NdSbp:
        """A tensor's placement where it is made."""
        source = self.graph.producers[name]
        return self.stage.ops[source.name].outs[source.outputs.index(name)]

    def _label(self, nd: NdSbp, name: str) -> Placement:
        """The one placement on all axes of the model."""
        labels = {nd[a] for a in self.axes}
        if len(labels) > 1:
            raise _unknown(f"{name} is placed as {nd}, in two ways at once")
        return labels.pop()


def _layout(label: Placement, last: int) -> str:
    return "Replicate()" if label == B else f"Shard({-1 if label.dim == last else label.dim})"
