"""Schedules: golden files, notation, memory, closed forms, and mutations that must be caught."""

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.plans.schedule.make import make_schedule, verify
from autoddl.plans.schedule.orders import SCHEDULES, Action, Kind
from autoddl.plans.schedule.schedule import Costs, Schedule, chain
from autoddl.plans.schedule.simulate import (
    Deadlock,
    Transfer,
    actions_of,
    all_tasks,
    needs,
    simulate,
    sorted_tasks,
)

GOLDEN = Path(__file__).parent / "golden"
RECEIVED: dict[Kind, Kind] = {"F": "RF", "B": "RB"}  # before what comes from another stage
OTHER_END: dict[Kind, Kind] = {"SF": "RF", "RF": "SF", "SB": "RB", "RB": "SB"}
CASES = {
    "gpipe-3x4": {"name": "gpipe", "stages": 3, "micro_batches": 4},
    "1f1b-4x8": {"name": "1f1b", "stages": 4, "micro_batches": 8},
    "1f1b-3x5-delay1": {"name": "1f1b", "stages": 3, "micro_batches": 5, "delay": 1},
    "1f1b-4x4-skips": {
        "name": "1f1b", "stages": 4, "micro_batches": 4, "flows": [*chain(4), (0, 3), (1, 2)],
    },
    "eager-1f1b-4x8": {"name": "eager-1f1b", "stages": 4, "micro_batches": 8},
    "interleaved-1f1b-2x4-chunks2": {
        "name": "interleaved-1f1b", "stages": 2, "micro_batches": 4, "chunks": 2,
    },
    "zb-h1-4x8": {"name": "zb-h1", "stages": 4, "micro_batches": 8},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    """For a diff, see the file that `python -m tests.plans.schedule.goldens` writes."""
    text = str(make_schedule(**CASES[case]))
    assert text == (GOLDEN / f"{case}.txt").read_text()
    assert str(Schedule.parse(text)) == text
    assert Schedule.parse(text) == make_schedule(**CASES[case])


@st.composite
def schedules(draw):
    name = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.integers(1, 5))
    micro_batches = draw(st.integers(1, 8))
    chunks = 1
    if name == "interleaved-1f1b":
        micro_batches = stages * draw(st.integers(1, 3))
        chunks = draw(st.integers(1, 3))
    delay = None if name == "zb-h1" else draw(st.sampled_from([None, 0, 1, 3]))
    parts = stages * chunks
    pairs = [(u, v) for v in range(parts) for u in range(v)]
    skips = draw(st.lists(st.sampled_from(pairs), max_size=3)) if pairs else []
    times = st.floats(0.1, 3)
    flows = tuple(sorted({*chain(parts), *skips}))
    forward, backward, weight = (tuple(draw(times) for _ in range(parts)) for _ in range(3))
    activation, gradient = ({f: draw(st.floats(0, 2)) for f in flows} for _ in range(2))
    costs = Costs(forward, backward, weight, activation, gradient)
    overlap = draw(st.booleans())
    schedule = make_schedule(
        name, stages, micro_batches,
        chunks=chunks, delay=delay, flows=flows, costs=costs, overlap=overlap,
    )  # fmt: skip
    return schedule, costs


@given(schedules())
@settings(max_examples=35)
def test_every_schedule_is_valid_and_runs(drawn):
    schedule, costs = drawn
    verify(schedule)
    assert Schedule.parse(str(schedule)) == schedule
    for overlap in (True, False):
        timeline = simulate(schedule, costs, overlap)
        _check_timeline(schedule, timeline, overlap)
        assert all(p <= q for p, q in zip(timeline.peak_stash, schedule.stash, strict=True))
    _check_transfer_order(schedule, simulate(schedule, costs))


def _check_timeline(schedule, timeline, overlap):
    """Judged on the spans alone: what is needed is over, streams do one thing at a time."""
    at = {(s.stage, s.action): (s.start_s, s.end_s) for s in timeline.spans}
    assert len(at) == len(timeline.spans) == sum(map(len, schedule.actions))
    for stage, actions in enumerate(schedule.actions):
        for kind in (True, False):
            stream = [a for a in actions if not overlap or a.is_compute == kind]
            times = [at[stage, a] for a in stream]
            assert all(a[1] <= b[0] for a, b in zip(times, times[1:], strict=False))
        for action in actions:
            start, end = at[stage, action]
            part = schedule.part(stage, action.chunk)
            m, c = action.micro_batch, action.chunk
            last: Kind = "W" if schedule.joint else "B"
            before: dict[Kind, Kind] = {"B": "F", "W": "B", "SF": "F", "SB": last}
            wanted = [(stage, Action(before[action.kind], m, c))] if action.kind in before else []
            for u, v in schedule.flows:
                if part == {"F": v, "B": u}.get(action.kind):
                    other = u if action.kind == "F" else v
                    chunk, peer = divmod(other, schedule.stages)
                    wanted.append(
                        (stage, Action(RECEIVED[action.kind], m, c, peer, chunk))
                        if peer != stage
                        else (stage, Action("F" if action.kind == "F" else last, m, chunk))
                    )
            assert all(at[w][1] <= start for w in wanted), (action, wanted)
            if not action.is_compute:
                other = Action(OTHER_END[action.kind], m, action.peer_chunk, stage, action.chunk)
                assert at[action.peer, other] == (start, end)


def _check_transfer_order(schedule, timeline):
    """By their starts, the transfers of all stages are one order that every stage's queue keeps."""
    starts = {(span.stage, span.action): span.start_s for span in timeline.spans}
    order = [t for t in sorted_tasks(schedule) if isinstance(t, Transfer)]
    # a stable sort: equal starts stay in an order in which each follows what it waits for
    order.sort(key=lambda t: starts[next(actions_of(schedule, t))])
    assert len(set(order)) == len(order)
    for stage in range(schedule.stages):
        mine = [
            t
            for t in order
            if stage in (schedule.stage_of(t.sender), schedule.stage_of(t.receiver))
        ]
        queue = schedule.communication(stage)
        assert [(t.direction, t.micro_batch) for t in mine] == [
            (a.kind[1], a.micro_batch) for a in queue
        ]


@given(schedules(), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_mutations_are_caught(drawn, rng: random.Random):
    schedule, _ = drawn
    stage = rng.randrange(schedule.stages)
    actions = list(schedule.actions[stage])
    at = rng.randrange(len(actions))

    def mutant(changed: list[Action]) -> Schedule:
        lists = (*schedule.actions[:stage], tuple(changed), *schedule.actions[stage + 1 :])
        return dataclasses.replace(schedule, actions=lists)

    other = dataclasses.replace(actions[at], micro_batch=actions[at].micro_batch + 1)
    mutants = {
        "dropped": actions[:at] + actions[at + 1 :],
        "twice": actions[: at + 1] + actions[at:],
        "another micro-batch": [*actions[:at], other, *actions[at + 1 :]],
    }
    forward = next(i for i, a in enumerate(actions) if a.kind == "F")
    backward = next(i for i, a in enumerate(actions) if a.kind == "B")
    weight = next(i for i, a in enumerate(actions) if a.kind == "W")
    mutants["backward first"] = _swapped(actions, forward, backward)
    mutants["weights first"] = _swapped(actions, backward, weight)
    peers = [(i, a) for i, a in enumerate(actions) if not a.is_compute]
    for i, a in peers:
        same = [j for j, b in peers if j > i and (b.kind, b.peer) == (a.kind, a.peer)]
        if same:
            # two messages of one kind to one peer, the other way round: the ends do not meet
            mutants["crossed"] = _swapped(actions, i, same[0])
            break
    for what, changed in mutants.items():
        with pytest.raises(ValueError, match=r"stage \d|stuck|does not lead"):
            verify(mutant(changed))
            pytest.fail(what)
    least = tuple(p - 1 for p in simulate(schedule, _ones(schedule)).peak_stash)
    with pytest.raises(ValueError, match="holds"):
        verify(dataclasses.replace(schedule, stash=least))


def _swapped(actions, i, j):
    changed = list(actions)
    changed[i], changed[j] = changed[j], changed[i]
    return changed


def _ones(schedule, **costs):
    return Costs.uniform(schedule.parts, schedule.flows, **costs)


def test_two_stages_that_send_to_each_other_deadlock():
    """The well-known trap of 1F1B with blocking sends."""
    schedule = make_schedule("1f1b", 2, 4)
    first, second = map(list, schedule.actions)
    send = next(a for a in second if a.kind == "SB")
    receive = next(i for i, a in enumerate(second) if a == Action.parse("RF1<0"))
    second.remove(send)
    second.insert(receive, send)
    broken = dataclasses.replace(schedule, actions=(tuple(first), tuple(second)))
    with pytest.raises(Deadlock, match="stage 0 at B0, SF1>1; stage 1 at SB0>0"):
        verify(broken)


def test_joint_halves_must_touch():
    schedule = make_schedule("1f1b", 2, 4, delay=1)
    with pytest.raises(ValueError, match="jointly"):
        verify(dataclasses.replace(schedule, joint=True))


def test_every_task_is_needed_once():
    schedule = make_schedule("interleaved-1f1b", 2, 4, chunks=2)
    tasks = list(all_tasks(schedule))
    assert len(set(tasks)) == len(tasks)
    assert {need for t in tasks for need in needs(schedule, t)} <= set(tasks)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_closed_forms(stages, rounds):
    m = stages * rounds
    f, b, w = 2.0, 1.5, 1.0
    for name in ("gpipe", "1f1b", "eager-1f1b"):
        schedule = make_schedule(name, stages, m)
        timeline = simulate(schedule, _ones(schedule, forward_s=f, backward_s=b, weight_s=w))
        assert timeline.makespan_s == pytest.approx((m + stages - 1) * (f + b + w)), name
        assert timeline.bubble == pytest.approx((stages - 1) / (m + stages - 1)), name
    for chunks in (1, 2, 3):
        schedule = make_schedule("interleaved-1f1b", stages, m, chunks=chunks)
        each = {"forward_s": f / chunks, "backward_s": b / chunks, "weight_s": w / chunks}
        timeline = simulate(schedule, _ones(schedule, **each))
        expected = (m + (stages - 1) / chunks) * (f + b + w)
        assert timeline.makespan_s == pytest.approx(expected), chunks
    schedule = make_schedule("zb-h1", stages, m)
    timeline = simulate(schedule, _ones(schedule))
    assert timeline.makespan_s == pytest.approx(3 * m + stages - 1)
    if m >= stages:
        assert timeline.peak_stash == (stages,) * stages


@pytest.mark.parametrize(("stages", "m"), [(2, 8), (4, 16)])
def test_promised_stash_is_reached(stages, m):
    promised = {
        "gpipe": [m] * stages,
        "1f1b": [stages - i for i in range(stages)],
        "eager-1f1b": [2 * (stages - i) - 1 for i in range(stages)],
        "zb-h1": [stages] * stages,
    }
    for name, stash in promised.items():
        schedule = make_schedule(name, stages, m)
        assert list(schedule.stash) == stash
        assert list(simulate(schedule, _ones(schedule)).peak_stash) == stash


@pytest.mark.parametrize("stages", [2, 4])
def test_eager_hides_transfers_and_1f1b_does_not(stages):
    """What transfers add must not grow with the micro-batches; weights' halves hide gradients."""
    each = {"forward_s": 2.0, "backward_s": 2.0, "weight_s": 2.0}

    def added(name, m, delay):
        costs = Costs.uniform(stages, chain(stages), **each, transfer_s=0.8)
        schedule = make_schedule(name, stages, m, delay=delay, costs=costs)
        return (
            simulate(schedule, costs).makespan_s
            - simulate(schedule, _ones(schedule, **each)).makespan_s
        )

    for m in (8, 16, 32):
        assert added("1f1b", m, None) > 0.75 * m
        assert added("eager-1f1b", m, 0) == pytest.approx(added("eager-1f1b", 8, 0))
    assert added("eager-1f1b", 32, 0) < added("1f1b", 32, None) / 4


def test_one_stream_pays_every_transfer():
    schedule = make_schedule("1f1b", 2, 4, overlap=False)
    free = simulate(schedule, _ones(schedule), overlap=False).makespan_s
    paid = simulate(schedule, _ones(schedule, transfer_s=0.5), overlap=False).makespan_s
    assert paid >= free + 4 * 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "2f2b", "stages": 2, "micro_batches": 4},
         "unknown schedule '2f2b'; known: gpipe"),
        ({"name": "1f1b", "stages": 0, "micro_batches": 4}, "stages must be at least 1"),
        ({"name": "1f1b", "stages": 2, "micro_batches": 0}, "micro_batches must be at least 1"),
        ({"name": "1f1b", "stages": 2, "micro_batches": 4, "chunks": 2}, "one chunk a stage"),
        ({"name": "interleaved-1f1b", "stages": 3, "micro_batches": 4},
         "do not divide by 3 stages"),
        ({"name": "zb-h1", "stages": 3, "micro_batches": 4, "delay": 1}, "leave delay out"),
        ({"name": "1f1b", "stages": 2, "micro_batches": 4, "delay": -1}, "0 or more"),
        ({"name": "1f1b", "stages": 2, "micro_batches": 4, "flows": [(1, 0)]},
         "later one of the 2"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(**call)


@pytest.mark.parametrize(
    "text", ["X3", "F", "F3>1", "SF3", "SF3<1", "RB1>0", "F3.", "f3", "SF3>1.2.3"]
)
def test_not_an_action(text):
    with pytest.raises(ValueError, match="is not an action"):
        Action.parse(text)


@pytest.mark.parametrize("text", ["F0", "W12.3", "SF3>1", "RB7.1<0.2", "SB10>3", "RF0<1.1"])
def test_action_text(text):
    assert str(Action.parse(text)) == text


def test_not_a_schedule():
    text = str(make_schedule("1f1b", 2, 2))
    for broken in (
        text.replace("stash 2", "stash x"),
        text.replace("0:", "5:"),
        "no",
        text + "2: F0",
    ):
        with pytest.raises(ValueError, match="not a schedule"):
            Schedule.parse(broken)
