"""A calibration needs nothing of a framework but the runtime's back end."""

import pytest

from autoddl.runtime.measure.measured import Limits
from autoddl.runtime.measure.rank import run
from autoddl.runtime.measure.record import Machine, Record
from autoddl.runtime.measure.schedule import message_sizes, schedule
from autoddl.sbp.mesh import Mesh
from autoddl.tools.calibration.machine import fit_record
from tests import graphs
from tests.exactness.numpy_backend import World


def start():
    return Record("threads", "today", Machine(("a", "b"), "a processor", 2), 2, 2, 0.95)


def quiet(*told):
    pass


def test_four_ranks_measure_collectives_device_and_operators(tmp_path, monkeypatch):
    few = {
        "device.MATMUL_SIZES": (16, 32), "device.COPY_BYTES": (1 << 12, 1 << 16),
        "device.SMALL_OPERATORS": 10, "beside.SECONDS": 0.01, "beside.SAMPLES": 2,
    }  # fmt: skip
    for name, value in few.items():
        monkeypatch.setattr(f"autoddl.runtime.measure.{name}", value)
    mesh, graph = Mesh(2, 2), graphs.mlp(8, (16, 32, 8))
    points = schedule(mesh, message_sizes(1 << 12))
    path = tmp_path / "threads.json"

    records = World(4).run(
        lambda backend: run(
            backend, mesh, points, start, path, Limits(repeats=2), True, graph, quiet, quiet
        )
    )
    for record in (*records, Record.load(path)):
        assert record.done().keys() == set(points) and not record.skipped
        assert record.device is not None
        assert record.device.matmul.keys() == {"float32", "float64"}
        assert any("matmul" in key for key in record.operators)


@pytest.mark.full
def test_when_no_time_is_left_a_fit_is_made_of_the_smallest_messages(tmp_path):
    """The graph's operators are named as left out; started again, what is missing is measured."""
    mesh, graph, sizes = Mesh(2, 2), graphs.mlp(8, (16, 32, 8)), message_sizes(1 << 14)
    points = schedule(mesh, sizes)
    path = tmp_path / "threads.json"

    def again():
        record = Record.load(path)
        record.skipped.clear()
        return record

    def records(begin, limits):
        return World(4).run(
            lambda backend: run(
                backend, mesh, points, begin, path, limits, False, graph, quiet, quiet
            )
        )

    first = {p for p in points if p.bytes < sizes[2]}
    for record in records(start, Limits(budget_s=1e-9)):
        assert record.done().keys() == first and not record.operators
        left = {str(p) for p in points if p not in first}
        assert left < record.skipped.keys()
        assert set(record.skipped.values()) == {"the time of 1e-09 s was over (--budget)"}
        assert any(name.startswith("operator matmul") for name in record.skipped)
        fit = fit_record(record)
        assert fit.intra is not None and fit.inter is not None
    for record in records(again, Limits(repeats=1)):
        assert record.done().keys() == set(points) and record.operators and not record.skipped
        assert {record.done()[p].repeats for p in first} == {5}
