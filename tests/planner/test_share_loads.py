"""Shares for given strategies: against all shares, and against the account of a plan."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.shares import Loads, Strategies, better_shares, filled
from autoddl.plans.figures import figures
from autoddl.plans.stage_figures import stage_figures
from tests.graphs import attention
from tests.planner.test_shares import WIDE, unlike


def random_loads(rng):
    """Two to four hosts of two or three kinds, at most 24 units; rooflines of random devices.

    In half of the cases some kind has no memory for what it wants.
    """
    hosts = int(rng.integers(2, 5))
    kinds = int(rng.integers(2, min(3, hosts) + 1))
    cuts = np.sort(rng.choice(np.arange(1, hosts), kinds - 1, replace=False))
    runs = tuple(np.diff([0, *cuts, hosts]).tolist())
    units = int(rng.integers(hosts, 25))
    parts = np.arange(1, units + 1) / units
    each, kind = (int(rng.integers(1, 12)), 1, 1), (1, kinds, 1)
    arithmetic = rng.uniform(0.1, 5, each) / rng.uniform(0.2, 1, kind) * parts
    whole, divided = rng.uniform(0, 1, each), rng.uniform(0, 1, each)
    traffic = (whole + divided * parts) / rng.uniform(0.5, 1, kind)
    compute_s = np.maximum(arithmetic, traffic) + rng.uniform(0, 0.05)
    room = (units,) * kinds
    if rng.random() < 0.5:
        room = tuple(rng.integers(0, units + 1, kinds).tolist())
    largest_s = float(rng.choice((0.0, 1.0, 4.0)))
    return Loads(compute_s, float(rng.uniform(0, 1)), largest_s, runs, room)


def least_of_all(loads):
    """Of all shares of all runs."""
    hosts = sum(loads.runs)
    kind_of = np.repeat(np.arange(len(loads.runs)), loads.runs)
    inner = np.array(list(itertools.combinations(range(1, loads.units), hosts - 1)))
    shares = np.diff(inner.reshape(-1, hosts - 1), axis=1, prepend=0, append=loads.units)
    most = [shares[:, kind_of == kind].max(axis=1) for kind in range(len(loads.runs))]
    return loads.seconds(np.stack(most, axis=1)).min()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_the_best_shares_of_given_strategies_against_all(seed):
    """Also where memory, which the free ones may not fit, has room for no shares or for few."""
    rng = np.random.default_rng(seed)
    tries, none, held = 1_000 if seed else 40, 0, 0
    for _ in range(tries):
        loads = random_loads(rng)
        most, seconds = loads.best()
        assert seconds == pytest.approx(least_of_all(loads), rel=1e-12)
        if seconds == math.inf:
            none += 1
            continue
        shares = filled([m for m, n in zip(most, loads.runs, strict=True) for _ in range(n)],
                        loads.units)  # fmt: skip
        assert sum(shares) == loads.units and min(shares) >= 1
        assert all(m <= own for m, own in zip(most, loads.room, strict=True))
        free = replace(loads, room=(loads.units,) * len(loads.runs))
        held += free.best()[1] < seconds
    assert 0.02 * tries < none < 0.3 * tries and held > 0.05 * tries


@pytest.mark.parametrize("shares", ["3:1", "5:3"])
def test_what_a_device_needs_is_affine_in_its_part(shares):
    """As the room for shares takes it to be; of a small part another moment is the fullest."""
    plan = find_plan(WIDE, unlike(), PlanOptions(shares=shares, baselines=False, overlap=False))
    needed = stage_figures(plan.stage).needed_by
    large = max(plan.stage.shares) / sum(plan.stage.shares)
    each = 2 * (needed(large) - needed(large / 2)) / large
    assert each > 0
    for part in (0.1, 0.2, 0.35, 0.5, 0.7, 0.9):
        affine = needed(large) + each * (part - large)
        more = (needed(part) - affine) / needed(large)
        assert -1e-3 < more < (1e-3 if part > 0.3 else 0.08), part


def test_four_kinds_are_near_the_best():
    rng = np.random.default_rng(2)
    for _ in range(10):
        parts = np.arange(1, 13) / 12
        rates = rng.uniform(0.2, 1, (1, 4, 1))
        loads = Loads(rng.uniform(0.1, 1, (6, 1, 1)) / rates * parts, 0.0, 1.0, (1,) * 4, (12,) * 4)
        assert loads.best()[1] <= 1.05 * least_of_all(loads)


@pytest.mark.parametrize("graph", [WIDE, attention(16, 16, 64, 256, 4)])
def test_seconds_at_other_shares_are_those_of_the_account(graph):
    where = unlike(2, 2, 2, factor=2.0, link=3.0)
    plan = find_plan(graph, where, PlanOptions(shares="3:1", baselines=False, overlap=False))
    loads = Strategies.of(plan).loads(8)
    for shares in ((6, 2), (5, 3), (7, 1)):
        common = math.gcd(*shares)
        there = figures(plan.at_shares(tuple(n // common for n in shares)))
        found = float(loads.seconds(np.array([shares]))[0])
        assert found == pytest.approx(there.iteration_s, rel=1e-6)


def test_better_shares_divide_the_rows():
    plan = find_plan(WIDE, unlike(factor=2.0), PlanOptions(shares="3:1", baselines=False))
    assert better_shares(plan, 3) == (2, 1)
    assert sum(better_shares(plan, 512)) <= 64
    assert filled((3, 2, 2), 5) == (3, 1, 1)
