"""A calibration needs nothing of a framework but the runtime's back end."""

from autoddl.runtime.measure.measured import Limits
from autoddl.runtime.measure.rank import run
from autoddl.runtime.measure.record import Machine, Record
from autoddl.runtime.measure.schedule import message_sizes, schedule
from autoddl.sbp.mesh import Mesh
from tests import graphs
from tests.exactness.numpy_backend import World


def test_four_ranks_measure_collectives_device_and_operators(tmp_path, monkeypatch):
    monkeypatch.setattr("autoddl.runtime.measure.device.MATMUL_SIZES", (16, 32))
    mesh, graph = Mesh(2, 2), graphs.mlp(8, (16, 32, 8))
    points = schedule(mesh, message_sizes(1 << 12))
    path = tmp_path / "threads.json"

    def start():
        return Record("threads", "today", Machine(("a", "b"), "a processor", 2), 2, 2, 0.95)

    def quiet(*told):
        pass

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
