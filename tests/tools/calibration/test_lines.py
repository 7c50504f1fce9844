"""Group shapes that were measured have lines of their own, and the prices follow them."""

import dataclasses

import pytest

from autoddl.cluster import Cluster
from autoddl.cost.collectives import CommModel
from autoddl.runtime.measure.schedule import SENDING, Shape
from autoddl.tools.calibration.fit import fit_links
from autoddl.tools.calibration.lines import LEAST_SIZES, fit_lines, lines_errors
from tests.clusters import cluster
from tests.runtime.measure.synthetic import medians

SLOW = Shape(2, 1, 2)


def measured(noise: float = 0.0):
    """Medians by the model, but one shape's take twice as long."""
    found = medians(4, 2, noise=noise, outliers=0.0)
    return {p: s * (2 if p.shape == SLOW else 1) for p, s in found.items()}


def test_a_line_describes_its_shape_where_one_alpha_and_beta_cannot():
    found = measured()
    lines = fit_lines(found)
    assert max(lines_errors(fit_links(found).residuals, lines).values()) < 0.02
    where = dataclasses.replace(cluster("laptop", 4, 2), lines=lines)
    plain, shared = CommModel(where, "plain"), CommModel(where)
    for point, seconds in found.items():
        shape = point.shape
        if shape != SLOW or point.kind == "send":
            continue
        latency, slope = shared.group_price(point.kind, 2, 1, 2.0)
        assert latency + slope * point.bytes == pytest.approx(seconds, rel=0.05)
    without = CommModel(cluster("laptop", 4, 2), "plain")
    assert plain.group_price("all_gather", 2, 1, 2.0) == without.group_price("all_gather", 2, 1, 2)


def test_only_groups_that_fill_their_hosts_and_have_enough_messages_get_a_line():
    lines = fit_lines(measured(noise=0.05))
    assert {line.kind for line in lines} == set(SENDING)
    assert all(line.gpus * line.groups == 2 for line in lines)
    assert all(line.latency_s >= 0 and line.s_per_byte >= 0 for line in lines)
    sizes = sorted({p.bytes for p in measured()})[: LEAST_SIZES - 1]
    assert fit_lines({p: s for p, s in measured().items() if p.bytes in sizes}) == ()
    assert fit_lines({}) == ()


def test_lines_stand_in_the_machine_file():
    where = dataclasses.replace(cluster("laptop", 4, 2), lines=fit_lines(measured()))
    assert Cluster.from_json(where.to_json()) == where
    data = where.to_json()
    data["lines"].append(data["lines"][0])
    with pytest.raises(ValueError, match="'lines'.*has a line already"):
        Cluster.from_json(data)
    data["lines"] = [{**data["lines"][0], "latency_s": -1}]
    with pytest.raises(ValueError, match=r"lines\[0\].latency_s"):
        Cluster.from_json(data)
