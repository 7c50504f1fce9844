"""Signs of life of commands that last, and what Ctrl-C leaves."""

import contextlib
import io
import logging
import time

import pytest
from click.testing import CliRunner

from autoddl.planner.baselines.pricing import BaselinePricer
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.format import LEFT, before, more
from autoddl.tools import at_work as signs
from autoddl.tools.at_work import at_work
from autoddl.tools.cli import main
from autoddl.tools.compare import MEGATRON_STAGES, OURS, compare
from autoddl.tools.report.compare import comparison_report
from tests.clusters import cluster
from tests.graphs import attention
from tests.plans.example import PLAN

GRAPH, WHERE = attention(4, 8, 6, 16, 2), cluster("gcp_a100", 4, 1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_quick_says_nothing():
    stream = io.StringIO()
    with at_work("planning", stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_a_warning_stays_as_a_line_and_is_told_once(stream):
    with at_work("planning", stream):
        for _ in range(2):
            logging.getLogger("autoddl.planner").warning("the hosts of %s are faster alone", "V100")
    assert stream.getvalue().endswith("the hosts of V100 are faster alone\n")
    assert stream.getvalue().count("V100") == 1


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_what_lasts_says_what_it_does_and_what_it_found(stream, monkeypatch):
    for name in ("EVERY_S", "LOG_EVERY_S"):
        monkeypatch.setattr(signs, name, 0.01)
    with at_work("planning gpt", stream, first_s=0.01):
        logging.getLogger("autoddl.planner").info("best so far %s", "3 ms")
        while "best so far" not in stream.getvalue():
            time.sleep(0.01)
    told = stream.getvalue()
    assert "planning gpt: 0 s; best so far 3 ms" in told
    assert told.endswith("\r\x1b[K" if stream.isatty() else "\n")
    assert not logging.getLogger("autoddl").handlers


def test_a_narrow_terminal_shows_what_was_found(monkeypatch):
    """A long file's name had taken its place."""
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(signs, "EVERY_S", 0.01)
    with at_work("comparing plans of /home/me/a/folder/with/gpt_0_35b.json", stream, first_s=0.01):
        logging.getLogger("autoddl.planner").info("best so far 3 ms")
        while "best so far" not in stream.getvalue():
            time.sleep(0.01)
    lines = stream.getvalue().split("\r")
    told = next(line.removesuffix("\x1b[K") for line in lines if "best so far" in line)
    assert told.startswith("comparing plans of /home") and told.endswith("0 s; best so far 3 ms")
    assert len(told) == 59


def test_it_ends_with_an_error():
    stream = Terminal()
    with pytest.raises(ValueError, match="no plan"), at_work("planning", stream):
        raise ValueError("no plan")
    assert not logging.getLogger("autoddl").handlers


def test_what_is_left_is_shown_where_it_is_narrow(monkeypatch):
    """What was found gives way to it, once nothing more of what is done does."""
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(signs, "EVERY_S", 0.01)
    with (
        at_work("planning gpt_0_35b.json on gcp_a100", stream, first_s=0.01, budget_s=30),
        before(more(5, "known scheme")),
    ):
        logging.getLogger("autoddl.planner").info("best so far 3.21 ms with 4 micro-batches")
        while "best so" not in stream.getvalue():
            time.sleep(0.01)
    lines = stream.getvalue().split("\r")
    told = next(line.removesuffix("\x1b[K") for line in lines if "best so" in line)
    assert told == "planning\u2026: 0 of 30 s; best so far 3.21 ms \u2026; left: 5 more \u2026"
    assert len(told) == 59


class Left(logging.Handler):
    """Keeps what is told to be left, and between that when the best so far was told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


def test_planning_tells_what_is_left_and_that_comes(listening):
    """Each known scheme is one less; what is named as left is what is done next."""
    heard = listening(Left())
    find_plan(GRAPH, WHERE, PlanOptions(micro_batches=2))
    told = list(dict.fromkeys(heard.told))
    assert told[0] == "left: overlap, known schemes"
    assert "left: known schemes" in told[told.index(told[0]) + 1 :]
    schemes = [line for line in told if line.endswith(("more known scheme", "more known schemes"))]
    counts = [int(line.split()[1]) for line in schemes]
    assert counts == list(range(counts[0], 0, -1)) and counts[0] >= 3
    assert told.index(schemes[0]) > told.index("left: known schemes")
    assert heard.told[-1] == "the last part"


def test_a_comparison_in_stages_tells_what_is_left(listening):
    heard = listening(Left())
    compare(GRAPH, WHERE, stages=True)
    told = list(dict.fromkeys(heard.told))
    assert told[0] == "left: the comparison, Megatron in stages"
    assert told[1] == "left: pipeline stages, the comparison and 1 more"
    assert "left: overlap, known schemes and 3 more" in told
    assert "left: a plan of each stage, the comparison and 1 more" in told
    assert told.index("left: Megatron in stages") > told.index(
        "left: pipeline stages, the comparison and 1 more"
    )
    assert heard.told[-1] == "the last part"


class Told(logging.Handler):
    """Presses Ctrl-C when it is told of a plan for the `number`th time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.told = number, []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == LEFT:
            return
        self.told.append(record.getMessage())
        if len(self.told) == self.number:
            raise KeyboardInterrupt


@pytest.fixture
def listening():
    logger = logging.getLogger("autoddl")
    logger.setLevel(logging.INFO)
    handlers: list[logging.Handler] = []

    def listen(handler):
        handlers.append(handler)
        logger.addHandler(handler)
        return handler

    yield listen
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("stages", [None, 2])
def test_ctrl_c_gives_the_best_plan_so_far(listening, stages):
    heard = listening(Told(1))
    options = PlanOptions(baselines=False, stages=stages, micro_batches=None if stages else 2)
    plan = find_plan(GRAPH, WHERE, options)
    assert heard.told and "best so far" in heard.told[0]
    plan.verify()
    assert plan.num_stages == (stages or 1)
    if stages is None:
        assert plan.stage.search.end == "interrupted"


def test_ctrl_c_while_known_schemes_are_priced_leaves_the_plan(monkeypatch):
    """Their pricing tells nothing, so the key is pressed as it asks for the second scheme's."""
    asked = []

    def pressed(pricer, *given):
        asked.append(given)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return best(pricer, *given)

    best = BaselinePricer._best
    monkeypatch.setattr(BaselinePricer, "_best", pressed)
    plan = find_plan(GRAPH, WHERE, PlanOptions(micro_batches=2))
    plan.verify()
    assert len(asked) == 2 and plan.baselines == ()
    assert plan.stage.search.end == "interrupted" and plan.stage.search.lower_bound_s


def test_ranks_of_a_job_say_nothing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    stream = io.StringIO()
    with at_work("looking", stream, first_s=0):
        time.sleep(0.1)
    assert stream.getvalue() == ""


class AtStages(Told):
    """Presses Ctrl-C when plans in stages begin."""

    def emit(self, record: logging.LogRecord) -> None:
        if "now Megatron in stages" in record.getMessage():
            raise KeyboardInterrupt


def test_an_interrupted_comparison_shows_what_was_found(listening):
    listening(AtStages(0))
    found = compare(GRAPH, WHERE, stages=True)
    schemes = {row["name"]: row for row in comparison_report(found).to_json()["schemes"]}
    assert schemes[OURS]["fits"] and "data parallel" in schemes
    assert not found.is_whole and MEGATRON_STAGES not in schemes


@pytest.mark.parametrize("stages", [False, True])
def test_ctrl_c_while_our_plan_is_searched_ends_the_comparison(listening, stages):
    """The key is pressed once: nothing is priced after it."""
    heard = listening(Told(1))
    found = compare(GRAPH, WHERE, stages=stages)
    assert [scheme.name for scheme in found.schemes] == [OURS] and not found.is_whole
    assert "interrupted" in str(comparison_report(found).to_json())
    assert not any("now" in told for told in heard.told)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("explain plan.json", "reading plan.json"),
        ("memory plan.json", "reading plan.json"),
        ("diff plan.json plan.json", "comparing plan.json with plan.json"),
        ("export plan.json -o parallel.py", "reading plan.json"),
        ("calibrate --refit --output mine.json", "preparing to measure"),
    ],
)
def test_commands_that_read_large_files_give_a_sign(command, expected, tmp_path, monkeypatch):
    told = []

    @contextlib.contextmanager
    def heard(what, **_):
        told.append(what)
        yield

    monkeypatch.setattr(signs, "at_work", heard)
    monkeypatch.chdir(tmp_path)
    PLAN.save("plan.json")
    CliRunner().invoke(main, command.split())
    assert told[0] == expected
