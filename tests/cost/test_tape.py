"""Lifetimes on a tape: by hand, and against a count of every moment."""

from hypothesis import given
from hypothesis import strategies as st

from autoddl.cost.tape import ALIGNMENT_BYTES as U
from autoddl.cost.tape import Strand, Tape, aligned, held_in_turns


def test_sizes_are_whole_units():
    assert [aligned(n) for n in (0, 1, U, U + 1, 10.5 * U)] == [0, U, U, 2 * U, 11 * U]


def test_a_tensor_lives_from_its_producer_to_its_last_reader():
    tape = Tape()
    tape.act("a", [], [("x", 4 * U, "activations")])
    tape.act("b", ["x"], [("y", 2 * U, "activations")])
    tape.act("c", ["y"], [("z", 3 * U, "gradients")])
    peak = tape.sweep()
    assert (peak.bytes, peak.moment) == (6 * U, "b")
    tape.act("d", ["x", "z"], [])  # now x is there while z is
    peak = tape.sweep()
    assert (peak.bytes, peak.moment) == (9 * U, "c")
    assert peak.by_cause == {"activations": 6 * U, "gradients": 3 * U}
    assert peak.largest[0] == (4 * U, "activations", "a")


def test_what_is_there_all_the_time_is_added_and_a_workspace_only_while_it_is_used():
    tape = Tape()
    tape.keep("parameters", 5 * U)
    tape.act("a", [], [("x", U, "activations")], workspace=7 * U)
    tape.act("b", ["x"], [("y", 2 * U, "activations")])
    peak = tape.sweep()
    assert (peak.bytes, peak.moment) == (13 * U, "a")
    assert peak.by_cause == {"parameters": 5 * U, "activations": U, "workspace": 7 * U}
    assert peak.always == {"parameters": 5 * U}


def in_place(read_again: bool) -> int:
    tape = Tape()
    tape.act("a", [], [("x", 4 * U, "activations")])
    tape.act("relu", ["x"], [("y", 4 * U, "activations")], over={"y": "x"})
    tape.act("c", ["x", "y"] if read_again else ["y"], [])
    return tape.sweep().bytes


def test_an_output_takes_the_place_of_an_input_that_nobody_reads_again():
    assert in_place(read_again=False) == 4 * U
    assert in_place(read_again=True) == 8 * U


def test_a_view_keeps_its_source_alive():
    tape = Tape()
    tape.act("a", [], [("x", 4 * U, "activations")])
    tape.view("v", "x")
    tape.act("b", [], [("y", 2 * U, "activations")])
    tape.act("c", ["v", "y"], [])
    assert tape.sweep().bytes == 6 * U
    assert tape.root("v") == "x"


TAPES = st.lists(
    st.tuples(
        st.integers(0, 9),  # units that the action makes
        st.integers(0, 5),  # of workspace
        st.lists(st.integers(0, 30), max_size=3),  # which earlier tensors it reads
    ),
    min_size=1,
    max_size=12,
)


@given(TAPES)
def test_the_sweep_is_the_largest_of_all_moments(actions):
    tape = Tape()
    reads: list[set[int]] = []
    for number, (size, workspace, read) in enumerate(actions):
        chosen = {r % number for r in read} if number else set()
        reads.append(chosen)
        tape.act(
            str(number), [f"t{r}" for r in sorted(chosen)],
            [(f"t{number}", size * U, "activations")], workspace * U,
        )  # fmt: skip
    moments = []
    for now, (_, workspace, _) in enumerate(actions):
        alive = [
            made
            for made in range(now + 1)
            if made == now or any(made in reads[later] for later in range(now, len(actions)))
        ]
        moments.append(sum(actions[made][0] for made in alive) + workspace)
    assert tape.sweep().bytes == max(moments) * U
    assert [moment.bytes for moment in tape.course()] == [count * U for count in moments]


STRANDS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=8
)


@given(st.lists(STRANDS, min_size=2, max_size=3), st.data())
def test_strands_in_turns_hold_what_their_last_actions_do_and_what_their_queues_still_need(
    actions, data
):
    """As each moment says it: whoever is at work, on either queue, holds its workspace."""
    strands: list[Strand] = []
    for strand in actions:
        own, rooms, travels = map(list, zip(*strand, strict=True))
        held = [a + b for a, b in zip(own, rooms, strict=True)]
        strands.append(Strand(held, rooms, travels, range(len(strand) + 1)))
    left = [n for n, strand in enumerate(actions) for _ in strand]
    order = data.draw(st.permutations(left))
    turns, at, most = [], [0] * len(actions), 0
    issued: list[tuple[int, int]] = []
    for number in order:
        issued.append((number, at[number]))
        at[number] += 1
        turns.append((number, at[number]))
        now = 0
        for strand in range(len(actions)):
            mine = [place for place, one in enumerate(issued) if one[0] == strand]
            if not mine:
                continue
            size, room, queue = actions[strand][issued[mine[-1]][1]]
            later = issued[mine[-1] + 1 :]
            is_over = any(actions[one][action][2] == queue for one, action in later)
            now += size + (0 if is_over else room)
        most = max(most, now)
    assert held_in_turns(strands, turns) == most


def test_a_queue_carries_one_transfer_after_the_other():
    """Both strands move 10 with 7 more meanwhile: never 14 more at once, but 7 beside computing."""
    strand = Strand([17, 10], [7, 0], [True, False], [0, 1, 2])
    assert held_in_turns([strand, strand], ((0, 1), (1, 1), (0, 2), (1, 2))) == 27
