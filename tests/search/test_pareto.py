"""Sums of fronts on arrays and in loops against all sums, one by one."""

import numpy as np
import pytest

from autoddl._native.library import loops
from autoddl.search import pareto_elimination
from autoddl.search.budget import TooMany
from autoddl.search.elimination import eliminated_along_chains
from autoddl.search.pareto import Fronts, Matches, apart, in_loops, on_arrays, undominated
from tests.search.test_elimination_order import chosen, deep, within


def random_fronts(rng, entries):
    """Some entries are empty; memory is often equal, and sums of it are rounded."""
    entry = np.sort(rng.integers(0, entries, size=5 * entries))
    pairs = np.stack([rng.random(len(entry)), rng.integers(1, 9, size=len(entry)) / 3e9], axis=1)
    pairs[::3, 1] += 1.0
    keep = undominated(entry, pairs)
    return Fronts.of(entries, entry[keep], pairs[keep], 0.5)


def random_matches(rng, entries=6, made=4):
    first, second = random_fronts(rng, entries), random_fronts(rng, entries)
    one, two = (rng.integers(0, entries, size=20) for _ in range(2))
    out = rng.integers(0, made, size=20)
    return Matches(first, second, one, two, out, rng.random(20) * 2 + 0.5)


COMPILED = loops()
needs_loops = pytest.mark.skipif(COMPILED is None, reason="the loops were not compiled")


def looped(matches, most):
    assert COMPILED is not None
    return in_loops(COMPILED, matches, most)


def test_sums_are_the_undominated_ones_of_low_score():
    for seed in range(30):
        matches = random_matches(np.random.default_rng(seed))
        first, second = matches.first, matches.second
        sums = {}
        for one, two, made, room in zip(
            matches.one, matches.two, matches.made, matches.room, strict=True
        ):
            for a in range(first.start[one], first.start[one + 1]):
                for b in range(second.start[two], second.start[two + 1]):
                    if second.score[b] <= room - first.score[a]:
                        pair = tuple(first.pairs[a] + second.pairs[b])
                        sums.setdefault(made, set()).add(pair)
        expected = [
            (made, *pair)
            for made in sorted(sums)
            for pair in sorted(sums[made], key=lambda p: p[1])
            if not any(o != pair and o[0] <= pair[0] and o[1] <= pair[1] for o in sums[made])
        ]
        looked, entry, pairs = on_arrays(matches, 10**6)
        assert [(e, *p) for e, p in zip(entry, pairs, strict=True)] == expected
        if COMPILED is not None:
            found = looped(matches, 10**6)
            assert found[0] == looked
            assert np.array_equal(found[1], entry) and np.array_equal(found[2], pairs)


@pytest.mark.parametrize("way", [on_arrays, pytest.param(looped, marks=needs_loops)])
def test_no_more_is_looked_at_than_may_be(way):
    matches = random_matches(np.random.default_rng(0))
    looked = on_arrays(matches, 10**6)[0]
    assert way(matches, looked)[0] == looked
    for most in (looked - 1, looked // 2, 0):
        with pytest.raises(TooMany):
            way(matches, most)


@needs_loops
@pytest.mark.full
def test_long_fronts_are_the_same_in_loops():
    """Longer than the loops' first buffers."""
    rng = np.random.default_rng(5)

    def long(entries):
        entry = np.sort(rng.integers(0, entries, size=4_000))
        pairs = np.stack([rng.random(len(entry)), rng.random(len(entry))], axis=1)
        for own in range(entries):  # the less memory, the more cost
            which = np.flatnonzero(entry == own)
            pairs[which] = np.stack([-np.sort(-pairs[which, 0]), np.sort(pairs[which, 1])], axis=1)
        return Fronts.of(entries, entry, pairs, 0.5)

    first, second = long(2), long(40)
    one, two = rng.integers(0, 2, 60), rng.integers(0, 40, 60)
    matches = Matches(first, second, one, two, np.sort(rng.integers(0, 5, 60)), rng.random(60) + 1)
    looked, entry, pairs = on_arrays(matches, 10**8)
    found = looped(matches, 10**8)
    assert len(entry) > 5_000
    assert found[0] == looked
    assert np.array_equal(found[1], entry) and np.array_equal(found[2], pairs)


def test_pairs_apart_stand_for_the_others():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        front = random_fronts(rng, 6)
        step = rng.choice([1e-9, 0.05, 0.3, 10.0])
        keep = apart(front.entry, front.pairs, step)
        for entry in range(6):
            of_entry = np.flatnonzero(front.entry == entry)
            kept = front.pairs[np.intersect1d(of_entry, keep)]
            for cost, memory in front.pairs[of_entry]:
                assert ((kept[:, 0] < cost + step) & (kept[:, 1] <= memory)).any()
            assert (np.diff(np.floor(kept[:, 0] / step)) < 0).all()
    assert len(apart(np.zeros(0, np.int64), np.zeros((0, 2)), 0.1)) == 0


@needs_loops
def test_arrays_choose_what_loops_choose(monkeypatch):
    problem = deep(30)
    state = eliminated_along_chains(problem, 2.0)
    before = within(problem, state, 2.0, 1e3)
    monkeypatch.setattr(pareto_elimination, "loops", lambda: None)
    after = within(problem, state, 2.0, 1e3)
    assert before.work == after.work
    assert np.array_equal(chosen(before), chosen(after))
