"""Trains a model by a plan with stages: this rank runs its own stage's operators and transfers.

A rank walks through its stage's list of actions (`StagedPlan.schedule`). The lists of all stages
are parts of one order of everything that happens, so no two ranks wait for each other. An
interleaved pipeline has several parts of the model on a stage, which keep nothing in common: a
parameter that two of them use is held by both, as by two stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import oneflow as flow

from ...graph.rows import find_rows
from ...plans.links import Link
from ...plans.schedule.action import Action
from ...plans.schedule.hoist import hoisted
from ...plans.staged import StagedPlan
from ..jobs.guard import install_guard, rank
from .detach import detached
from .eval_batch import rows_of
from .executor import sent_key
from .groups import Groups
from .half import check_stages
from .kernels.registry import RunState
from .measure.emulate import Emulator
from .part import Part
from .pipeline_eval import PipelineEvaluator
from .redistribute import LocalFn, prepare
from .roll_call import RollCall
from .state import state_names
from .tied import exchange_gradients
from .trace.job.nested import put_tensors
from .trace.submodule import as_kernel
from .trace.trace import Traced
from .transfers import CommThread, Resharding
from .world import broadcast

OptimizerFn = Callable[[list[Any]], flow.optim.Optimizer]


class PipelineTrainer:
    """Trains a model by a plan with stages. All methods are called by all ranks, in one order."""

    def __init__(
        self,
        traced: Traced,
        plan: StagedPlan,
        optimizer: OptimizerFn,
        *,
        overlap: bool = True,
        debug: bool = False,
        emulate: bool = False,
        signal: bool = False,
    ) -> None:
        check_stages(plan.precision)
        self.plan = plan
        self._traced = traced
        device_kind = "cuda" if flow.cuda.is_available() else "cpu"
        gpus = plan.cluster.gpus_per_node
        self._world = Groups(plan.cluster.mesh, rank(), device_kind)
        self._roll_call = RollCall.of(self._world.along(range(plan.cluster.mesh.num_axes)))
        self._ranks = [stage.place.ranks(gpus) for stage in plan.stages]  # of each part
        self.stage = next(n for n, ranks in enumerate(self._ranks) if rank() in ranks)
        ranks = self._ranks[self.stage]
        assert ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
        place = plan.stages[self.stage].place
        self._groups = Groups(place.mesh, rank() - ranks[0], device_kind, ranks[0])
        self._run_state = RunState(plan.stages[0].plan.seed)
        model = plan.stages[self.stage].plan.model
        self.emulator = Emulator(model, self._groups) if emulate else None
        opaque = {name: as_kernel(call) for name, call in traced.opaque.items()}
        start = self._start_values()
        self._rows = find_rows(plan.cut.graph)
        self._rows.check(plan.micro_batches)
        self._parts = {
            v: Part(
                plan.stages[v].plan, plan.micro_batches, traced.model, start, self._groups,
                self._run_state, opaque, by_input=not plan.schedule.joint, debug=debug,
                emulator=self.emulator, rows=self._rows,
            )
            for v in plan.parts_of(self.stage)
        }  # fmt: skip
        # an emulated computation leaves OneFlow's one queue to the transfers
        self._thread = CommThread(overlap and not emulate)
        self._hoists = overlap and emulate
        # OneFlow would else go on computing, and transfer when nothing is left to compute
        self._blocks = not overlap
        at = (rank() // gpus, rank() % gpus)
        self._reshards: dict[tuple[Link, str], Resharding] = {}
        for link, plans in plan.travel.reshards.items():
            for direction, reshard in zip("FB", plans, strict=True):
                if reshard is not None and {link.source, link.target} & self._parts.keys():
                    self._reshards[link, direction] = Resharding(
                        reshard, at, gpus, device_kind, self._thread, signal=signal
                    )
        self._locals = self._local_links()
        self._evaluator = PipelineEvaluator(
            plan, self._parts, self._ranks, self._groups, self._run_state, opaque, at, self._thread
        )
        trained = [p for part in self._parts.values() for p in part.trained]
        self.optimizer = optimizer(trained) if trained else None

    def _start_values(self) -> dict[str, flow.Tensor]:
        """Rank 0's values of all parameters and buffers that the model's operators read."""
        read = {
            op.attrs["name"] for op in self.plan.cut.graph.ops if op.kind in ("param", "buffer")
        }
        start = {**self._traced.params, **self._traced.buffers}
        values = {}
        for name in sorted(read):  # all ranks together
            own = detached(start[name]).to(self._groups.device).clone()
            values[name] = broadcast(own, 0).requires_grad_(start[name].requires_grad)
        return values

    def _local_links(self) -> dict[Link, tuple[LocalFn, LocalFn | None]]:
        """What redistributes each tensor that goes from one part of this stage to another."""
        found = {}
        for link, (forward, backward) in self.plan.travel.local_paths.items():
            if link.source in self._parts:
                shape = self.plan.cut.graph.tensors[link.tensor].spec.shape
                out, into = self.plan.travel.ends(link)
                back = None
                if backward is not None:
                    assert into.grad_outs[0] is not None
                    back = prepare(backward, shape, into.grad_outs[0], self._groups)
                found[link] = prepare(forward, shape, out.ins[0], self._groups), back
        return found

    def parameters(self) -> dict[str, Any]:
        """The stage's global parameters by name."""
        return {name: p for part in self._parts.values() for name, p in part.parameters.items()}

    def step(self, *batch: flow.Tensor) -> flow.Tensor:
        """Train on one global batch, the model's inputs, then the target. Gives the loss.

        The loss is a local scalar tensor, equal on all ranks. Raises ValueError if the number of
        tensors, a dtype or a shape is not the example's.
        """
        read = (op.attrs["index"] for op in self.plan.cut.graph.ops if op.kind == "input")
        count = len(self._traced.examples) or max(read, default=-1) + 1
        if len(batch) != count:
            raise ValueError(
                f"step takes {count} tensors, as in the example: the model's inputs, then the "
                f"target; got {len(batch)}"
            )
        for part in self._parts.values():
            part.take(batch)
        self._roll_call("step")
        if self.emulator:
            self.emulator.clock.start()
        for part in self._parts.values():
            part.executor.begin([part.inputs[m] for m in sorted(part.inputs)])
        actions = self.plan.schedule.actions[self.stage]
        if self._hoists:
            actions = hoisted(actions, self.plan.schedule.joint, self._meets)
        for action in actions:
            self._do(action)
        losses = [part.executor.finish() for part in self._parts.values()]
        exchange_gradients(self.plan, self._parts, self._ranks, self._groups)
        if self.emulator:
            self.emulator.finish()
        if self.optimizer is not None:
            self.optimizer.step()
        self._run_state.step += 1
        return self._share_loss(losses[-1])

    def _meets(self, action: Action) -> bool:
        number = self.plan.schedule.part(self.stage, action.chunk)
        return action.kind in self._parts[number].meets

    def _do(self, action: Action) -> None:
        m, share = action.micro_batch, self._rows.share(self.plan.micro_batches)
        number = self.plan.schedule.part(self.stage, action.chunk)
        part = self._parts[number]
        if not action.is_compute:
            self._transfer(action, number)
        elif action.kind == "F":
            part.wait_for("F", m)
            part.sent[m] = part.executor.forward_pass(m, part.inputs.pop(m), share)
            part.compute_ends()
            for link, (forward, _) in self._locals.items():
                if link.source == number:
                    value = forward(part.sent[m][sent_key(link.tensor)])
                    self._parts[link.target].inputs[m][link.tensor] = value
        elif action.kind == "B":
            part.wait_for("B", m)
            delays = not self.plan.schedule.joint
            returned = part.returned.pop(m)
            part.gradients[m] = part.executor.backward_pass(m, returned, share, delays)
            part.compute_ends()
            for link, (_, backward) in self._locals.items():
                if link.target == number and backward is not None:
                    value = backward(part.gradients[m][link.tensor])
                    self._parts[link.source].give_back(m, link.tensor, value)
        elif not self.plan.schedule.joint:
            part.executor.weights_pass(m)
            part.compute_ends()

    def _transfer(self, action: Action, number: int) -> None:
        """The tensors between the action's two parts, as far as they travel at all."""
        m, part = action.micro_batch, self._parts[number]
        peer = self.plan.schedule.part(action.peer, action.peer_chunk)
        ends = min(number, peer), max(number, peer)
        direction = action.kind[1]
        for link in self.plan.travel.links:
            run = self._reshards.get((link, direction))
            if (link.source, link.target) != ends or run is None:
                continue
            if action.kind == "SF":
                run.send(part.sent[m][sent_key(link.tensor)])
            elif action.kind == "RF":
                part.inputs[m][link.tensor] = part.receive("F", m, run)
            elif action.kind == "SB":
                run.send(part.gradients[m][link.tensor])
            else:
                part.give_back(m, link.tensor, part.receive("B", m, run))
        if self._blocks:
            part.wait_for_transfers()

    def _share_loss(self, loss: flow.Tensor | None) -> flow.Tensor:
        """The last part's loss, on every rank."""
        spec = self.plan.cut.graph.tensors[self.plan.cut.graph.loss].spec
        shared = flow.zeros(1, dtype=getattr(flow, spec.dtype), device=self._groups.device)
        if loss is not None:
            shared = loss.reshape(1).clone()
        return broadcast(shared, self._ranks[-1][0]).reshape(())

    def eval_step(self, *inputs: flow.Tensor) -> Any:
        """The model's result, whole on every rank, in evaluation mode.

        inputs: the model's inputs for a whole batch, the same on every rank

        As `Trainer.eval_step`: batches may have another size, as long as the planned splits divide
        it. Raises ValueError if they do not, or if the inputs do not fit the example's.
        """
        limit = max(len(self._traced.examples) - 1, 0)
        if limit and len(inputs) > limit:
            raise ValueError(f"eval_step takes the model's {limit} inputs, got {len(inputs)}")
        rows = rows_of(self.plan.cut.graph, inputs, self.plan.batch)
        whole = self._evaluator.prepared(rows, inputs)
        self._roll_call("eval_step")
        return put_tensors(self._traced.structure, whole())

    @property
    def rows(self) -> slice | np.ndarray:
        """The rows of the global batch that this rank reads: a slice, or their numbers.

        All rows if the stage has several parts.
        """
        if len(self._parts) > 1:
            return slice(0, self.plan.batch)
        return self._parts[self.stage].feed.rows

    def load_state_dict(self, values: Mapping[str, flow.Tensor]) -> None:
        """Take over rank 0's values of what `state_dict` gives, or of the model's own.

        Raises ValueError if a name is missing or unknown, or a shape is another.
        """
        names, own = self._names(), self._model_state()
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        for key in names:
            if tuple(values[key].shape) != tuple(own[key].shape):
                raise ValueError(
                    f"{key}: expected shape {tuple(own[key].shape)}, got {tuple(values[key].shape)}"
                )
        self._roll_call("load_state_dict")
        for key, name in names.items():
            if key == name:
                flat = detached(values[key]).to(self._groups.device).reshape(-1).clone()
                value = broadcast(flat, 0).reshape(*values[key].shape)
                for part in self._parts.values():
                    part.state.set(name, value)

    def state_dict(self) -> dict[str, flow.Tensor]:
        """The model's `state_dict`: whole values as local tensors, under the model's own names."""
        self._roll_call("state_dict")
        names, own = self._names(), self._model_state()
        owner: dict[str, int] = {}
        for n, stage in enumerate(self.plan.stages):
            for op in stage.plan.graph.ops:
                if op.kind in ("param", "buffer"):
                    owner.setdefault(op.attrs["name"], n)
        whole = {}
        for name in dict.fromkeys(names.values()):
            value = own[name]
            # BatchNorm's counter is no operator; it is where the moving mean is
            number = owner.get(name, owner.get(f"{name.rpartition('.')[0]}.running_mean"))
            if number is not None:
                part = self._parts.get(number)
                value = flow.zeros_like(value) if part is None else part.state.get(name)
                sent = value.reshape(-1).contiguous()
                value = broadcast(sent, self._ranks[number][0]).reshape(*value.shape)
            whole[name] = value
        return {key: whole[name] for key, name in names.items()}

    def _names(self) -> dict[str, str]:
        if self._traced.model is not None:
            return state_names(self._traced.model)
        return {name: name for name in {**self._traced.params, **self._traced.buffers}}

    def _model_state(self) -> Mapping[str, flow.Tensor]:
        if self._traced.model is not None:
            return self._traced.model.state_dict()
        return {**self._traced.params, **self._traced.buffers}


def build_pipeline_trainer(
    traced: Traced,
    plan: StagedPlan,
    optimizer: OptimizerFn,
    *,
    overlap: bool = True,
    debug: bool = False,
    emulate: bool = False,
    signal: bool = False,
) -> PipelineTrainer:
    """The trainer of this rank. All ranks of the job call it; it installs the guard.

    overlap: transfers run beside computation, on a thread of OneFlow's own
    emulate: waits as long as the plan's prices say instead of computing; results then mean nothing
    signal:  of every copy between stages only one element travels, to see what transfers cost
    """
    install_guard()
    return PipelineTrainer(
        traced,
        plan,
        optimizer,
        overlap=overlap,
        debug=debug,
        emulate=emulate,
        signal=signal,
    )
