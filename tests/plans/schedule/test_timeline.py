"""Pictures and traces of a simulated iteration."""

import builtins
import json
import struct

import pytest

from autoddl.plans.schedule.make import make_schedule
from autoddl.plans.schedule.schedule import Costs
from autoddl.plans.schedule.simulate import simulate
from autoddl.plans.schedule.timeline import save_picture, save_trace


@pytest.fixture
def timeline():
    schedule = make_schedule("eager-1f1b", 3, 5, delay=0)
    costs = Costs.uniform(3, schedule.flows, transfer_s=0.5)
    own = (0, "gradients", 4.0, 0.5), (1, "gradients", 0.0, 0.0), (2, "gradients", 1.0, 0.0)
    return simulate(schedule, costs).then(own).together("shared", [{2: 1.0, 0: 1.0}])


def test_stages_exchange_after_their_last_passes_and_beside_them(timeline):
    """With each other only once all have what it takes."""
    ends = [max(s.end_s for s in timeline.spans if s.stage == i) for i in range(3)]
    assert ends[0] + 4 > ends[2] + 1
    told = [(e.stage, e.what, e.start_s, e.end_s) for e in timeline.exchanges]
    assert told == [
        (0, "gradients", ends[0] - 0.5, ends[0] + 4),
        (2, "gradients", ends[2], ends[2] + 1),
        (2, "shared", ends[0] + 4, ends[0] + 5),
        (0, "shared", ends[0] + 4, ends[0] + 5),
    ]
    assert timeline.iteration_s == ends[0] + 5 > timeline.makespan_s


def test_trace_has_every_action_once(timeline, tmp_path):
    save_trace(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(e["pid"], e["name"]) for e in events if e["ph"] == "M" and "thread" not in e["name"]}
    assert names == {(i, "process_name") for i in range(3)}
    spans = [e for e in events if e["ph"] == "X"]
    found = {(e["pid"], e["name"]): (e["ts"], e["dur"]) for e in spans}
    assert len(found) == len(spans) == sum(map(len, timeline.schedule.actions)) + 4
    last = max(ts + dur for ts, dur in found.values())
    assert last == pytest.approx(timeline.iteration_s * 1e6)
    assert {e["tid"] for e in spans if e["name"].startswith(("S", "R"))} == {1}


def test_picture_is_a_png_and_the_same_again(timeline, tmp_path):
    pytest.importorskip("matplotlib", reason="draws with matplotlib")
    save_picture(timeline, tmp_path / "a.png", "three stages")
    save_picture(timeline, tmp_path / "b.png", "three stages")
    data = (tmp_path / "a.png").read_bytes()
    assert data == (tmp_path / "b.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1000 and height > 200


def test_without_matplotlib(timeline, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="pip install matplotlib"):
        save_picture(timeline, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
