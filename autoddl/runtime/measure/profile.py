"""When each task of a real step runs on each rank, beside the plan's own schedule of it.

Nothing is waited for that the step does not wait for: threads of their own wait for the result of
each task, and note when it is there (`Backend.wait`). A task was asked for by this rank's thread at
some time, and a queue, of computation or of communication, does one after the other, so

    start = max(asked for, end of the task before it in its queue,
                of computation: ends of the collectives that bring its inputs)

With emulated compute, computation ends when the emulation's clock says so. The ends of very short
operators are seen late, together with those of the next ones: what is seen of several is right.

A rank's times begin when all ranks have met before the step.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._files import write_atomically
from ...plans.format import format_seconds
from ...plans.schedule.passes import Cause
from ...plans.schedule.step import COMPUTING, Step
from ..backend import Tensor
from ..calling import as_arguments, expect_iterable
from ..comm.groups import Around, Call, Groups
from ..comm.redistribute import LocalFn
from ..emulate.clock import Clock, Sent
from ..execution.buckets import Bucket
from ..execution.program import Edge, Node, Program
from ..kernel import Context, RunState
from .stopwatch import Stopwatch

SWITCH_S = 1e-4
_WATCHED = 16  # results of collectives that are waited for at once
_TOP = 10  # operators that a table names
CAUSES: tuple[Cause, ...] = ("forward", "backward", "collective", "gather", "exchange")


@dataclass(frozen=True)
class Name:
    """Of a task: why, of which operator, and of which micro-batch.

    operator: of an exchange, all whose parameters' gradients travel together, joined by `+`
    micro_batch: 0 for what happens once a step
    """

    cause: Cause
    operator: str
    micro_batch: int


@dataclass
class _Event:
    name: Name
    asked: float
    ended: Future[float] | Sent | float

    @property
    def end(self) -> float:
        if isinstance(self.ended, Sent):
            assert self.ended.end is not None, "the step is over"
            return self.ended.end
        return self.ended.result() if isinstance(self.ended, Future) else self.ended


@dataclass
class Recorder:
    """Notes the tasks of this rank's steps. emulated: the clock of emulated compute, if it is."""

    groups: Groups
    run_state: RunState
    emulated: Clock | None
    events: list[_Event] = field(default_factory=list)
    began: float = 0.0
    _seen: list[tuple[float, Future[float] | Sent]] = field(default_factory=list)  # asked, ended
    _computed: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _arrived: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_WATCHED))
    _next: Around | None = None

    def __post_init__(self) -> None:
        self._next, self.groups.around = self.groups.around, self._around
        # what waits would else be late by Python's 5 ms while the step is being asked for
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)

    def close(self) -> None:
        """Note nothing any more."""
        self.groups.around = self._next
        for pool in (self._computed, self._arrived):
            pool.shutdown()
        sys.setswitchinterval(self._switch_s)

    def begin(self) -> None:
        """A step begins now."""
        self.events, self._seen = [], []
        self.began = time.perf_counter()

    def follow(self, program: Program) -> None:
        """Note what the program does from here on."""
        program.made = self._made
        for node in program.nodes:
            for edge in node.edges:
                self._follow(edge)
            if node.kernel is not None:
                node.kernel = self._kernel(node, node.kernel)

    def exchange(self, bucket: Bucket) -> Bucket:
        """The bucket, whose journey is noted."""
        if bucket.travel is None:
            return bucket
        name = "+".join(edge.key[0] for edge in bucket.edges)
        return dataclasses.replace(bucket, travel=self._path(bucket.travel, "exchange", name))

    def _around(self, call: Call) -> list[Tensor]:
        asked = self.emulated.free_at if self.emulated is not None else time.perf_counter()
        moved = self._next(call) if self._next else call.run()
        if self.emulated is not None and self.emulated.last is not None:
            self._seen.append((asked, self.emulated.last))
        elif moved:
            backend = self.groups.backend
            firsts = [backend.narrow(x.reshape(-1), 0, 0, 1) for x in moved]
            whole = moved[0] if len(moved) == 1 else backend.cat(firsts, 0)
            self._seen.append((asked, self._arrived.submit(self._wait, whole)))
        return moved

    def _wait(self, x: Tensor) -> float:
        self.groups.backend.wait(x)
        return time.perf_counter()

    def _follow(self, edge: Edge) -> None:
        is_param = edge.source.kind == "param"
        cause: Cause = "gather" if is_param else "collective"
        edge.forward = self._path(
            edge.forward, cause, edge.key[0], not is_param or edge.zero_stage == 3
        )
        cause = "exchange" if is_param else "collective"
        edge.backward = self._path(edge.backward, cause, edge.key[0], not is_param)

    def _path(self, path: LocalFn, cause: Cause, operator: str, each: bool = False) -> LocalFn:
        """`path`, noted where it has collectives. each: for each micro-batch"""

        def run(x: Tensor) -> Tensor:
            self._seen = []
            moved = path(x)
            self._note_collectives(cause, operator, each)
            return moved

        return run

    def _note_collectives(self, cause: Cause, operator: str, each: bool) -> None:
        """Those that were asked for since the last note, as one task."""
        if self._seen:
            name = Name(cause, operator, self.run_state.micro_batch if each else 0)
            self.events.append(_Event(name, self._seen[0][0], self._seen[-1][1]))
        self._seen = []

    def _kernel(self, node: Node, kernel: Any) -> Any:
        def run(ctx: Context, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> Any:
            asked, self._seen = time.perf_counter(), []
            results = kernel(ctx, inputs, attrs)
            outputs = getattr(results, "outputs", results)
            self._note("forward", node, asked, outputs)
            return results

        return run

    def _made(self, node: Node, asked: float, given: Sequence[Tensor | None]) -> None:
        """The operator's backward pass was asked for, and gives these gradients."""
        self._note("backward", node, asked, [x for x in given if x is not None])

    def _note(self, cause: Cause, node: Node, asked: float, made: Sequence[Tensor]) -> None:
        self._note_collectives("collective", node.op.name, each=True)
        name = Name(cause, node.op.name, self.run_state.micro_batch)
        if self.emulated is not None:
            self.events.append(_Event(name, asked, self.emulated.free_at))
        elif made:
            self.events.append(_Event(name, asked, self._computed.submit(self._wait, made[0])))

    def times(self) -> tuple[list[Name], NDArray[np.float64]]:
        """The names of the step's tasks and their starts and ends [tasks, 2] since it began."""
        free = {True: 0.0, False: 0.0}
        brought: dict[tuple[str, int], float] = defaultdict(float)
        rows: list[tuple[float, float]] = []
        for event in self.events:
            name, end = event.name, max(0.0, event.end - self.began)
            computes = name.cause in COMPUTING
            asked = 0.0 if computes and self.emulated is not None else event.asked - self.began
            start = max(asked, free[computes])
            if computes:
                start = max(start, brought[name.operator, name.micro_batch])
            start = min(start, end)
            free[computes] = max(free[computes], end)
            if name.cause == "collective":
                brought[name.operator, name.micro_batch] = end
            rows.append((start, end))
        return [event.name for event in self.events], np.array(rows).reshape(-1, 2)


def planned_names(step: Step) -> list[Name]:
    """Of the plan's tasks, as a recorder names them."""
    found = []
    for task in step.tasks:
        operator, often = task.operator, True
        if task.cause == "exchange":
            members = [step.exchanges[n] for n in task.members]
            operator, often = "+".join(e.op for e in members), False
        found.append(Name(task.cause, operator, task.micro_batch if often else 0))
    return found


def profiled(
    step: Callable[..., object], batches: Iterable[Any], recorder: Recorder, planned: Step
) -> Profile:
    """Take a step on each batch, and note when its tasks run; the profile on all ranks.

    step: of a program that the recorder follows
    ValueError if there is no batch.
    """
    expect_iterable(batches, "profile takes batches, such as a list of them")
    watch = Stopwatch(recorder.groups)
    steps: list[tuple[list[Name], NDArray[np.float64]]] = []
    mine: list[float] = []
    for batch in batches:
        watch.meet()
        recorder.begin()
        step(*as_arguments(batch))
        watch.backend.wait()
        mine.append(time.perf_counter() - recorder.began)
        steps.append(recorder.times())
    if not steps:
        raise ValueError("there is no batch to profile a step on; give one at least")
    step_s = watch.gather(np.array(mine)).max(axis=0)
    names, times = steps[int(np.argsort(step_s)[(len(step_s) - 1) // 2])]
    everyone = watch.gather(times.reshape(-1))
    return Profile(
        planned, tuple(names), everyone.reshape(len(everyone), -1, 2), tuple(step_s.tolist())
    )


@dataclass(frozen=True)
class Profile:
    """A step as planned and as it ran.

    names:    of the tasks that ran; measured: their starts and ends [ranks, tasks, 2] in seconds
    step_s:   of the steps that ran, on the slowest rank; the tasks are those of the median one
    """

    planned: Step
    names: tuple[Name, ...]
    measured: NDArray[np.float64]
    step_s: tuple[float, ...]

    def seconds(self) -> dict[Name, tuple[float, float]]:
        """Of each task: (planned, measured on the mean rank); of one name, added up."""
        found: dict[Name, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, task in zip(planned_names(self.planned), self.planned.tasks, strict=True):
            found[name][0] += task.seconds
        lengths = (self.measured[:, :, 1] - self.measured[:, :, 0]).mean(axis=0)
        for name, length in zip(self.names, lengths.tolist(), strict=True):
            found[name][1] += length
        return {name: (planned, real) for name, (planned, real) in found.items()}

    def trace(self) -> dict[str, Any]:
        """The Chrome trace event format: processes of the plan and of each rank, microseconds."""
        starts, ends = self.planned.times
        planned = zip(planned_names(self.planned), starts, ends, strict=True)
        events = list(_process(0, "planned", planned))
        for rank, times in enumerate(self.measured.tolist()):
            rows = ((name, *row) for name, row in zip(self.names, times, strict=True))
            events += _process(1 + rank, f"rank {rank}, measured", rows)
        return {"displayTimeUnit": "ms", "traceEvents": events}

    def save(self, path: str | Path) -> None:
        """Write the trace, which https://ui.perfetto.dev and Chrome's about:tracing open."""
        write_atomically(path, json.dumps(self.trace()))

    def __str__(self) -> str:
        """Where the time goes: by cause, and the operators that are furthest off."""
        by_cause: dict[str, list[float]] = {cause: [0.0, 0.0] for cause in CAUSES}
        by_operator: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, pair in self.seconds().items():
            for sums in (by_cause[name.cause], by_operator[name.cause, name.operator]):
                sums[0], sums[1] = sums[0] + pair[0], sums[1] + pair[1]
        step = self.planned.end_s, statistics.median(self.step_s)
        lines = [_line("", "planned", "measured", "more by"), _row("step", *step)]
        lines += [_row(cause, *pair) for cause, pair in by_cause.items() if any(pair)]
        far = sorted(by_operator.items(), key=lambda item: -abs(item[1][1] - item[1][0]))[:_TOP]
        lines += ["", "furthest off"]
        lines += [_row(f"{cause} of {_short(name)}", *pair) for (cause, name), pair in far]
        return "\n".join(lines)


def _process(number: int, title: str, rows: Any) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": number, "tid": 0, "args": {"name": title}}
    for thread, kind in enumerate(("computation", "communication")):
        named = {"name": "thread_name", "ph": "M", "pid": number, "tid": thread}
        yield {**named, "args": {"name": kind}}
    for name, start, end in rows:
        yield {
            "name": f"{name.cause} {_short(name.operator)}",
            "cat": name.cause,
            "ph": "X",
            "pid": number,
            "tid": int(name.cause not in COMPUTING),
            "ts": start * 1e6,
            "dur": (end - start) * 1e6,
            "args": {"operator": name.operator, "micro_batch": name.micro_batch},
        }


def _short(operators: str) -> str:
    """The first of several operators, and how many there are."""
    first, *more = operators.split("+")
    return f"{first} and {len(more)} more" if more else first


def _row(what: str, planned_s: float, measured_s: float) -> str:
    more = measured_s - planned_s
    sign = "-" if more < 0 else ""
    times = (format_seconds(planned_s), format_seconds(measured_s))
    return _line(what, *times, f"{sign}{format_seconds(abs(more))}")


def _line(what: str, planned: str, measured: str, more: str) -> str:
    return f"{what:<48} {planned:>10} {measured:>10} {more:>10}"
