"""What a calibration says while it measures, in a log and through the process that started it."""

import io

import pytest

from autoddl.runtime.measure.measured import Progress
from autoddl.tools.calibration.progress import Reporter, relayed

DEVICE = Progress("", 0, 0, 4.2, 175.8, "matmul 16, float32")
FIRST = Progress("points", 12, 90, 30.0, 150.0, "send 1x2 1.02 kB")
LATER = Progress("points", 90, 90, 125.0, 55.4, "all_reduce 1x2 16.4 kB", 0.214)
SAID = [
    (DEVICE, "2%: 0:04 gone, 2:56 left: matmul 16, float32"),
    (FIRST, "17%: 0:30 gone, 2:30 left, 12 of 90 points: send 1x2 1.02 kB"),
    (LATER, "69%: 2:05 gone, 0:55 left, 90 of 90 points to 21%: all_reduce 1x2 16.4 kB"),
]


@pytest.mark.parametrize(("now", "line"), SAID)
def test_a_log_has_a_line_now_and_then(now, line):
    stream = io.StringIO()
    with Reporter(stream) as report:
        report(now)
        report(FIRST)  # too soon for another line
    assert stream.getvalue() == f"{line}\n"


@pytest.mark.parametrize(("now", "line"), SAID)
def test_ranks_say_it_to_the_process_that_started_them(now, line):
    stream, rank = io.StringIO(), io.StringIO()
    with relayed(stream) as output:
        with Reporter(rank) as report:
            report(now)
        output.write(rank.getvalue() + "a warning\n")
    assert stream.getvalue() == f"{line}\na warning\n"


@pytest.mark.parametrize(("now", "line"), SAID)
def test_a_terminal_has_one_line_of_80_columns(now, line, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Reporter(stream) as report:
        report(now)
    assert line.partition(": ")[2] in stream.getvalue()
