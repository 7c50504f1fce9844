"""Which blocks the planner recomputes, and when."""

from types import SimpleNamespace
from typing import Any

import pytest

from autoddl import explain
from autoddl.cost.exchange import AT_THE_END
from autoddl.graph.regions import Blocks
from autoddl.planner import batches, realize
from autoddl.planner.estimate import Estimate, Estimator
from autoddl.planner.fit_in_memory import FittedSearch
from autoddl.planner.options import PlanOptions
from autoddl.planner.overlap import Overlapped
from autoddl.planner.planner import find_plan
from autoddl.planner.realize import Candidate
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.clusters import cluster
from tests.graphs import mlp, tied

GRAPH = mlp(4096, (256,) * 9)
WHERE = cluster("piz_daint", 1, 1)


def plan(limit=None, **options) -> Plan:
    return find_plan(
        GRAPH, WHERE, PlanOptions(memory_limit_bytes=limit, baselines=False, **options)
    )


def test_nothing_is_recomputed_where_memory_does_not_bind():
    assert plan().recomputed == ()


def test_as_few_blocks_as_fit():
    """With one micro-batch a lower limit takes more blocks, until all do not suffice.

    The last one need not be run again: it is gone when the inside of another one comes.
    """

    def needed(found: Plan) -> float:
        return max(figures(found).needed_bytes)

    whole = needed(plan(micro_batches=1))
    least = needed(plan(micro_batches=1, checkpointing="all"))
    counts = []
    for share in (0.8, 0.5, 0.2, 0.0):
        limit = least + share * (whole - least)
        found = plan(limit, micro_batches=1)
        assert needed(found) <= limit
        fewer = found.changed(recomputed=found.recomputed[:-1])
        assert needed(fewer) > limit
        counts.append(len(found.recomputed))
    assert counts == sorted(counts) and 0 < counts[0] < counts[-1] == 7
    with pytest.raises(ValueError, match="recomputed blocks"):
        plan(least * 0.99, micro_batches=1)


def test_auto_is_never_slower_than_none_or_all():
    whole = figures(plan()).cost.memory_bytes
    for share in (0.7, 0.5):
        limit = whole * share
        found = [plan(limit, checkpointing=c) for c in ("auto", "none", "all")]
        seconds = [figures(p).cost.iteration_s for p in found]
        assert seconds[0] <= min(seconds[1:])


def test_the_file_keeps_the_blocks_and_equal_calls_give_equal_files():
    options = {"micro_batches": 1, "checkpointing": "all"}
    found = plan(**options)
    assert len(found.recomputed) == 8
    assert Plan.loads(found.dumps()).recomputed == found.recomputed
    assert plan(**options).dumps() == found.dumps()
    assert figures(Plan.loads(found.dumps())).cost == figures(found).cost


def test_explain_says_what_it_saves_and_costs():
    found = plan(micro_batches=1, checkpointing="all")
    text, kept = explain(found), found.keeping_all()
    assert "8 blocks keep only their inputs" in text
    extra = figures(found).cost.iteration_s - figures(kept).cost.iteration_s
    assert extra > 0 and f"for {extra * 1e3:.3g} ms more" in text
    assert "run forward again" not in explain(kept)


def test_wrong_options():
    with pytest.raises(ValueError, match="unknown checkpointing 'some'"):
        plan(checkpointing="some")
    with pytest.raises(ValueError, match="no repeated blocks"):
        find_plan(tied(8, 8), WHERE, PlanOptions(checkpointing="all"))


def test_where_nothing_fits_is_searched_once(monkeypatch):
    """The search of the fewest micro-batches that may fit fails: it is not tried a second time."""
    searched: list[tuple[int, Blocks]] = []
    search = FittedSearch.plan

    def failing(self: FittedSearch, parts: int, beat_s: float, blocks: Blocks) -> Candidate | None:
        searched.append((parts, blocks))
        return None if len(searched) == 1 else search(self, parts, beat_s, blocks)

    monkeypatch.setattr(FittedSearch, "plan", failing)
    plan()
    assert len(set(searched)) == len(searched) > 1


def test_numbers_of_micro_batches_with_no_room_for_master_gradients_are_not_searched(monkeypatch):
    """In 16 bits: what the tables add up fits all of them."""
    searched: list[int] = []
    search = FittedSearch.plan

    def counting(self: FittedSearch, parts: int, *others) -> Candidate | None:
        searched.append(parts)
        return search(self, parts, *others)

    monkeypatch.setattr(FittedSearch, "plan", counting)
    numbers = 2 * 512 * 512 / 2  # of the parameters, on each device
    options = PlanOptions(
        optimizer="sgd", precision="float16", checkpointing="none", overlap=False,
        memory_limit_bytes=9.5 * numbers, baselines=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="no plan fits"):
        find_plan(mlp(16, (512,) * 3), cluster("gcp_a100", 1, 2), options)
    assert searched == []


def test_what_is_sure_not_to_fit_is_not_estimated(monkeypatch):
    """Fewer micro-batches, where more may overlap, are tried with blocks run again alone."""
    seen: list[tuple[int, Blocks]] = []
    estimate = Estimator._estimate

    def counting(self: Estimator, parts: int, blocks: Blocks, enough: float) -> Estimate:
        if enough > 0.0:  # not only for its seconds without a limit
            assert self.least_bytes(parts, blocks) <= self.model.limit_bytes
            seen.append((parts, blocks))
        return estimate(self, parts, blocks, enough)

    monkeypatch.setattr(Estimator, "_estimate", counting)
    graph, where = mlp(4096, (256,) * 9), cluster("piz_daint", 2, 1)
    find_plan(graph, where, PlanOptions(memory_limit_bytes=16e6, overlap=True, baselines=False))
    fewest = min(parts for parts, blocks in seen if not blocks)
    assert any(blocks and parts < fewest for parts, blocks in seen)


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_without_bounds_every_number_of_micro_batches_is_searched(monkeypatch, share):
    """Tensors of very many dims have none: the plans are the same."""
    limit = figures(plan()).cost.memory_bytes * share
    expected = plan(limit)
    monkeypatch.setattr("autoddl.sbp.path_bounds.PathBounds.fits", lambda self, ndim: False)
    found = plan(limit)
    assert figures(found).iteration_s == pytest.approx(figures(expected).iteration_s, rel=1e-3)
    assert found.micro_batches == expected.micro_batches


def test_fewer_micro_batches_are_tried_where_more_of_the_exchange_is_hidden_then():
    """The last one's backward pass hides the gradients: the best serial plan has 8, this one 4."""
    graph, machine = mlp(4096, (256,) * 6), cluster("laptop", 4, 1)

    def planned(**options):
        return find_plan(
            graph, machine, PlanOptions(memory_limit_bytes=6.2e6, baselines=False, **options)
        ).stage

    serial, best, four = planned(overlap=False), planned(), planned(micro_batches=4)
    assert serial.micro_batches == 8 and best.micro_batches == 4
    at_eight_s = stage_figures(planned(micro_batches=8)).cost.iteration_s
    assert stage_figures(best).cost.iteration_s < 0.995 * at_eight_s
    assert best.ops == four.ops and best.buckets == four.buckets


@pytest.mark.parametrize(
    ("width", "devices", "limit", "serial", "best"),
    [
        (256, 1, 5.5e6, 8, 16),
        pytest.param(512, 2, 7e6, 16, 32, marks=pytest.mark.full),
    ],
)
def test_more_micro_batches_are_tried_for_the_room_that_buckets_need(
    width, devices, limit, serial, best
):
    graph, machine = mlp(4096, (width,) * 6), cluster("laptop", 4, devices)

    def planned(**options):
        return find_plan(
            graph, machine, PlanOptions(memory_limit_bytes=limit, baselines=False, **options)
        ).stage

    found, asked = planned(), planned(micro_batches=best)
    assert planned(overlap=False).micro_batches == serial
    assert found.micro_batches == best
    assert stage_figures(found).cost.iteration_s == stage_figures(asked).cost.iteration_s


def test_ctrl_c_in_fewer_micro_batches_ends_what_follows_too(monkeypatch):
    found: list[Candidate] = []

    class Interrupted(Overlapped):
        def search(self) -> Candidate:
            found.append(found[0].ended("interrupted") if found else super().search())
            return found[-1]

    monkeypatch.setattr(batches, "Overlapped", Interrupted)
    options = PlanOptions(memory_limit_bytes=6.2e6, baselines=False)
    plan = find_plan(mlp(4096, (256,) * 6), cluster("laptop", 4, 1), options)
    assert len(found) == 2 and plan.was_interrupted


def _candidate(tables: Any) -> Candidate:
    """With nothing else in it."""
    nothing: Any = None
    return Candidate(tables, nothing, nothing)


@pytest.mark.parametrize(
    ("bytes_of", "most"), [(lambda n: 100 - n, 3), (lambda n: 100 - n - 20 * (n > 38), 8)]
)
@pytest.mark.parametrize("limit", [50, 57, 58.5, 61, 99, 101])
def test_how_many_blocks_must_run_again_takes_few_looks(monkeypatch, bytes_of, most, limit):
    """As a look at each number says, whatever the last blocks save."""
    blocks = tuple((f"op{n}",) for n in range(44))
    again = SimpleNamespace(blocks=blocks)
    tables = SimpleNamespace(again=again, model=SimpleNamespace(limit_bytes=limit))
    looked = []

    def fullest(self, again, limit):
        looked.append(len(again.blocks))
        return bytes_of(len(again.blocks))

    monkeypatch.setattr(Candidate, "_fullest", fullest)
    monkeypatch.setattr(realize, "replace", lambda again, blocks: SimpleNamespace(blocks=blocks))
    monkeypatch.setattr(Candidate, "excess_bytes", bytes_of(44) - limit)
    found = _candidate(tables).fewest_again(lambda: None)
    fitting = [n for n in range(45) if bytes_of(n) <= limit]
    assert found == min(fitting, default=44)
    assert len(looked) == len(set(looked)) <= most


def test_buckets_are_not_looked_at_where_the_step_without_them_does_not_fit(monkeypatch):
    limit = SimpleNamespace(overlap=True, limit_bytes=10.0)
    known = {
        "_free_travel": (((0, 1),), ()), "is_roomy": False, "_serial_bytes": 11.0,
        "_has_room_for": lambda self, travel: False, "_fullest": None,
    }  # fmt: skip
    for name, value in known.items():
        monkeypatch.setattr(Candidate, name, value)
    assert _candidate(SimpleNamespace(model=limit, again=None)).travel == AT_THE_END


def test_nothing_is_fitted_that_is_slower_than_a_plan_in_other_micro_batches(monkeypatch):
    tried: list[tuple[float, float]] = []
    fitting = Overlapped._fitting

    def counting(self: Overlapped, number: int) -> Candidate | None:
        if number:  # not the serial plan itself, which fits
            tried.append((self.known[number].least_s, self.below_s))
        return fitting(self, number)

    monkeypatch.setattr(Overlapped, "_fitting", counting)
    options = PlanOptions(memory_limit_bytes=6.2e6, baselines=False)
    find_plan(mlp(4096, (256,) * 6), cluster("laptop", 4, 1), options)
    assert tried and all(least_s < below_s for least_s, below_s in tried)


def test_fewer_blocks_are_searched_for_what_beats_the_placements_found(monkeypatch):
    """Lowered limits end there: ResNet-50 on PyTorch in 0.45 of its memory took three times it."""
    beat: list[float] = []
    search = FittedSearch.plan

    def noting(self: FittedSearch, parts: int, beat_s: float, blocks: Blocks) -> Candidate | None:
        beat.extend([beat_s] if 0 < len(blocks) < 8 else [])
        return search(self, parts, beat_s, blocks)

    monkeypatch.setattr(FittedSearch, "plan", noting)
    limit = 0.75 * max(figures(plan(micro_batches=1)).needed_bytes)
    found = plan(limit, micro_batches=1)
    assert found.recomputed and beat
    assert max(beat) < float("inf") and figures(found).iteration_s <= min(beat)
