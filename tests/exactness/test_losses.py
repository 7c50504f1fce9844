"""Losses of every kind are those of the whole batch in 1, 2 and 4 micro-batches, or refused."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from autoddl import explain

if not find_spec("oneflow"):
    pytest.importorskip("torch", reason="trains on real processes of a framework")

from autoddl.api import plan, trace  # noqa: E402
from autoddl.planner.asked import micro_batch_counts  # noqa: E402
from tests.exactness.losses import EXACT, WHOLE  # noqa: E402
from tests.runtime.random_plans import cluster_of  # noqa: E402
from tests.runtime.training import build  # noqa: E402

WORKER = Path(__file__).parents[1] / "runtime" / "workers" / "train.py"
STAGES = (None, 2)


def passes(jobs, cases):
    """On 2 x 2 devices, as one mesh or as stages.

    With two micro-batches every tensor is checked, and batches of another size are evaluated.
    """
    more = {True: {"debug": True, "evaluated": [8, 16]}, False: {}}
    cases = [
        {"optimizer": "slow sgd", **more[case.get("micro_batches") == 2], **case} for case in cases
    ]
    status, out = jobs.run(WORKER, 4, json.dumps(cases), timeout=600, prefix=False)
    assert status == 0, f"status {status}\n{out}"
    assert out.count("equal: ") == len(cases), out


def graph_of(name):
    model, loss, batch = build(name)
    return trace(model, *batch(0, 8), loss=loss)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("every", "stages"),
    [
        pytest.param(n, s, marks=() if (n, s) == (0, 2) else pytest.mark.full)
        for n in range(6)
        for s in STAGES
    ],
)
def test_losses_are_those_of_the_whole_batch(jobs, every, stages):
    """Each loss in 1, 2 and 4 micro-batches, a sixth of these cases at a time."""
    cases = [
        {"model": name, "micro_batches": parts, "seed": seed, "stages": stages}
        for seed, name in enumerate(EXACT)
        for place, parts in enumerate((1, 2, 4))
        if (place - seed + every) % 6 == 1
    ]
    passes(jobs, cases)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("stages", "names"),
    [
        (None, tuple(WHOLE)),  # BatchNorm's rows are in test_exactness.py
        *(pytest.param(s, (*WHOLE, "convnet"), marks=pytest.mark.full) for s in STAGES),
    ],
)
def test_rows_that_meet_are_trained_whole(jobs, stages, names):
    passes(jobs, [{"model": name, "stages": stages} for name in names])


@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.parametrize("parts", [2, 1, 4])
def test_batch_norm_of_micro_batches(jobs, parts):
    """Each has the statistics of its own rows, on whichever devices they are."""
    case = {"model": "convnet", "micro_batches": parts, "batch_norm": "micro_batch"}
    passes(jobs, [{**case, "stages": stages} for stages in STAGES])


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("contrastive", "loss/matmul"),
        ("spread", "loss/sqrt"),
        ("attending", "matmul"),
        ("convnet", "bn1/normalization"),
    ],
)
def test_parts_are_left_out_and_refused_where_rows_meet(name, operator):
    graph, cluster = graph_of(name), cluster_of(1, 2)
    assert micro_batch_counts(graph, None) == (1,)
    with pytest.raises(ValueError, match=f"{operator}.* in 4 micro-batches"):
        plan(graph, cluster, micro_batches=4)
    with pytest.raises(ValueError, match=f"{operator}.* in 2 micro-batches"):
        plan(graph, cluster, stages=2, micro_batches=2)
    with pytest.raises(ValueError, match=f"{operator}.* in groups of 2 micro-batches"):
        plan(graph, cluster, stages=2, chunks=2, schedule="interleaved-1f1b")
    assert plan(graph, cluster).micro_batches == 1


@pytest.mark.parametrize("batch_norm", ["micro_batch", "shard"])
def test_the_plan_states_what_batch_norm_takes_its_statistics_of(batch_norm):
    graph, cluster = graph_of("convnet"), cluster_of(1, 2)
    found = plan(graph, cluster, micro_batches=4, batch_norm=batch_norm)
    assert found.to_json()["batch_norm"] == found.batch_norm == batch_norm
    assert "not of the whole batch" in explain(found)
    found.check_model(graph)
    assert "statistics of the whole batch" in explain(plan(graph, cluster))
    staged = plan(graph, cluster, stages=2, micro_batches=4, batch_norm=batch_norm)
    assert staged.to_json()["batch_norm"] == batch_norm
    assert "not of the whole batch" in explain(staged)
    staged.check_model(graph)
    with pytest.raises(ValueError, match="unknown batch_norm 'none'"):
        plan(graph, cluster, batch_norm="none")  # pyright: ignore[reportArgumentType]
