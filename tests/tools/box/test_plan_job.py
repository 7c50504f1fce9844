"""A plan file runs in a box, really or with emulated compute."""

import io
import json

import pytest

pytest.importorskip("oneflow", reason="needs OneFlow")

from autoddl.cluster import Cluster
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.runtime.oneflow.trace.entries import trace_entry
from autoddl.tools.box import Box
from autoddl.tools.train_plan import PlanJob
from benchmarks.box.bytes import LAPTOP


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    cluster = Cluster.load(LAPTOP).with_shape(2, 1)
    find_plan(trace_entry("gpt_small", 4), cluster, PlanOptions(optimizer="sgd")).save(path)
    return str(path)


def test_a_plan_must_fit_the_box(plan_file):
    with pytest.raises(ValueError, match="is for 2 x 1 devices, the box has 4 x 2"):
        PlanJob(plan_file).check(4, 2)
    with pytest.raises(ValueError, match="must be positive, got -1"):
        PlanJob(plan_file, emulate_compute=-1).check(2, 1)
    assert PlanJob(plan_file, emulate_compute=1e9).check(2, 1).batch == 4


@pytest.mark.full
def test_times_of_emulated_compute_say_so(plan_file, possible):
    out = io.StringIO()
    command = ["-m", "autoddl", "box", "rank", plan_file, "--steps", "2"]
    with Box(2, 1, "1gbit") as box:
        status = box.run(
            [*command, "--emulate-compute", "1e8", "--json"], output=out, prefix=False, timeout=120
        )
        assert status == 0, out.getvalue()
        moved = box.links()
    (line,) = [line for line in out.getvalue().splitlines() if line.startswith("{")]
    found = json.loads(line)
    assert found["compute"] == "emulated compute, 1e+08 FLOP/s"
    assert found["losses"] is None
    assert min(found["steps_s"]) > 0.9 * found["predicted_step_s"] > 0.3
    assert all(link.sent_bytes > 1e4 for link in moved)
