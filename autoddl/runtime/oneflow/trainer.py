"""What `autoddl.parallelize` gives to the user: a model in training, on this rank.

All methods are called by all ranks of the job, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oneflow as flow

from ...cost.model import CostModel
from ...graph.graph import Graph
from ...graph.rows import find_rows
from ...plans import Plan
from ..jobs.guard import install_guard, rank
from .eval_batch import Sized, check_divides, micro_batches_in, rows_of
from .executor import Executor
from .feed import Feed
from .groups import Groups
from .half import check_device
from .kernels.registry import RunState
from .loss_scale import LossScaler
from .measure.emulate import Emulator
from .program import compile_program, needed_ops
from .redistribute import prepare
from .roll_call import RollCall
from .routes import to_broadcast
from .state import ModelState, state_names
from .trace.job.nested import put_tensors
from .trace.submodule import as_kernel
from .trace.trace import Traced

OptimizerFn = Callable[[list[Any]], flow.optim.Optimizer]


class Trainer:
    """Trains a model by a plan. `optimizer` is the user's, on this rank's (global) parameters."""

    def __init__(
        self,
        traced: Traced,
        plan: Plan,
        optimizer: OptimizerFn,
        *,
        debug: bool = False,
        emulate: CostModel | None = None,
        scaler: LossScaler | None = None,
    ) -> None:
        check_device(plan.precision)
        self.plan = plan
        if scaler is None and plan.precision != "float32":
            scaler = LossScaler()
        self.scaler = scaler
        self._traced = traced
        self._debug = debug
        self._groups = Groups(plan.mesh, rank(), "cuda" if flow.cuda.is_available() else "cpu")
        self._world = self._groups.along(range(plan.mesh.num_axes))
        self._roll_call = RollCall.of(self._world)
        self._run_state = RunState(plan.seed)
        self.emulator = None if emulate is None else Emulator(emulate, self._groups)
        self._opaque = {name: as_kernel(call) for name, call in traced.opaque.items()}
        self._state, self._parameters = _place(traced, plan, self._groups)
        self._feed = Feed(plan.graph, plan.ops, plan.micro_batches, self._groups)
        self._rows = find_rows(plan.graph)
        self._rows.check(plan.micro_batches)
        self._executor = self._make_executor(plan.graph, None)
        self._evaluators: dict[int, tuple[Feed, Executor]] = {}
        self.optimizer = optimizer([p for p in self._parameters.values() if p.requires_grad])
        if not isinstance(self.optimizer, flow.optim.Optimizer):
            raise ValueError(
                "optimizer must be a function from a list of parameters to a oneflow optimizer, "
                f"e.g. lambda p: flow.optim.SGD(p, lr=0.1); it gave {type(self.optimizer).__name__}"
            )

    @property
    def graph(self) -> Graph:
        """The planned graph, at the size of a micro-batch."""
        return self.plan.graph

    @property
    def rows(self) -> slice | np.ndarray:
        """The rows of the global batch that this rank reads: a slice, or their numbers.

        `step` takes the whole global batch, or only these rows of it.
        """
        return self._feed.rows

    def parameters(self) -> dict[str, Any]:
        """The global parameters by name."""
        return dict(self._parameters)

    def step(self, *batch: flow.Tensor) -> flow.Tensor:
        """Train on one global batch: the model's inputs, then the target. Gives the loss.

        The loss is a local scalar tensor, equal on all ranks. Raises ValueError if the number of
        tensors, a dtype or a shape is not the example's.
        """
        count = len(self._traced.examples) or self._feed.num_arguments
        if len(batch) != count:
            raise ValueError(
                f"step takes {count} tensors, as in the example: the model's inputs, then the "
                f"target; got {len(batch)}"
            )
        micro_batches = self._feed.take(batch)
        self._roll_call("step")
        if self.emulator:
            self.emulator.clock.start()
        loss = self._executor.train(micro_batches, self.scaler.scale if self.scaler else 1.0)
        if self.emulator:
            self.emulator.finish()
        if self.scaler is None or self.scaler.unscale(self._state.gradients(), self._world):
            self.optimizer.step()
        if self._debug:
            self._state.check_parameters()
        self._run_state.step += 1
        return loss

    def eval_step(self, *inputs: flow.Tensor) -> Any:
        """The model's result, whole on every rank, in evaluation mode.

        inputs: the model's inputs for a whole batch, the same on every rank

        Dropout is off, BatchNorm uses its moving statistics and nothing is learned. The batch may
        have another size than in training, as long as the planned splits divide it. Raises
        ValueError if they do not, or if the inputs do not fit the example's.
        """
        limit = max(len(self._traced.examples) - 1, 0)
        if limit and len(inputs) > limit:
            raise ValueError(f"eval_step takes the model's {limit} inputs, got {len(inputs)}")
        feed, executor = self._evaluator(rows_of(self.graph, inputs, self.plan.batch))
        parts = feed.take(inputs)
        self._roll_call("eval_step")
        chunks = [self._outputs(executor, part) for part in parts]
        whole = [
            chunk[0] if len(chunk) == 1 else flow.cat(list(chunk), dim=self._output_dims[i])
            for i, chunk in enumerate(zip(*chunks, strict=True))
        ]
        return put_tensors(self._traced.structure, whole)

    def state_dict(self) -> dict[str, flow.Tensor]:
        """The model's `state_dict`: whole values as local tensors, under the model's own names."""
        self._roll_call("state_dict")
        names = self._names()
        whole = {name: self._state.get(name) for name in dict.fromkeys(names.values())}
        return {key: whole[name] for key, name in names.items()}

    def load_state_dict(self, values: Mapping[str, flow.Tensor]) -> None:
        """Take over rank 0's values of what `state_dict` gives, or of the model's own.

        Raises ValueError if a name is missing or unknown, or a shape is another.
        """
        names = self._names()
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        for key, name in names.items():
            expected = self._state.shape(name)
            if tuple(values[key].shape) != expected:
                raise ValueError(
                    f"{key}: expected shape {expected}, got {tuple(values[key].shape)}"
                )
        self._roll_call("load_state_dict")
        for key, name in names.items():
            if key == name:
                self._state.set(name, values[key])

    def _names(self) -> Mapping[str, str]:
        if self._traced.model is not None:
            return state_names(self._traced.model)
        return {name: name for name in self._state.stored if not name.startswith("#")}

    # ---- evaluation

    @property
    def _output_dims(self) -> list[int]:
        """The batch dim of each output."""
        tensors = self.graph.tensors
        return [tensors[name].batch_dims[0] for name in self.graph.outputs]

    def _evaluator(self, batch: int) -> tuple[Feed, Executor]:
        """What runs a batch of this size: in parts like the micro-batches, or else all at once."""
        if batch not in self._evaluators:
            graph, wanted = self.graph, frozenset(self.graph.outputs)
            parts = micro_batches_in(graph, batch)
            if parts is None:
                check_divides([Sized(graph, self.plan.ops, self.plan.mesh, wanted)], batch)
                graph, parts = graph.with_batch(batch), 1
            feed = Feed(graph, self.plan.ops, parts, self._groups, needed_ops(graph, wanted))
            self._evaluators[batch] = feed, self._make_executor(graph, wanted)
        return self._evaluators[batch]

    def _outputs(self, executor: Executor, part: dict[str, flow.Tensor]) -> list[flow.Tensor]:
        graph = executor.graph
        gathered = []
        for name, x in zip(graph.outputs, executor.evaluate(part, graph.outputs), strict=True):
            op = graph.producers[name]
            nd = self.plan.ops[op.name].outs[op.outputs.index(name)]
            shape = graph.tensors[name].spec.shape
            gathered.append(prepare(to_broadcast(nd), shape, nd, self._groups)(x))
        return gathered

    def _make_executor(self, graph: Graph, wanted: frozenset[str] | None) -> Executor:
        program = compile_program(
            graph,
            self.plan.ops,
            self.plan.edges,
            self._groups,
            self._run_state,
            self._opaque,
            wanted,
            self.plan.recomputed,
            scales=self._rows.scales(self.plan.micro_batches) if wanted is None else None,
        )
        if self.emulator:
            self.emulator.replace(program)
        rows = None if self.emulator else self._rows
        return Executor(program, self._state, self._run_state, self._groups, self._debug, rows)


def _place(traced: Traced, plan: Plan, groups: Groups) -> tuple[ModelState, dict[str, Any]]:
    """Put parameters and buffers where the plan has them."""
    state = ModelState(groups, traced.model)
    parameters = {}
    for op in plan.graph.ops:
        if op.kind not in ("param", "buffer"):
            continue
        name, (nd,) = op.attrs["name"], plan.ops[op.name].outs
        if op.kind == "param":
            parameters[name] = state.add_parameter(name, traced.params[name], nd)
        else:
            state.add_buffer(name, traced.buffers[name], nd)
    return state, parameters


def build_trainer(
    traced: Traced,
    plan: Plan,
    optimizer: OptimizerFn,
    *,
    debug: bool = False,
    emulate: CostModel | None = None,
    scaler: LossScaler | None = None,
) -> Trainer:
    """The trainer of this rank. All ranks of the job call it; it installs the guard.

    scaler:  scales the loss; by default a plan in float16 has one and others have none
    emulate: waits as long as these prices say instead of computing; results then mean nothing
    """
    install_guard()
    return Trainer(
        traced,
        plan,
        optimizer,
        debug=debug,
        emulate=emulate,
        scaler=scaler,
    )
