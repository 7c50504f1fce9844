"""Sums of fronts on arrays and in loops against all sums, one by one."""

import numpy as np
import pytest

from autoddl.compiled import COMPILER
from autoddl.search.along import eliminated_along
from autoddl.search.fronts import least_within
from autoddl.search.marginals import Contexts
from autoddl.search.pareto import (
    Fronts,
    Matches,
    TooMany,
    apart,
    in_loops,
    on_arrays,
    undominated,
)
from tests.search.test_along import chosen, deep, within


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


def looped(matches, most, loops):
    order = matches.made.argsort(kind="stable")
    arrays = (matches.one, matches.two, matches.made, matches.room)
    both = matches.first, matches.second
    return loops(
        *(array[order] for array in arrays),
        tuple(fronts.start for fronts in both),
        tuple(fronts.pairs for fronts in both),
        tuple(fronts.score for fronts in both),
        most,
    )


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
        for loops in (in_loops, COMPILER.compiled(in_loops)):
            found = looped(matches, 10**6, loops)
            assert found[0] == looked
            assert np.array_equal(found[1], entry) and np.array_equal(found[2], pairs)


def test_both_ways_look_at_no_more_than_they_may():
    matches = random_matches(np.random.default_rng(0))
    looked = on_arrays(matches, 10**6)[0]
    assert on_arrays(matches, looked)[0] == looked == looped(matches, looked, in_loops)[0]
    with pytest.raises(TooMany):
        on_arrays(matches, looked - 1)
    assert looped(matches, looked - 1, in_loops)[0] > looked - 1


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


def test_loading_compiled_loops_in_between_changes_nothing(monkeypatch):
    problem = deep(30)
    state = eliminated_along(problem, 2.0)
    monkeypatch.setattr(COMPILER, "arrays_s", -1e9)
    before = within(problem, state, 2.0, 1e3)
    monkeypatch.setattr(COMPILER, "arrays_s", 10.0)
    after = within(problem, state, 2.0, 1e3)
    assert before.work == after.work
    assert np.array_equal(chosen(before), chosen(after))


def test_fronts_in_loops_raise_too_many(monkeypatch):
    problem = deep(30)
    state = eliminated_along(problem, 2.0)
    monkeypatch.setattr(COMPILER, "arrays_s", 10.0)
    with pytest.raises(TooMany):
        least_within(problem, state, Contexts(state), 2.0, 1e3, 500)
