"""The profile of real steps: every task of the plan is found on every rank, in its order."""

import json
from collections import Counter

import pytest


@pytest.mark.parametrize(
    ("model", "kind", "compute"),
    [
        ("perceptron", "serial", "real"),
        pytest.param("transformer", "split", "real", marks=pytest.mark.full),
        pytest.param("transformer", "buckets", "emulated", marks=pytest.mark.full),
    ],
)
def test_a_trace_has_all_tasks_of_the_plan_on_every_rank(launch, tmp_path, model, kind, compute):
    pytest.importorskip("oneflow", reason="needs OneFlow")
    path = tmp_path / "trace.json"
    out = launch("profiled", 4, model, kind, compute, str(path))
    events = json.loads(path.read_text())["traceEvents"]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(titles.values()) == ["planned", *(f"rank {n}, measured" for n in range(4))]
    spans = {pid: [e for e in events if e["ph"] == "X" and e["pid"] == pid] for pid in titles}

    def key(event):
        return event["cat"], event["args"]["operator"], event["args"]["micro_batch"]

    wanted = Counter(map(key, spans[0]))
    assert {"forward", "backward", "collective", "exchange"} <= {cause for cause, _, _ in wanted}
    for pid in range(1, 5):
        found = Counter(map(key, spans[pid]))
        assert not wanted - found, f"rank {pid - 1} lacks {wanted - found}"
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans[pid])
        computed = [e for e in spans[pid] if e["tid"] == 0]
        for one, other in zip(computed, computed[1:], strict=False):
            assert one["ts"] + one["dur"] <= other["ts"] + other["dur"] + 1e-3
        assert max(e["ts"] + e["dur"] for e in spans[pid]) > 0
    lines = out.splitlines()
    for row in ("step", "forward", "backward", "collective", "exchange", "furthest off"):
        assert any(line.partition("] ")[2].startswith(row) for line in lines), row
