"""A plan as an nn.Graph: every operator reissued on global tensors in its planned placements.

Between operators, `to_global` changes placements and assigns the planned placements of gradients. A
parameter's Partial gradient is left to the optimizer, where OneFlow reduces it once, after gradient
accumulation over micro-batches. OneFlow infers each operator's output placements from its inputs;
where it infers others than planned, the output is converted to the planned one, and this is
recorded.

A block that the plan recomputes is a module of its own, with OneFlow's activation checkpointing
(`again` corrects when it recomputes). In mixed precision the variables are the float32 master
copies, cast where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import oneflow as flow
import oneflow.nn as nn

from ....graph.graph import Op
from ....plans import Plan
from ....plans.stage_figures import stage_figures
from ....sbp.placement import NdSbp
from ..trace.entries import optimizer_maker
from .lazy_ops import constant, issue
from .merge import compiled_axes, merged_extent

JOB_PREFIX = "Training_"  # of the name that nn.Graph gives the class below


@dataclass
class Placer:
    """Planned placements as OneFlow's, on the merged mesh."""

    plan: Plan
    groups: tuple[tuple[int, ...], ...] = ()
    placement: Any = None

    def __post_init__(self) -> None:
        self.groups = compiled_axes(self.plan)
        extents = [merged_extent(self.plan, group) for group in self.groups]
        ranks = np.arange(int(np.prod(extents))).reshape(extents)
        self.placement = flow.placement("cpu", ranks=ranks.tolist())

    def sbp(self, nd: NdSbp) -> list[Any]:
        """The label of each merged axis."""
        return [_label(nd[group[0]] if group else None) for group in self.groups]

    def empty(self, shape: Sequence[int], dtype: str, nd: NdSbp) -> flow.Tensor:
        """A global tensor with arbitrary values."""
        return flow.empty(
            *shape, dtype=getattr(flow, dtype), placement=self.placement, sbp=self.sbp(nd)
        )


def _label(label: Any) -> Any:
    if label is None or label.is_broadcast:
        return flow.sbp.broadcast
    return flow.sbp.partial_sum if label.is_partial else flow.sbp.split(label.dim)


def inputs_of(plan: Plan) -> list[Op]:
    """The operators that stand for the model's inputs, in the order of its arguments."""
    found = [op for op in plan.graph.ops if op.kind == "input"]
    return sorted(found, key=lambda op: op.attrs["index"])


BlockRunner = Callable[[Sequence[flow.Tensor]], list[flow.Tensor]]


class Block(nn.Module):
    """A block that is recomputed; `run` issues its operators."""

    def __init__(self, run: BlockRunner) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: flow.Tensor) -> tuple[flow.Tensor, ...]:
        return tuple(self.run(inputs))


class Replay(nn.Module):
    """The planned operators as a module; `forward` gives the loss of a micro-batch."""

    def __init__(self, plan: Plan, placer: Placer) -> None:
        super().__init__()
        self.plan, self.placer = plan, placer
        self.held: dict[str, str] = {}  # tensor -> attribute of the parameter or buffer
        self.state: dict[str, flow.Tensor] = {}  # its value, while the graph is built
        self.differing: list[str] = []  # operators
        self.differing_backward: list[str] = []
        graph = plan.graph
        for op in graph.ops:
            if op.kind not in ("param", "buffer"):
                continue
            (tensor,) = op.outputs
            spec, (nd,) = graph.tensors[tensor].spec, plan.stage.ops[op.name].outs
            dtype = "float32" if spec.is_float else spec.dtype
            value = placer.empty(spec.shape, dtype, nd)
            name = f"{'p' if op.kind == 'param' else 'b'}{len(self.held)}"
            self.held[tensor] = name
            if op.kind == "param":
                self.register_parameter(name, nn.Parameter(value, op.attrs["trainable"]))
            else:
                self.register_buffer(name, value)
        for number, names in enumerate(plan.recomputed):
            self.add_module(f"block{number}", Block(self._block_runner(number, frozenset(names))))

    @property
    def names(self) -> dict[str, str]:
        """OneFlow's name of each parameter and buffer -> the model's."""
        producers = self.plan.graph.producers
        return {f"model.{a}": producers[t].attrs["name"] for t, a in self.held.items()}

    def forward(self, *inputs: flow.Tensor) -> flow.Tensor:
        plan, graph = self.plan, self.plan.graph
        again = stage_figures(plan.stage).again
        values: dict[str, flow.Tensor] = {
            t: self._cast(t, _tensor_of(getattr(self, name))) for t, name in self.held.items()
        }
        self.state.update(values)
        for op, value in zip(inputs_of(plan), inputs, strict=True):
            values[op.outputs[0]] = value
        finished: set[int] = set()
        for op in graph.ops:
            if op.kind in ("param", "buffer", "input"):
                continue
            if op.kind == "loss":
                return self._receive(op, 0, values[op.inputs[0]])
            block = again.block_of.get(op.name)
            if block is None:
                self._issue(op, values)
            elif block not in finished:
                finished.add(block)
                module = getattr(self, f"block{block}")
                leaving = [t for t in self._made(block) if t in again.leaving]
                given = module(*(values[t] for t in again.entering(block)))
                values.update(zip(leaving, given, strict=True))
        raise AssertionError("the graph has no loss")

    def _cast(self, tensor: str, value: flow.Tensor) -> flow.Tensor:
        dtype = getattr(flow, self.plan.graph.tensors[tensor].spec.dtype)
        if value.dtype != dtype:
            return flow._C.cast(value, dtype, pin_memory=False)
        if self._is_stored_split(tensor):
            # without an operator before its accumulator, a gradient is split through the host
            value.register_hook(lambda gradient: flow._C.identity(gradient))
        return value

    def _is_stored_split(self, tensor: str) -> bool:
        plan = self.plan
        uses = ((user.name, index) for user, index in plan.graph.consumers[tensor])
        return plan.micro_batches > 1 and any(
            plan.stage.edges[use].forward for use in uses if use in plan.stage.edges
        )

    def _made(self, block: int) -> list[str]:
        """The tensors that a block's operators produce, in order."""
        names = frozenset(self.plan.recomputed[block])
        return [t for op in self.plan.graph.ops if op.name in names for t in op.outputs]

    def _block_runner(self, block: int, names: frozenset[str]) -> BlockRunner:
        """A function from the tensors that enter a block to those that leave it."""
        again = stage_figures(self.plan.stage).again

        def run(inputs: Sequence[flow.Tensor]) -> list[flow.Tensor]:
            # parameters do not pass through the module, which would copy them
            entering = again.entering(block)
            values = {**self.state, **dict(zip(entering, inputs, strict=True))}
            made = []
            for op in self.plan.graph.ops:
                if op.name in names:
                    self._issue(op, values)
                    made += [t for t in op.outputs if t in again.leaving]
            return [values[t] for t in made]

        return run

    def _issue(self, op: Op, values: dict[str, flow.Tensor]) -> None:
        """Issue `op` and store its outputs in `values`."""
        planned = self.plan.stage.ops[op.name]
        received = [self._receive(op, n, values[t]) for n, t in enumerate(op.inputs)]
        if op.kind == "stack":
            self._place_gradients(op, received)
        else:
            self._compare_gradients(op, received)
        if op.kind == "constant":
            outputs = [constant(op, self.placer.placement, self.placer.sbp(planned.outs[0]))]
        else:
            outputs = issue(self.plan.graph, op, planned, self.plan.stage.mesh, received)
        for name, value, nd in zip(op.outputs, outputs, planned.outs, strict=False):
            values[name] = self._placed(op, value, self.placer.sbp(nd))

    def _receive(self, op: Op, index: int, value: flow.Tensor) -> flow.Tensor:
        """Input `index` of `op`, converted to its planned placement."""
        edge = self.plan.stage.edges.get((op.name, index))
        tensor = op.inputs[index]
        producer = self.plan.graph.producers[tensor]
        if edge is None or (producer.kind == "param" and not edge.forward):
            return value
        target = self.placer.sbp(self.plan.stage.ops[op.name].ins[index])
        back = self.plan.stage.ops[producer.name].grad_outs[producer.outputs.index(tensor)]
        if back is None:
            return value.to_global(placement=self.placer.placement, sbp=target)
        return value.to_global(
            placement=self.placer.placement, sbp=target, grad_sbp=self.placer.sbp(back)
        )

    def _place_gradients(self, op: Op, received: Sequence[flow.Tensor]) -> None:
        """Convert the inputs' gradients, which OneFlow gives whole, to their planned placements."""
        placement = self.placer.placement
        for value, nd in zip(received, self.plan.stage.ops[op.name].grad_ins, strict=True):
            if nd is not None and value.requires_grad:
                sbp = self.placer.sbp(nd)
                value.register_hook(lambda g, sbp=sbp: g.to_global(placement=placement, sbp=sbp))

    def _compare_gradients(self, op: Op, received: Sequence[flow.Tensor]) -> None:
        """Note where OneFlow makes an input's gradient in another placement than planned.

        Its gradient functions have fewer signatures than the rules: none takes Partial, for one.
        """
        for value, nd in zip(received, self.plan.stage.ops[op.name].grad_ins, strict=True):
            if nd is not None and value.requires_grad:
                sbp = self.placer.sbp(nd)
                value.register_hook(
                    lambda g, sbp=sbp: self._compare(op, g, sbp, self.differing_backward)
                )

    def _compare(self, op: Op, value: flow.Tensor, sbp: list[Any], notes: list[str]) -> None:
        if list(value.sbp) != sbp:
            planned, inferred = (tuple(map(str, each)) for each in (sbp, value.sbp))
            notes.append(f"{op.name} ({op.kind}): planned {planned}, OneFlow infers {inferred}")

    def _placed(self, op: Op, value: flow.Tensor, sbp: list[Any]) -> flow.Tensor:
        self._compare(op, value, sbp, self.differing)
        same = list(value.sbp) == sbp
        return value if same else value.to_global(placement=self.placer.placement, sbp=sbp)


def _tensor_of(proxy: Any) -> flow.Tensor:
    return proxy.to(flow.Tensor) if hasattr(proxy, "to") and not _is_tensor(proxy) else proxy


def _is_tensor(value: Any) -> bool:
    return isinstance(value, flow.Tensor)


@dataclass
class Job:
    """A training job of a plan in lazy mode, and its example inputs (a whole batch)."""

    plan: Plan
    placer: Placer
    model: Replay
    inputs: list[flow.Tensor] = field(default_factory=list)

    @staticmethod
    def of(plan: Plan) -> Job:
        placer = Placer(plan)
        job = Job(plan, placer, Replay(plan, placer))
        whole = plan.graph if plan.micro_batches == 1 else plan.graph.with_batch(plan.batch)
        for op in inputs_of(plan):
            spec = whole.tensors[op.outputs[0]].spec
            job.inputs.append(placer.empty(spec.shape, spec.dtype, plan.stage.ops[op.name].outs[0]))
        return job

    def build(self) -> nn.Graph:
        """The graph with forward, backward and update, not yet compiled."""
        model = self.model
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer_maker(self.plan.optimizer, 1e-3)(trained)
        micro_batches, num_blocks = self.plan.micro_batches, len(self.plan.recomputed)

        class Training(nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.model = model
                for number in range(num_blocks):
                    block = getattr(self.model, f"block{number}")
                    block.to(nn.graph.GraphModule).activation_checkpointing = True
                self.add_optimizer(optimizer)
                if micro_batches > 1:
                    self.config.set_gradient_accumulation_steps(micro_batches)
                    # the mean is taken in the update, without a buffer of its own
                    self.config.allow_fuse_model_update_ops(True)

            def build(self, *inputs: flow.Tensor) -> flow.Tensor:
                loss = self.model(*inputs)
                loss.backward()
                # with an operator behind it, the loss' own collective runs in the computation's
                # order; else OneFlow gives up reusing memory after the last micro-batch
                return loss * 1.0

        graph = Training()
        graph.build_graph(*self.inputs)
        return graph
