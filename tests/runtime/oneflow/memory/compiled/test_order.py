"""The compiler's order, and the chains that share memory."""

from autoddl.cost.tape import ALIGNMENT_BYTES as U
from autoddl.cost.tape import Tape
from autoddl.runtime.oneflow.memory.compiled.chains import compiled_peak, split
from autoddl.runtime.oneflow.memory.compiled.order import compiled_order


def names(tape: Tape) -> list[str]:
    return [action.name for action in tape.actions]


def diamond(transfer) -> Tape:
    """a is read by b (large) and by c (nothing); d reads both; e sends d's result."""
    tape = Tape()
    tape.act("a", [], [("a", 2 * U, "activations")])
    tape.act("b", ["a"], [("b", 8 * U, "activations")])
    tape.act("c", ["a"], [("c", U, "activations")])
    tape.act("d", ["b", "c"], [("d", U, "activations")])
    tape.act("e", ["d"], [("e", U, "redistribution")], transfer=transfer)
    tape.act("g", ["d"], [("g", U, "activations")])
    tape.act("f", ["e", "g"])
    return tape


def test_with_collectives_the_order_is_breadth_first_last_reader_first():
    assert names(compiled_order(diamond("planned"))) == ["a", "c", "b", "d", "g", "e", "f"]


def test_an_implied_collective_runs_just_before_its_reader():
    tape = diamond("implied")
    tape.act("h", ["g"], [("h", U, "activations")])
    assert names(compiled_order(tape)) == ["a", "c", "b", "d", "g", "h", "e", "f"]


def test_without_collectives_what_adds_least_memory_goes_first():
    order = names(compiled_order(diamond("")))
    assert order.index("c") < order.index("b")
    assert sorted(order) == sorted("abcdegf") and order[-1] == "f"


def test_what_tensors_do_not_connect_is_another_chain():
    tape = Tape()
    tape.act("a", [], [("a", 2 * U, "activations")])
    tape.act("b", ["a"])
    tape.act("x", ["always:0"], [("x", 3 * U, "activations")])
    tape.act("y", ["x"])
    assert [names(chain) for chain in split(tape)] == [["a", "b"], ["x", "y"]]
    late = Tape()
    late.act("update", [], [("u", 4 * U, "gradients")])
    # the last chain and what follows share a block, the first has one of its own
    assert compiled_peak(tape, late, 2, "operators").bytes == (2 + 4) * U
    assert compiled_peak(tape, late, 2, "tasks").bytes == (2 + 3 + 4) * U
    assert compiled_peak(tape, Tape(), 2, "apart").bytes == (2 + 3) * U
    assert compiled_peak(tape, Tape(), 1, "tasks").bytes == 3 * U


def test_what_follows_the_last_micro_batch_keeps_the_first_result():
    def tape() -> Tape:
        made = Tape()
        made.act("a", [], [("a", 2 * U, "activations")])
        made.act("b", ["a"], [("b", U, "activations")])
        made.act("c", ["b"], [("c", 2 * U, "activations")])
        return made

    assert compiled_peak(tape(), Tape(), 2, "operators").bytes == (2 + 1 + 2) * U
    assert compiled_peak(tape(), Tape(), 2, "apart").bytes == 3 * U


def test_an_addition_to_other_micro_batches_does_not_queue():
    tape = diamond("planned")
    tape.act("add", ["b"], transfer="added")
    order = names(compiled_order(tape))
    assert order[order.index("b") + 1] == "add"
