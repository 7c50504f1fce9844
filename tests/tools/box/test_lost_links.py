"""A link between hosts that fails is named by its ends. The ranks need no framework."""

import io
import re
import threading

import pytest

from autoddl.tools.box import Box
from autoddl.tools.box.commands import run as command
from tests.runtime.jobs.test_launch import script

pytestmark = pytest.mark.usefixtures("possible")
LIMIT_SECONDS = 4

# In each step rank 1 asks the others, and waits for their answers.
TALK = """
import os, socket, time
from autoddl.runtime.jobs.guard import inside, install_guard
install_guard()
rank = int(os.environ["RANK"])
at = lambda rank: (f"10.77.{rank}.2", 7000)
if rank == 1:
    time.sleep(1)
    lines = [socket.create_connection(at(other)) for other in (0, 2)]
else:
    lines = [socket.create_server(at(rank)).accept()[0]]
for step in range(600):
    with inside("step"):
        for line in lines:
            if rank == 1:
                line.sendall(b"ask")
            assert len(line.recv(3, socket.MSG_WAITALL)) == 3
            if rank != 1:
                line.sendall(b"say")
    time.sleep(0.05)
    if rank == 1 and step == 20:
        print("twenty steps", flush=True)
"""


class Spoiling(io.StringIO):
    """The job's output; `spoil` is called once twenty steps are done."""

    def __init__(self, spoil):
        super().__init__()
        self._spoil = threading.Thread(target=spoil)

    def write(self, text):
        if "twenty steps" in text:
            self._spoil.start()
        return super().write(text)


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        pytest.param(
            lambda router: command(
                *("ip", "-n", router, "rule", "add", "blackhole"),
                *("from", "10.77.1.2", "to", "10.77.2.2"),
            ),
            r"rank (1 .* from rank 2|2 .* from rank 1) on .* the link between them is down",
            marks=pytest.mark.full,
        ),
        pytest.param(
            lambda router: command("ip", "-n", router, "link", "set", "host2", "down"),
            r"rank 2 of 3 on .* \(10.77.2.2\) has not answered for 4 s: its host or the link",
            marks=pytest.mark.full,
        ),
        pytest.param(
            lambda router: command("ip", "-n", router, "link", "set", "host0", "down"),
            r"rank 0 of 3 on .* \(10.77.0.2\) has heard nothing from any other host for 4 s",
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_link_is_named(tmp_path, spoil, cause):
    """Also if it is none of rank 0's, whose companion hears those of all."""
    with Box(3, 1) as box:
        output = Spoiling(lambda: spoil(box.spec.router))
        env = {"AUTODDL_TIMEOUT": str(LIMIT_SECONDS), "AUTODDL_RECORD": ""}
        status = box.run(script(tmp_path, TALK), env, output=output, timeout=60)
    out = output.getvalue()
    assert status not in (0, 124), out
    causes = [line for line in out.splitlines() if "ends the job" in line]
    assert causes and re.search(cause, causes[0]), out


# As in a step of a large model: megabytes, which the link takes long to carry.
SEND = """
import os, socket, time
from autoddl.runtime.jobs.guard import expect_link, inside, install_guard
install_guard()
expect_link(100e6)
if os.environ["RANK"] == "0":
    line = socket.create_server(("10.77.0.2", 7000)).accept()[0]
    while line.recv(1 << 20):
        pass
else:
    time.sleep(1)
    line = socket.create_connection(("10.77.0.2", 7000))
    until = time.time() + 16
    while time.time() < until:
        with inside("step"):
            line.sendall(bytes(1 << 20))
    line.close()
"""


@pytest.mark.full
@pytest.mark.parametrize(("rate", "is_slow"), [("40mbit", True), ("1gbit", False)])
def test_a_slow_link_is_named_while_it_lasts(tmp_path, rate, is_slow):
    """40 Mbit/s are 5 MB/s, a twentieth of what is expected."""
    output = io.StringIO()
    with Box(2, 1, rate) as box:
        status = box.run(script(tmp_path, SEND), {"AUTODDL_RECORD": ""}, output=output, timeout=90)
    out = output.getvalue()
    assert status == 0, out
    found = re.findall(r"link from 10.77.1.2 to 10.77.0.2 is slow; it carries ([\d.]+) MB/s", out)
    assert len(found) == is_slow and "loses" not in out, out
    if is_slow:
        assert float(found[0]) == pytest.approx(5, rel=0.1)
