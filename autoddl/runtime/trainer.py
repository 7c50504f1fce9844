"""What `autoddl.parallelize` gives to the user: a model in training, on this rank.

A rank walks through its stage's list of actions (`Plan.schedule`); a model on one mesh is a
pipeline of one stage. The lists of all stages are parts of one order of everything that happens, so
no two ranks wait for each other. An interleaved pipeline has several parts of the model on a stage,
which keep nothing in common: a parameter that two of them use is held by both, as by two stages.

All methods are called by all ranks of the job, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .._files import expect_callable
from ..graph.graph import Graph
from ..plans import Plan
from ..plans.stage_figures import stage_figures
from .backend import Backend, OptimizerFn, Tensor, check_computes
from .checkpoint.checkpoints import Checkpoints
from .checkpoint.shards import Shards
from .comm.groups import Groups
from .comm.passing import Passing
from .comm.tied import exchange_gradients
from .counting import Given, rows_of
from .emulate.emulate import Emulator
from .evaluation.evaluate import Evaluator
from .evaluation.scores import Metric, Scores
from .execution.walk import Walk
from .jobs.guard import inside
from .jobs.roll_call import RollCall, Said
from .measure.profile import Profile, Recorder, profiled
from .measure.training import Compared, StepWatch
from .part import Job, Part
from .traced import Traced
from .tracing.as_planned import AsPlanned
from .update.alike import Alike, subjects
from .update.loss_scale import LossScaler
from .update.update import Hook, Update
from .whole_state import WholeState


class Trainer:
    """Trains a model by a plan. `optimizer` is the user's, on this rank's (global) parameters."""

    def __init__(
        self,
        traced: Traced,
        plan: Plan,
        optimizer: OptimizerFn,
        backend: Backend,
        *,
        overlap: bool = True,
        debug: bool = False,
        emulate: bool = False,
        signal: bool = False,
        scaler: LossScaler | None = None,
        clip_grad_norm: float | None = None,
        ema_decay: float | None = None,
        on_nonfinite: str = "raise",
        ways: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        """The trainer of this rank.

        overlap: transfers between stages run beside computation
        debug:   check every tensor against its planned placement
        emulate: wait as long as the plan's prices say instead of computing
        signal:  of every copy between stages only one element travels, to see what transfers cost
        scaler:  scales the loss; by default a plan in float16 has one and others have none
        clip_grad_norm: the largest norm of the gradients (`update/clip.py`)
        ema_decay: of the averaged parameters, if any are kept (`update/average.py`)
        on_nonfinite: of `parallelize`; emulated results mean nothing and are not looked at
        ways:    of `Groups`
        """
        self.plan = plan
        check_computes(plan.precision, backend.facts)
        self._traced = traced
        self._backend = backend
        self._debug = debug
        world = (everyone := Groups(plan.cluster.mesh, backend.rank, backend)).world
        self.roll_call = RollCall(world, subjects(plan, len(traced.batches.slots)))
        # an emulated computation leaves the framework's one queue to the transfers
        beside = overlap and not emulate and plan.num_stages > 1
        self._job = job = Job.of(traced, plan, backend, emulate, beside, debug, ways)
        # debugging communicates more than was planned
        follows = overlap and not (emulate or signal or debug)
        self._watch = StepWatch(plan, job.groups, everyone, job.ranks, follows)
        self._parts = {v: Part(job, plan.stages[v]) for v in plan.parts_of(job.stage)}
        self._load()
        own = np.arange(plan.batch)[self.rows]
        self._given = Given(job.counting, plan.graph, plan.batch, len(own))
        # the framework would else go on computing, and transfer when nothing is left to compute
        passing = Passing(job, self._parts, blocks=not overlap, signal=signal)
        self._walk = Walk(job, self._parts, passing, hoists=overlap and emulate)
        self._watch.reshards = passing.reshards
        self._at, self._world = divmod(backend.rank, plan.cluster.gpus_per_node), world
        self._evaluator = Evaluator(job, self._parts, self._at)
        self._update = Update(
            job, self._parts, world, optimizer, scaler, clip_grad_norm, ema_decay,
            "ignore" if emulate or signal else on_nonfinite,
        )  # fmt: skip
        self.alike = Alike(job, self._update, world.size, looks=not (emulate or signal))
        self._whole = WholeState(traced, job, self._parts, self._update)
        self._checkpoints = Checkpoints(plan, Shards(traced, job, self._parts, self._update), world)
        self._planned = AsPlanned(traced, backend)

    def _load(self) -> None:
        """Place rank 0's values of all parameters and buffers that the model's operators read."""
        for op in self.plan.graph.ops:
            if op.kind in ("param", "buffer"):
                name = op.attrs["name"]
                whole = self._backend.broadcast(self._job.whole[name], 0)  # all ranks together
                for part in self._parts.values():
                    part.hold(name, whole)

    @property
    def graph(self) -> Graph:
        """The planned graph of the whole model, at the size of a micro-batch."""
        return self.plan.graph

    @property
    def stage(self) -> int:
        """This rank's."""
        return self._job.stage

    @property
    def is_main(self) -> bool:
        """True on the one rank that prints and saves."""
        return self._backend.rank == 0

    @property
    def steps(self) -> int:
        """Steps done so far, with those before the state that was loaded."""
        return self._job.run_state.step

    @property
    def optimizer(self) -> Any:
        """The user's optimizer of this rank's parameters.

        If all of them are frozen it has one number that nobody trains, so that schedulers work.
        """
        return self._update.optimizer.own

    @property
    def scaler(self) -> LossScaler | None:
        """What scales the loss."""
        return self._update.scaler

    @property
    def grad_norm(self) -> float | None:
        """The norm of the last step's gradients of the whole model, before they were clipped.

        Infinite if a scaled gradient was not finite, None without `clip_grad_norm`.
        """
        return self._update.grad_norm

    @property
    def skipped(self) -> int:
        """Steps that changed nothing, as their loss or gradients were not finite."""
        return self._update.skipped

    @property
    def measured(self) -> Mapping[str, Compared]:
        """What the first ten steps took, beside what the plan predicts; empty before.

        By name ("step", "computation", "communication between hosts", "memory", ...; in stages "...
        of stage 1") each has `predicted` and `measured`, in seconds or, of memory, bytes. What is
        off by more than 30 % the logger "autoddl" has said once, on rank 0.
        """
        return self._watch.measured

    @property
    def rows_per_second(self) -> float | None:
        """Rows of the global batch trained a second of late, by the median of twenty steps.

        The time from step to step counts, with the reading of data. None before the second step.
        """
        step_s = self._watch.step_s
        return None if step_s is None else self.plan.batch / step_s

    @property
    def emulator(self) -> Emulator | None:
        return self._job.emulator

    @property
    def rows(self) -> slice | np.ndarray:
        """The rows of the global batch that this rank reads: a slice, or their numbers.

        `step` takes the whole global batch, or only these rows of it. All rows if the stage has
        several parts.
        """
        if len(self._parts) > 1:
            return slice(0, self.plan.batch)
        return self._parts[self.stage].feed.rows

    def parameters(self) -> dict[str, Any]:
        """This rank's (global) parameters by name."""
        return {name: p for part in self._parts.values() for name, p in part.parameters.items()}

    # ---- training

    def after_backward(self, hook: Hook) -> Hook:
        """Call `hook(named)` in each step between the backward pass and the update.

        named: pairs (name, parameter) of this rank's trained parameters, as `named_parameters` of
               the model gives them, with `parameter.grad`: the gradient of the step's whole batch,
               exchanged between the ranks, and no longer scaled

        On several devices they are the framework's global tensors, each placed as planned:
        `parameter.grad.to_local()` is what this rank has of it, and every rank calls the hook. It
        may change `grad` in place, replace it by one that is placed alike, or set it to None, with
        which the optimizer passes the parameter over. Clipping comes after it. Hooks run in the
        order in which they were given, and not in steps whose scaled gradients are not finite,
        which update nothing. Gives `hook`, so that it can be a decorator.
        """
        expect_callable(hook, "a hook is a function of pairs (name, parameter)")
        self._update.hooks.append(hook)
        return hook

    @inside("step")
    def step(self, *batch: Any) -> Tensor:
        """Train on one global batch: the model's inputs, then the target. Gives the loss.

        Each is as in the example, a tensor or nested; a batch that is a dict is given as it is.

        The loss is a local scalar tensor, equal on all ranks. A batch may have fewer rows than the
        example, as the last one of a data set, and then counts as it would on one device, if it is
        given whole and the model takes each row by itself. Raises ValueError if it does not, or if
        the number of tensors, a dtype or a shape is not the example's.
        """
        self._checkpoints.check()
        self._planned.check(self.steps)
        tensors = self._traced.batches.flat("step", batch)
        filled = self._given.filled(tensors)
        for part in self._parts.values():
            part.take(tensors, filled and filled.rows)
        said = self.alike.in_step(tensors, self.rows)
        self._call_training("step", filled.rows if filled else 0, said)
        self._job.run_state.filled = filled
        work = self._watch.work
        self._watch.start()
        if self.emulator:
            self.emulator.clock.start()
        self._walk(self._update.scale, work)
        losses = [work(part.executor.finish) for part in self._parts.values()]
        states = {v: part.state for v, part in self._parts.items()}
        exchange_gradients(self.plan, states, self._job.ranks, self._job.groups)
        if self.emulator:
            self.emulator.finish()
        saw_hooks = lambda: self.roll_call.say_later(self.alike.gradients())  # noqa: E731
        health = self._update.run(losses[-1], saw_hooks)
        self._job.run_state.step += 1
        if health is not None:
            self.roll_call.report(self.steps, health)
        loss = self._share_loss(losses[-1])
        self._watch.end()
        if self._debug:
            self._say_first()
        return loss

    def _say_first(self) -> None:
        """In debug mode numbers that are not finite end the step itself, and their origin is named.

        A mask may be infinite: what is no number comes first.
        """
        found, self._job.run_state.nonfinite = self._job.run_state.nonfinite, {}
        first = found.get("nan") or found.get("inf")
        self.roll_call("checked", why=f"; first on this rank: {first}" if first else "")

    def _share_loss(self, loss: Tensor | None) -> Tensor:
        """The last part's loss, on every rank."""
        if self.plan.num_stages == 1:
            assert loss is not None, "the graph has no loss"
            return loss
        if loss is None:
            spec = self.graph.tensors[self.graph.loss].spec
            loss = self._backend.zeros((), spec.dtype)
        return self._backend.broadcast(loss, self._job.ranks[-1][0])

    def profile(self, batches: Iterable[Sequence[Any]]) -> Profile:
        """Train a step on each batch, as `step` does, and note when each of its tasks runs.

        The profile has the plan's tasks beside those of the median step on every rank: `print` it
        for where the time goes, `profile.save("trace.json")` for Perfetto. The first ten steps are
        disturbed, as they are timed otherwise. Raises ValueError for a plan in stages.
        """
        if self.plan.num_stages > 1 or len(self._parts) > 1:
            raise ValueError(
                "a profile is of a plan on one mesh; this one has stages, whose predicted timeline "
                "`autoddl plan --timeline FILE` writes"
            )
        (part,), job = self._parts.values(), self._job
        clock = job.emulator and job.emulator.clock
        recorder, plain = Recorder(job.groups, job.run_state, clock), part.executor
        part.executor = job.executor(part.plan.graph, part.plan, part.state, recorder=recorder)
        try:
            planned = stage_figures(part.plan).whole
            return profiled(self.step, batches, recorder, planned)
        finally:
            part.executor = plain
            recorder.close()

    # ---- evaluation and state

    def eval_step(self, *inputs: Any) -> Any:
        """The model's result in evaluation mode, of the structure it has there, on every rank.

        inputs: the model's inputs for a whole batch, the same on every rank; a dict, if the example
                is one, needs no more than the model takes

        Dropout is off, BatchNorm uses its moving statistics and nothing is learned. The batch may
        have another size than in training. Raises ValueError if the planned splits do not divide it
        and rows meet on the way to a result, or if the inputs do not fit the example's.
        """
        self._traced.evaluation.check()
        tensors: Sequence[Any] = inputs
        if self._traced.calling is not None:
            tensors = self._traced.calling.inputs("eval_step", inputs)
        rows = rows_of(self.graph, tensors, self.plan.batch)
        whole = self._evaluator.prepared(rows, tensors)
        self.roll_call("eval_step", rows, said=self.alike.in_evaluation(tensors))
        return self._traced.result(whole(), rows)

    def evaluate(
        self, batches: Iterable[Any], metrics: Mapping[str, Metric] | None = None
    ) -> dict[str, float]:
        """The loss ("loss") and metrics by name on a whole data set, in evaluation mode.

        batches: as `step` takes them, such as a DataLoader's: whole, the same on every rank, and of
                 any size
        metrics: name -> (output, target) -> a number, or a tensor of numbers such as
                 `output.argmax(-1) == target`: its mean counts as often as it has rows; or a pair
                 (sum, count), whose sums are divided in the end

        A loss that is a mean over rows is that of the whole data set, one that is divided by a sum
        of weights counts with these, and a sum is added up; any other counts with its rows. No rank
        has all results: those that compute them call the metrics on local tensors, each with its
        rows. Where the model gives other results than in training and the loss cannot take them,
        there is none: the metrics come alone. Raises ValueError if a batch does not fit the
        example, if there is none, no loss and no metric, or if rows of the batch meet in evaluation
        too and the plan's splits do not divide it.
        """
        self._traced.evaluation.check()
        return self._scores.of(
            batches, {} if metrics is None else metrics, self.roll_call, self.alike.in_evaluation
        )

    @cached_property
    def _scores(self) -> Scores:
        return Scores(self._traced, self._job, self._parts, self._at, self._world)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """`with trainer.averaged():` the parameters have their averaged values inside.

        `eval_step` and `state_dict` then work with these; what trains is refused. Buffers, such as
        BatchNorm's moving statistics, and frozen parameters are as they are. Raises ValueError if
        `parallelize` was given no ema_decay.
        """
        average = self._update.average
        if average is None:
            raise ValueError("no averages are kept; give parallelize an ema_decay, such as 0.999")
        self._call_training("averaged")
        with average.in_place():
            yield

    def ema_state_dict(self) -> dict[str, Tensor]:
        """`state_dict` with the averaged values of the parameters."""
        with self.averaged():
            return self.state_dict()

    def state_dict(self) -> dict[str, Tensor]:
        """The model's `state_dict`: whole values as local tensors, under the model's own names."""
        self.roll_call("state_dict", said=self.alike.parameters())
        whole = dict(self._whole.model())
        return {key: whole[name] for key, name in self._traced.keys.items()}

    def load_state_dict(self, values: Mapping[str, Tensor]) -> None:
        """Take over rank 0's values of what `state_dict` gives, or of the model's own.

        Raises ValueError if a name is missing or unknown, or a shape is another.
        """
        self._whole.check_model(values)
        self._call_training("load_state_dict")
        self._whole.set_model(values)

    @inside("save")
    def save(
        self, folder: str | Path, extra: Mapping[str, Any] | None = None, *,
        keep: int | None = None, wait: bool = True,
    ) -> None:  # fmt: skip
        """Write all that training goes on from into the checkpoint `step-N` in `folder`.

        extra: anything of JSON that `load` is to give back, such as a scheduler's `state_dict`
        keep:  remove all but so many of those written last; None keeps all
        wait:  False: only copy it in memory, and write while training goes on; what fails then is
               raised by this rank's next step or save

        Each rank writes its own shards; all hosts need to share the folder. A checkpoint has its
        name only when it is whole and on the disk. It has the model's values, the optimizer's state
        and options, averages, steps, dropout's seed and the loss scale. Raises ValueError on all
        ranks if it cannot be written.
        """
        self._call_training("save", said=self.alike.parameters())
        self._checkpoints.save(folder, extra, keep, wait)

    @inside("load")
    def load(self, folder: str | Path, *, missing_ok: bool = False) -> dict[str, Any] | None:
        """Go on from the whole checkpoint in `folder` that was written last, or that it is.

        Gives its `extra`. The plan may be any for the model: a rank reads what it needs of all
        shards. One that is broken (a warning names the file) is passed over for the one before.
        Averages that it does not have begin at its values. Raises ValueError on all ranks if none
        is whole, if there is none (but gives None with `missing_ok`), or if it is another model's
        or another kind of optimizer's.
        """
        self._call_training("load")
        extra = self._checkpoints.load(folder, missing_ok)
        self.alike.restart()
        return extra

    def _call_training(self, call: str, number: int = 0, said: Said | None = None) -> None:
        """A roll call for what needs the parameters as they are trained."""
        if self._update.average is not None and self._update.average.is_in_place:
            raise ValueError(f"{call} inside `with trainer.averaged()`: leave that block first")
        self.roll_call(call, number, said)
