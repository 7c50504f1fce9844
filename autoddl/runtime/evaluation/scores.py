"""The loss and metrics of a model on a whole data set, batch by batch.

Every batch runs as in `evaluate.py`. Each of the ranks that have the model's results computes the
metrics on its own rows of them; nothing but the sums of these travels, once, at the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from ..._files import expect, expect_callable, shown
from ...graph.rows import divisor, rows_apart
from ...sbp.layout import is_even, local_slices
from ...sbp.mesh import Device, Mesh
from ...sbp.placement import B, NdSbp, S
from ..backend import Tensor
from ..calling import as_arguments, expect_iterable
from ..comm.groups import Group
from ..comm.redistribute import prepare, to_broadcast
from ..counting import Counting, rows_of
from ..execution.executor import Values
from ..jobs.roll_call import RollCall, Said
from ..kernel import Filled
from ..nested import map_leaves
from ..part import Job, Part
from ..traced import Traced, levels_to_caller
from .evaluate import Evaluator, Fed, Run

Metric = Callable[[Any, Any], Any]
_NUMBERS = Real, np.ndarray, np.generic


class Scores:
    """Scores on this rank, which is `device` of the cluster; `world`: all ranks of the job."""

    def __init__(
        self, traced: Traced, job: Job, parts: Mapping[int, Part], device: Device, world: Group
    ) -> None:
        self._traced = traced
        self._job = job
        self._world = world
        self._backend = job.groups.backend
        graph = job.evaluated
        self._loss = graph.loss
        counting = Counting.of(graph, 1, evaluates=True)
        self._is_sum = counting.rows.power == 0 and not counting.rows.known
        self._divisor = divisor(graph, counting.rows) if self._loss else None
        sums = tuple(name for name in (self._loss, self._divisor) if name)
        self._evaluator = Evaluator(job, parts, device, sums)
        self._parts = parts
        self._has_said = False
        apart = rows_apart(graph)
        dims = {name: graph.tensors[name].batch_dims for name in job.results}
        # the dim of each result that has the rows; None if it has none, or rows meet in it
        self._row_dims = {name: d[0] if name in apart else None for name, d in dims.items()}
        self._meets = [name for name, d in dims.items() if d and name not in apart]
        # the part whose ranks compute the metrics
        self._last = max((self._evaluator.maker(name) for name in job.results), default=0)

    def of(
        self,
        batches: Iterable[Any],
        metrics: Mapping[str, Metric],
        call: RollCall,
        say: Callable[[Sequence[Tensor]], Said],
    ) -> dict[str, float]:
        """The scores by name. ValueError if a batch does not fit, or there is none.

        say: what this rank tells the others of a batch
        """
        expect_iterable(batches, "evaluate takes batches, such as a DataLoader or a list")
        expect(metrics, Mapping, "metrics are a dict from names to functions")
        for name, metric in metrics.items():
            expect_callable(metric, f"metric {name!r} is a function of output and target")
        if not self._loss:
            self._say_no_loss(metrics)
        totals, graph, empty = np.zeros((1 + len(metrics), 2)), self._job.plan.graph, True
        for batch in batches:
            given, empty = as_arguments(batch), False
            tensors = self._traced.batches.flat("evaluate", given)
            # one row, if the graph has no batch dim
            rows = max(rows_of(graph, tensors, self._job.plan.batch), 1)
            run, fed = self._evaluator.fed(rows, tensors)
            call("evaluate", rows, say(tensors))
            target = self._traced.batches.target(given)
            totals += self._scored(rows, run, fed, target, metrics)
        call("evaluate")
        if empty:
            raise ValueError("evaluate got no batch; a generator gives its batches only once")
        flat = self._backend.cast(self._backend.from_numpy(totals.reshape(-1)), "float64")
        sums = self._backend.to_numpy(self._world.all_reduce(flat)).reshape(-1, 2)
        values = [float(a / b) if b else float("nan") for a, b in sums]
        if self._is_sum:
            values[0] = float(sums[0, 0])
        found = dict(zip(("loss", *metrics), values, strict=True))
        return found if self._loss else {name: found[name] for name in metrics}

    def _say_no_loss(self, metrics: Mapping[str, Metric]) -> None:
        """Once, if there are metrics. ValueError if there are none, as nothing is left."""
        why = (
            "there is no loss of what the model gives in evaluation (self.training), where its "
            f"results are others than in training: {self._traced.evaluation.no_loss}"
        )
        if not metrics:
            raise ValueError(
                f"{why}. Let the loss take both, as by isinstance(output, tuple), or give evaluate "
                "metrics, which it then gives alone"
            )
        if self._backend.rank == 0 and not self._has_said:
            told = f"evaluate gives metrics alone: {why}"
            warnings.warn(told, stacklevel=levels_to_caller())
        self._has_said = True

    def _scored(
        self, rows: int, run: Run, fed: Fed, target: Any, metrics: Mapping[str, Metric]
    ) -> np.ndarray:
        """This rank's sums and weights of a batch of `rows` rows, [1 + metrics, 2]."""
        totals = np.zeros((1 + len(metrics), 2))
        micro = rows if run.counting is None else self._job.plan.graph.batch
        whole = micro * run.micro_batches
        filled = Filled(rows, whole) if rows < whole else None
        share = 1.0 if run.counting is None else run.counting.share(filled)
        if metrics and self._meets and rows != micro:
            raise ValueError(
                f"rows of the batch meet in the model's result {self._meets[0]}, and metrics need "
                f"batches of {micro} rows, as with drop_last=True of the DataLoader"
            )
        self._job.run_state.filled = filled
        loss, weight = 0.0, float(rows)
        for m, found in enumerate(self._evaluator.passes(run, fed)):
            if self._loss:
                loss += share * self._number(run, self._loss, found)
            if self._divisor:
                weight = self._number(run, self._divisor, found)
            if metrics:
                real = min(rows - m * micro, micro)
                mine, results = self._mine(run, found, micro, real)
                if mine.start < mine.stop:
                    cut = partial(
                        self._rows, start=m * micro + mine.start, stop=m * micro + mine.stop
                    )
                    of_rows = map_leaves(target, self._backend.facts.tensor, cut)
                    measured = self._measured(metrics, results, of_rows, mine.stop - mine.start)
                    totals[1:] += measured
        self._job.run_state.filled = None
        if self._backend.rank == 0:
            totals[0] = (loss, 0.0) if self._is_sum else (loss * weight, weight)
        return totals

    def _rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        return self._backend.narrow(x, 0, start, stop - start) if x.ndim else x

    def _number(self, run: Run, name: str, found: Values) -> float:
        return float(self._backend.to_numpy(self._evaluator.share(run, name, found.get(name))))

    def _mine(self, run: Run, found: Values, micro: int, real: int) -> tuple[slice, list[Tensor]]:
        """The rows of a micro-batch whose metrics this rank computes, and the results for them.

        real: how many of its rows are none of padding
        """
        axes, mesh = self._axes(micro), self._job.groups.mesh
        holds = self._last in self._parts
        counts = holds and not any(
            c for a, c in enumerate(mesh.coords(self._job.groups.rank)) if a not in axes
        )
        rows = slice(0, real)
        if holds and axes:
            (piece,) = local_slices((micro,), _by_rows(axes, mesh), mesh, self._job.groups.rank)
            rows = slice(piece.start, max(min(piece.stop, real), piece.start))
        results = [self._result(run, name, found, axes, rows, micro) for name in self._job.results]
        return (rows, results) if counts else (slice(0, 0), [])

    def _axes(self, micro: int) -> tuple[int, ...]:
        """The axes of the last part's mesh along which its results are split by rows."""
        stage = self._job.plan.stages[self._last]
        for name, dim in self._row_dims.items():
            if self._evaluator.maker(name) == self._last and dim is not None:
                axes = self._evaluator.placed(name).axes_of(S(dim))
                mesh = stage.mesh
                return axes if is_even((micro,), _by_rows(axes, mesh), mesh) else ()
        return ()

    def _result(
        self, run: Run, name: str, found: Values, axes: tuple[int, ...], rows: slice, micro: int
    ) -> Tensor | None:
        """The rows of a result; None on ranks that do not have them."""
        v, dim = self._evaluator.maker(name), self._row_dims[name]
        shape, nd = run.graphs[v].tensors[name].spec.shape, self._evaluator.placed(name)
        if v != self._last or dim is None or not axes or nd.axes_of(S(dim)) != axes:
            x, start = self._evaluator.share(run, name, found.get(name)), rows.start
        elif name in found:
            steps = [step for step in to_broadcast(nd) if step.source != S(dim)]
            x, start = prepare(steps, shape, nd, self._job.groups)(found[name]), 0
        else:
            return None
        if dim is None:
            return x
        each = shape[dim] // micro
        return self._backend.narrow(x, dim, start * each, (rows.stop - rows.start) * each)

    def _measured(
        self, metrics: Mapping[str, Metric], results: Sequence[Tensor], target: Any, rows: int
    ) -> np.ndarray:
        """[metrics, 2]: what each metric gives, as a sum and the weight of that."""
        sums = []
        with self._backend.no_grad():
            for name, metric in metrics.items():
                value = metric(self._traced.result(results, rows), target)
                if isinstance(value, tuple) and len(value) == 2:
                    sums.append([self._mean(name, x) for x in value])
                else:
                    sums.append([self._mean(name, value) * rows, rows])
        return np.array(sums, dtype=float).reshape(-1, 2)

    def _mean(self, name: str, value: Any) -> float:
        """Of the elements of a tensor, or of what is a number, which metric `name` gave."""
        if isinstance(value, self._backend.facts.tensor):
            value = self._backend.to_numpy(value)
        array = np.asarray(value) if isinstance(value, _NUMBERS) else np.zeros(0)
        if not array.size or array.dtype.kind not in "biuf":
            raise TypeError(
                f"metric {name!r} gives a number, a tensor of numbers, or a pair (sum, count), got "
                f"{shown(value)}"
            )
        return float(np.mean(array))


def _by_rows(axes: tuple[int, ...], mesh: Mesh) -> NdSbp:
    return NdSbp(tuple(S(0) if a in axes else B for a in range(mesh.num_axes)))
