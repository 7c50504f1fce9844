"""`autoddl train`: a model by name, trained by one process per device of the cluster.

The data is made up (`synthetic`), from the seed, so that each rank makes the same batches.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..api import parallelize
from ..api import plan as plan_graph
from ..cluster.spec import Cluster
from ..planner.options import DEFAULTS, PlanOptions
from ..plans import Plan
from ..plans.figures import figures
from ..plans.report.machine import estimates_notes
from ..runtime.backend import check_computes
from ..runtime.framework import framework_of_entry
from ..runtime.jobs.guard import install_guard, rank
from ..runtime.jobs.launch import crowd, is_launched, run_processes, starts_again
from ..runtime.traced import OpaqueWarning
from .at_work import at_work
from .synthetic import synthetic_batches

_EMA_DECAY = 0.999  # of `--ema`, common in training loops: chosen, not measured
_PROFILED = 3  # steps, of which the trace shows the median one
_EVERY = 50  # steps between checkpoints
_KEPT = 2  # checkpoints: the newest may be found broken


@dataclass(frozen=True)
class TrainJob:
    """What to train and how; `model` is module:function.

    plan_file: None for a new plan with these options; a plan in a file has its own, and takes only
               the seed and the optimizer of these
    profile:   a file for the trace of a step; None for none
    checkpoint: the folder of checkpoints to go on from, and to write more into; None for none
    every:     steps between them; one is written at the end, too
    max_restarts: how often a job that fails starts again, from the last checkpoint
    """

    model: str
    cluster: Cluster
    plan_file: str | None = None
    steps: int = 10
    lr: float = 1e-3
    batch: int | None = None
    options: PlanOptions = DEFAULTS
    profile: str | None = None
    checkpoint: str | None = None
    every: int | None = None
    max_restarts: int = 0

    def __post_init__(self) -> None:
        if Path(self.model).is_file():
            raise ValueError(
                f"{self.model} is a file, and a model is needed here: module:function, or a name "
                "that 'autoddl models' lists; a plan is given as --plan FILE"
            )
        own = [name for name in self.options.changed if name not in ("seed", "optimizer")]
        if self.plan_file is not None and own:
            raise ValueError(
                f"the plan in {self.plan_file} has its own {' and '.join(own)}; leave "
                f"{'it' if len(own) == 1 else 'them'} or --plan out"
            )
        if not (math.isfinite(self.lr) and self.lr >= 0):
            raise ValueError(f"--lr is a number from 0 on, got {self.lr}")
        if self.checkpoint is None and (self.every or self.max_restarts):
            raise ValueError("--every and --max-restarts need --checkpoint, a folder to go on from")

    def command(self, folder: str) -> list[str]:
        """The arguments of a rank, with the plan and the cluster from files in `folder`."""
        options = {
            "--cluster": f"{folder}/cluster.json",
            "--plan": f"{folder}/plan.json",
            "--steps": self.steps,
            "--lr": self.lr,
            "--optimizer": self.options.optimizer,
            "--seed": self.options.seed,
        }
        if self.batch is not None:
            options["--batch"] = self.batch
        if self.profile is not None:
            options["--profile"] = self.profile
        if self.checkpoint is not None:
            options |= {"--checkpoint": self.checkpoint, "--every": self.every or _EVERY}
        words = [str(word) for option in options.items() for word in option]
        return ["-m", "autoddl", "train", self.model, *words]

    def crowd(self) -> str:
        """ "32 processes on 2 cores" if the job would start so many here that they crawl."""
        return "" if is_launched() else crowd(self.cluster.num_devices)


def train(job: TrainJob, look: Callable[[], Cluster] | None = None) -> int:
    """Train, and give the exit status of the job.

    A process that a launcher has started as a rank is that rank. Any other makes sure that the plan
    fits the model and the cluster, and starts one process per device. A job that fails is started
    again, and goes on from its last checkpoint, on what `look` then finds of the cluster:
    if that has changed, by a new plan. Ctrl-C and SIGTERM end it for good.
    """
    launched = is_launched()
    if launched or (job.cluster.num_devices == 1 and not job.max_restarts):
        train_rank(job)
        return 0
    plan, status = _checked_plan(job), 0
    for left in range(job.max_restarts, -1, -1):
        status = _run(job, plan)
        if not starts_again(status, left):
            break
        now = job.cluster if look is None else look()
        if now != job.cluster:
            job = replace(job, cluster=now, plan_file=None)
            plan = _checked_plan(job)
            print(f"planned anew for {now}", file=sys.stderr)
    return status


def _run(job: TrainJob, plan: Plan) -> int:
    """Start one process per device; the status of the job."""
    print(f"starting {job.cluster.num_devices} processes", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="autoddl-") as folder:
        plan.save(Path(folder) / "plan.json")
        job.cluster.save(Path(folder) / "cluster.json")
        return run_processes(
            job.command(folder),
            job.cluster.num_devices,
            prefix=False,
            overlaps=any(stage.buckets or stage.turns for stage in plan.stages)
            or len(plan.stages) > 1,
        )


def train_rank(job: TrainJob) -> None:
    """The part of one rank. Rank 0 prints the losses."""
    install_guard()
    own = framework_of_entry(job.model, "autoddl train")
    if job.plan_file is not None:  # making or checking the plan has said it
        warnings.simplefilter("ignore", OpaqueWarning)
    plan = None if job.plan_file is None else Plan.load(job.plan_file)
    options: dict[str, Any] = {} if plan is not None else job.options.keywords("optimizer", "ema")
    average = job.options.ema if plan is None else plan.ema
    seed, optimizer = job.options.seed, job.options.optimizer
    model, example, loss = own.build_entry(job.model, job.batch, seed)
    trainer = parallelize(
        model,
        job.cluster,
        example=example,
        loss=loss,
        optimizer=own.optimizer_maker(optimizer, job.lr),
        plan=plan,
        ema_decay=_EMA_DECAY if average else None,
        **options,
    )
    made = trainer.plan
    _say(f"{job.model} on {job.cluster}: predicted {figures(made).iteration_s:.3g} s a step")
    for note in estimates_notes(made.cluster):
        _say(note)
    like = own.to_arrays(example)
    if job.checkpoint is not None and trainer.load(job.checkpoint, missing_ok=True) is not None:
        _say(f"goes on after step {trainer.steps}")
    batches = synthetic_batches(like, made.graph, job.steps, seed)
    for step, arrays in itertools.islice(enumerate(batches, start=1), trainer.steps, None):
        started = time.perf_counter()
        value = float(trainer.step(*own.to_arguments(arrays, example)))
        _say(f"step {step:3d}  loss {value:.6f}  {time.perf_counter() - started:.3f} s")
        if job.checkpoint is not None and (step == job.steps or step % (job.every or _EVERY) == 0):
            trainer.save(job.checkpoint, keep=_KEPT, wait=step == job.steps)
    if trainer.rows_per_second is not None:
        _say(f"{trainer.rows_per_second:.3g} rows of the batch a second")
    if job.profile is not None:
        more = synthetic_batches(like, made.graph, _PROFILED, seed)
        found = trainer.profile([own.to_arguments(arrays, example) for arrays in more])
        if rank() == 0:
            found.save(job.profile)
        _say(f"{found}\nwritten: {job.profile}")


def _checked_plan(job: TrainJob) -> Plan:
    budget_s = job.options.budget_seconds
    with at_work(f"planning {job.model} on {job.cluster}", first_s=0, budget_s=budget_s):
        own = framework_of_entry(job.model, "autoddl train")
        plan = None if job.plan_file is None else Plan.load(job.plan_file)
        precision = job.options.precision if plan is None else plan.precision
        check_computes(precision, own.new_backend().facts)
        graph = own.trace_entry(job.model, job.batch)
        if plan is None:
            return plan_graph(graph, job.cluster, replace(job.options, back_end=own.NAME))
    plan.check_model(graph)
    plan.check_cluster(job.cluster)
    return plan


def _say(line: str) -> None:
    if rank() == 0:
        print(line, flush=True)
