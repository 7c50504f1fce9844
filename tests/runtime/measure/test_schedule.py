"""What is measured: every group shape, sizes that divide, the right ranks."""

import pytest

from autoddl.runtime.measure.schedule import (
    KINDS,
    Point,
    Shape,
    axes_of,
    is_active,
    message_sizes,
    pair_of,
    pairs,
    schedule,
    shapes,
)
from autoddl.runtime.measure.statistics import half_interval, least_samples, median_interval
from autoddl.sbp.mesh import Mesh


def test_all_group_shapes_of_a_4x2_cluster():
    assert set(shapes(Mesh(4, 2))) == {
        Shape(1, 2, 1),
        Shape(2, 1, 2), Shape(2, 1, 1), Shape(4, 1, 2), Shape(4, 1, 1),
        Shape(2, 2, 1), Shape(4, 2, 1),
    }  # fmt: skip


@pytest.mark.parametrize("mesh", [Mesh(4, 2), Mesh(1, 6), Mesh(3, 1), Mesh(3, 4)], ids=str)
def test_points_are_distinct_and_their_pieces_even(mesh):
    points = schedule(mesh, message_sizes(1 << 20))
    assert len(set(points)) == len(points)
    assert {p.kind for p in points} == set(KINDS)
    for point in points:
        devices = point.shape.nodes * point.shape.gpus
        pieces = 1 if point.kind == "send" else devices ** (1 + (point.kind == "all_to_all"))
        assert point.bytes % (4 * pieces) == 0 and point.bytes > 0
        if point.kind != "send":
            assert mesh.topology(axes_of(mesh, point.shape)) == devices_of(point)


def devices_of(point: Point) -> tuple[int, int]:
    return point.shape.nodes, point.shape.gpus


@pytest.mark.parametrize("mesh", [Mesh(4, 2), Mesh(2, 4), Mesh(3, 6)], ids=str)
def test_as_many_groups_of_a_host_are_active_as_the_shape_says(mesh):
    for shape in shapes(mesh):
        active = [r for r in range(mesh.size) if is_active(mesh, shape, r)]
        on_first = [r for r in active if r < mesh.gpus_per_node]
        groups = {mesh.group(r, axes_of(mesh, shape)) for r in on_first}
        assert len(groups) == shape.groups
        assert all(set(group) <= set(active) for group in groups)


@pytest.mark.parametrize("mesh", [Mesh(4, 2), Mesh(3, 3)], ids=str)
def test_senders_and_receivers_agree(mesh):
    for shape in pairs(mesh):
        found = {r: pair_of(mesh, shape, r) for r in range(mesh.size)}
        used = {pair for pair in found.values() if pair is not None}
        for sender, receiver in used:
            assert found[sender] == found[receiver] == (sender, receiver)
            across = sender // mesh.gpus_per_node != receiver // mesh.gpus_per_node
            assert across == (shape.nodes == 2)
        crossing = [s for s, _ in used if s < mesh.gpus_per_node]
        assert len(crossing) == shape.groups


def test_one_size_or_one_device_is_refused():
    with pytest.raises(ValueError, match="at least two message sizes.*--max-bytes 4096"):
        message_sizes(4095)
    with pytest.raises(ValueError, match="at least two message sizes"):
        schedule(Mesh(1, 2), [1024])
    with pytest.raises(ValueError, match="at least two processes"):
        schedule(Mesh(1, 1), message_sizes())


def test_the_interval_of_a_median():
    # of six samples all lie on one side of the median with probability 2 / 64
    assert median_interval([6, 1, 5, 2, 4, 3], 0.95) == (1, 6)
    assert median_interval([5, 1, 2, 4, 3], 0.95) is None
    assert least_samples(0.95) == 6
    # textbook value: n = 25, ranks 8 and 18 hold the median with 95.7 %
    assert median_interval(range(1, 26), 0.95) == (8, 18)
    assert half_interval([1.0] * 6, 0.95) == 0.0
    assert half_interval([1.0, 1.0, 1.0, 1.0, 1.0, 2.0], 0.95) == 0.5
