"""Trains a model by a plan with stages: this rank runs its own stage's operators and transfers.

A rank walks through its stage's list of actions (`StagedPlan.schedule`). The lists of all stages
are parts of one order of everything that happens, so no two ranks wait for each other. Backward
passes run as one: of a schedule that delays the weights' half, W does nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import oneflow as flow

from ...pipeline.action import Action
from ...plans import Plan
from ...staged_plan import Link, StagedPlan
from .detach import detached
from .executor import Executor, Values, sent_key
from .feed import Feed
from .groups import Groups
from .guard import install_guard, rank
from .kernels.registry import RunState
from .program import Key, compile_program
from .redistribute import prepare
from .roll_call import RollCall
from .routes import to_broadcast
from .state import ModelState, from_rank_0, set_gradient, shard, state_names
from .submodule import as_kernel
from .trace import Traced
from .transfers import CommThread, Resharding

_STATE_KINDS = ("param", "buffer")
OptimizerFn = Callable[[list[Any]], flow.optim.Optimizer]


class StageExecutor(Executor):
    """One rank's run of its stage's program, pass by pass."""

    def begin(self) -> None:
        """Start an iteration."""
        self._run_state.training = True
        self._parameters = self._fetch_parameters()
        self._gradients: dict[Key, flow.Tensor] = {}
        self._open: dict[int, tuple[list, flow.Tensor | None]] = {}
        self._losses: list[flow.Tensor] = []

    def forward_pass(self, number: int, inputs: Values, share: float) -> Values:
        """Micro-batch `number`; gives the tensors that the stage sends on."""
        self._run_state.micro_batch = number
        records, values, loss = self._forward(inputs, self._parameters, with_gradient=True)
        self._open[number] = records, loss
        if loss is not None:
            self._losses.append(loss * share)
        return values

    def backward_pass(self, number: int, returned: Mapping[str, Any], share: float) -> Values:
        """Both halves; gives the gradients of the tensors that the stage has received."""
        self._run_state.micro_batch = number
        records, loss = self._open.pop(number)
        return self._backward(records, loss, share, self._gradients, returned)

    def finish(self) -> flow.Tensor | None:
        """Set the parameters' gradients; the sum of the losses, if the stage has the loss."""
        self._send_gradients(self._gradients)
        total = None
        for loss in self._losses:
            total = loss if total is None else total + loss
        return total


class PipelineTrainer:
    """Trains a model by a plan with stages. All methods are called by all ranks, in one order."""

    def __init__(
        self, traced: Traced, plan: StagedPlan, optimizer: OptimizerFn, *,
        per_shard_batchnorm: bool = False, overlap: bool = True, debug: bool = False,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._traced = traced
        device_kind = "cuda" if flow.cuda.is_available() else "cpu"
        gpus = plan.cluster.gpus_per_node
        self._world = Groups(plan.cluster.mesh, rank(), device_kind)
        self._roll_call = RollCall.of(self._world.along(range(plan.cluster.mesh.num_axes)))
        self._ranks = [stage.place.ranks(gpus) for stage in plan.stages]
        self.stage = next(n for n, ranks in enumerate(self._ranks) if rank() in ranks)
        ranks = self._ranks[self.stage]
        assert ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))
        mine = plan.stages[self.stage]
        self._groups = Groups(mine.plan.mesh, rank() - ranks[0], device_kind, ranks[0])
        self._run_state = RunState(
            plan.stages[0].plan.seed, per_shard_batchnorm=per_shard_batchnorm
        )
        self._state = ModelState(self._groups, traced.model)
        self._parameters: dict[str, Any] = {}
        self._place(mine.plan)
        opaque = {name: as_kernel(call) for name, call in traced.opaque.items()}
        self._feed = Feed(mine.plan.graph, mine.plan.ops, plan.micro_batches, self._groups)
        program = compile_program(
            mine.plan.graph, mine.plan.ops, mine.plan.edges, self._groups, self._run_state, opaque
        )
        self._executor = StageExecutor(program, self._state, self._run_state, self._groups, debug)
        place = (rank() // gpus, rank() % gpus)
        thread = CommThread(overlap)
        self._reshards: dict[tuple[Link, str], Resharding] = {}
        for link, plans in plan.reshards.items():
            for direction, reshard in zip("FB", plans, strict=True):
                if reshard is not None and self.stage in (link.source, link.target):
                    self._reshards[link, direction] = Resharding(
                        reshard, place, gpus, device_kind, thread
                    )
        trained = [p for p in self._parameters.values() if p.requires_grad]
        self.optimizer = optimizer(trained) if trained else None

    def _place(self, plan: Plan) -> None:
        """Put the stage's parameters and buffers where its plan has them; rank 0's values."""
        read = {op.attrs["name"] for op in self.plan.cut.graph.ops if op.kind in _STATE_KINDS}
        start = {**self._traced.params, **self._traced.buffers}
        values = {}
        for name in sorted(read):  # all ranks together
            own = detached(start[name]).to(self._groups.device).clone()
            values[name] = _broadcast(own, 0).requires_grad_(start[name].requires_grad)
        for op in plan.graph.ops:
            if op.kind in _STATE_KINDS:
                name, (nd,) = op.attrs["name"], plan.ops[op.name].outs
                if op.kind == "param":
                    self._parameters[name] = self._state.add_parameter(name, values[name], nd)
                else:
                    self._state.add_buffer(name, values[name], nd)

    def parameters(self) -> dict[str, Any]:
        """The stage's global parameters by name."""
        return dict(self._parameters)

    def step(self, *batch: flow.Tensor) -> flow.Tensor:
        """Train on one global batch, the model's inputs, then the target. Gives the loss.

        The loss is a local scalar tensor, equal on all ranks.
        """
        count = len(self._traced.examples) or self._feed.num_arguments
        if len(batch) != count:
            raise ValueError(
                f"step takes {count} tensors, as in the example: the model's inputs, then the "
                f"target; got {len(batch)}"
            )
        inputs = self._feed.take(batch)
        self._roll_call("step")
        self._executor.begin()
        sent: dict[int, Values] = {}
        gradients: dict[int, Values] = {}
        returned: list[Values] = [{} for _ in inputs]
        for action in self.plan.schedule.actions[self.stage]:
            self._do(action, inputs, sent, gradients, returned)
        loss = self._executor.finish()
        self._exchange_gradients()
        if self.optimizer is not None:
            self.optimizer.step()
        self._run_state.step += 1
        return self._share_loss(loss)

    def _do(
        self,
        action: Action,
        inputs: list[Values],
        sent: dict[int, Values],
        gradients: dict[int, Values],
        returned: list[Values],
    ) -> None:
        m, share = action.micro_batch, 1.0 / self.plan.micro_batches
        if action.kind == "F":
            sent[m] = self._executor.forward_pass(m, inputs[m], share)
            inputs[m] = {}
        elif action.kind == "B":
            gradients[m] = self._executor.backward_pass(m, returned[m], share)
            returned[m] = {}
        elif action.kind != "W":
            direction = action.kind[1]
            for link in self._links(action, direction):
                run = self._reshards.get((link, direction))
                if run is None:  # a tensor without a gradient
                    continue
                if action.kind == "SF":
                    run.send(sent[m][sent_key(link.tensor)])
                elif action.kind == "RF":
                    inputs[m][link.tensor] = run.receive()
                elif action.kind == "SB":
                    run.send(gradients[m][link.tensor])
                else:
                    given = run.receive()
                    known = returned[m].get(link.tensor)
                    returned[m][link.tensor] = given if known is None else known + given

    def _links(self, action: Action, direction: str) -> list[Link]:
        """The tensors that travel in a transfer."""
        ends = (self.stage, action.peer) if action.is_send else (action.peer, self.stage)
        source, target = ends if direction == "F" else ends[::-1]
        return [x for x in self.plan.links if (x.source, x.target) == (source, target)]

    def _exchange_gradients(self) -> None:
        """Add up the gradients of tied parameters over the stages that hold them."""
        tensors = self.plan.cut.graph.producers
        for tensor, stages in sorted(self.plan.shared_params.items()):
            name = tensors[tensor].attrs["name"]
            holds = self.stage in stages
            whole = None
            if holds:
                stored = self._state.stored[name]
                local = stored.parameter.grad
                local = local.to_local() if local.is_global else local
                whole = prepare(to_broadcast(stored.nd), stored.shape, stored.nd, self._groups)(
                    local
                )
            first = self._ranks[stages[0]][0]
            heads = [self._ranks[s][0] for s in stages[1:]]
            if rank() == first:
                assert whole is not None
                for head in heads:
                    whole = whole + flow.comm.recv(
                        head, shape=tuple(whole.shape), dtype=whole.dtype,
                        device=flow.device(self._groups.device),
                    )  # fmt: skip
                for head in heads:
                    flow.comm.send(whole, head, send_meta=False)
            elif rank() in heads:
                assert whole is not None
                flow.comm.send(whole, first, send_meta=False)
                whole = flow.comm.recv(
                    first, shape=tuple(whole.shape), dtype=whole.dtype,
                    device=flow.device(self._groups.device),
                )  # fmt: skip
            if holds:
                assert whole is not None
                stored = self._state.stored[name]
                summed = from_rank_0(whole, self._groups)
                set_gradient(stored, shard(summed, stored.nd, self._groups))

    def _share_loss(self, loss: flow.Tensor | None) -> flow.Tensor:
        """The last stage's loss, on every rank."""
        spec = self.plan.cut.graph.tensors[self.plan.cut.graph.loss].spec
        shared = flow.zeros(1, dtype=getattr(flow, spec.dtype), device=self._groups.device)
        if loss is not None:
            shared = loss.reshape(1).clone()
        return _broadcast(shared, self._ranks[-1][0]).reshape(())

    @property
    def rows(self) -> Any:
        """The rows of the global batch that this rank reads: a slice, or their numbers."""
        return self._feed.rows

    def load_state_dict(self, values: Mapping[str, flow.Tensor]) -> None:
        """Take over rank 0's values of what `state_dict` gives, or of the model's own.

        Raises ValueError if a name is missing or unknown, or a shape is another.
        """
        assert self._traced.model is not None
        names = state_names(self._traced.model)
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        if missing or unknown:
            raise ValueError(
                f"the state does not fit the model: missing {missing[:5]}, unknown {unknown[:5]}"
            )
        own = self._traced.model.state_dict()
        for key in names:
            if tuple(values[key].shape) != tuple(own[key].shape):
                raise ValueError(
                    f"{key}: expected shape {tuple(own[key].shape)}, got {tuple(values[key].shape)}"
                )
        self._roll_call("load_state_dict")
        for key, name in names.items():
            if key == name:
                flat = detached(values[key]).to(self._groups.device).reshape(-1).clone()
                self._state.set(name, _broadcast(flat, 0).reshape(*values[key].shape))

    def state_dict(self) -> dict[str, flow.Tensor]:
        """The model's `state_dict`: whole values as local tensors, under the model's own names."""
        self._roll_call("state_dict")
        assert self._traced.model is not None
        names = state_names(self._traced.model)
        owner: dict[str, int] = {}
        for n, stage in enumerate(self.plan.stages):
            for op in stage.plan.graph.ops:
                if op.kind in ("param", "buffer"):
                    owner.setdefault(op.attrs["name"], n)
        own = self._traced.model.state_dict()
        whole = {}
        for name in dict.fromkeys(names.values()):
            value = own[name]
            # BatchNorm's counter is no operator; it is where the moving mean is
            stage = owner.get(name, owner.get(f"{name.rpartition('.')[0]}.running_mean"))
            if stage is not None:
                mine = stage == self.stage
                value = self._state.get(name) if mine else flow.zeros_like(value)
                sent = value.reshape(-1).contiguous()
                value = _broadcast(sent, self._ranks[stage][0]).reshape(*value.shape)
            whole[name] = value
        return {key: whole[name] for key, name in names.items()}


def _broadcast(value: flow.Tensor, source: int) -> flow.Tensor:
    """Rank `source`'s value, on every rank; `value` is overwritten."""
    if flow.env.get_world_size() > 1:
        flow.comm.broadcast(value, source)
    return value


def build_pipeline_trainer(
    traced: Traced,
    plan: StagedPlan,
    optimizer: OptimizerFn,
    *,
    per_shard_batchnorm: bool = False,
    overlap: bool = True,
    debug: bool = False,
) -> PipelineTrainer:
    """The trainer of this rank. All ranks of the job call it; it installs the guard.

    overlap: transfers run beside computation, on a thread of OneFlow's own
    """
    install_guard()
    return PipelineTrainer(
        traced,
        plan,
        optimizer,
        per_shard_batchnorm=per_shard_batchnorm,
        overlap=overlap,
        debug=debug,
    )
