"""A box comes up, carries bytes at its rate, and goes down whatever happens."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoddl.tools.box import Box
from autoddl.tools.box.network import existing
from autoddl.tools.box.record import FOLDER
from autoddl.tools.cli import main

pytestmark = pytest.mark.usefixtures("possible")

ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

SERVE = """
import socket, time
server = socket.socket()
server.bind(("", 7000)); server.listen(); print("listening", flush=True)
peer, _ = server.accept()
count, started = 0, None
while data := peer.recv(1 << 20):
    started = started or time.perf_counter()
    count += len(data)
print(count, time.perf_counter() - started)
"""
SEND = "import socket; socket.create_connection(('10.77.0.2', 7000)).sendall(bytes({size}))"

HOLD = """
import sys, time
from autoddl.tools.box import Box
with Box(2, 1, "100mbit", "held") as box:
    {inside}
"""
RUN = """sys.exit(box.run(["-c", "import time; print('inside', flush=True); time.sleep(600)"]))"""
WAIT = "print('inside', flush=True); time.sleep(600)"


def mine() -> set[str]:
    """The namespaces of the boxes that these tests start by name."""
    return {name for name in existing() if "-held-" in name or "-box-" in name}


def here(*words: str) -> Result:
    """What another process does, done in this one."""
    return CliRunner().invoke(main, ("box", *words))


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoddl", "box", *words],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def transfer(box: Box, size: int) -> tuple[int, float]:
    """Send bytes from host 1 to host 0: how many arrived, and the seconds."""
    server = subprocess.Popen(
        [*box.hosts[0].enter, sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    server.stdout.readline()
    sender = [*box.hosts[1].enter, sys.executable, "-c", SEND.format(size=size)]
    subprocess.run(sender, check=True, timeout=60)
    count, seconds = server.communicate(timeout=60)[0].split()
    return int(count), float(seconds)


@pytest.mark.alone
def test_each_host_has_its_own_rate():
    with Box(2, 1, ("200mbit", "20mbit")) as box:
        assert str(box.spec).endswith("links 200mbit, 20mbit")
        size, seconds = 500_000, []
        while len(seconds) < 10 and (not seconds or min(seconds) > 1.05 * size * 8 / 2e7):
            seconds.append(transfer(box, size)[1])
        assert min(seconds) == pytest.approx(size * 8 / 2e7, rel=0.1)


@pytest.mark.alone
def test_throughput_and_counters_are_right():
    with Box(3, 1, "50mbit") as box:
        before = box.links()
        size = 4_000_000
        count, seconds = transfer(box, size)
        sent = [new - old for old, new in zip(before, box.links(), strict=True)]
        assert count == size
        # a busy machine looks at the clock late: one good look is enough
        rates = [size * 8 / seconds]
        while len(rates) < 20 and abs(rates[-1] / 5e7 - 1) > 0.03:
            rates.append(size * 8 / transfer(box, size)[1])
        assert abs(rates[-1] / 5e7 - 1) < 0.03, rates
        assert abs(sent[1].sent_payload - size) < 100
        assert abs(sent[0].received_payload - size) < 100
        assert sent[2].sent_bytes == sent[2].received_bytes == 0
        names = box.spec.namespaces
        assert set(names) <= set(existing())
    assert not set(names) & set(existing())


def test_ranks_run_on_their_hosts():
    script = (
        "import os, subprocess, json\n"
        "show = subprocess.run(['ip', '-j', '-4', 'address', 'show', 'eth0'], "
        "capture_output=True, check=True)\n"
        "own = json.loads(show.stdout)[0]['addr_info'][0]['local']\n"
        "names = ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')\n"
        "print(json.dumps([own, *(os.environ[n] for n in names)]), flush=True)\n"
    )
    out = io.StringIO()
    with Box(2, 2) as box:
        assert box.run(["-c", script], output=out, prefix=False, timeout=60) == 0
        assert box.run(["-c", "import os, sys; sys.exit(int(os.environ['RANK']) // 3 * 7)"]) == 7
    found = sorted(json.loads(line) for line in out.getvalue().splitlines())
    assert found == [
        [f"10.77.{rank // 2}.2", str(rank), str(rank % 2), "4", "10.77.0.2"] for rank in range(4)
    ]


def test_up_status_run_down(tmp_path):
    if "autoddl-box-router" in existing():
        pytest.skip("somebody's box is up")
    try:
        done = cli("up", "2", "--gpus-per-node", "2", "--rate", "200mbit")
        assert (done.returncode, done.stdout) == (0, "up: 2 hosts x 2 processes, links 200mbit\n")
        again = here("up", "3")
        assert again.exit_code == 2
        assert "already up (2 hosts x 2 processes, links 200mbit)" in again.stderr
        script = tmp_path / "script.py"
        script.write_text("import os, sys; print(sys.argv[1:], os.environ['LOCAL_RANK'])")
        ran = cli("run", str(script), "--epochs", "2")
        assert ran.returncode == 0, ran.stderr
        assert sorted(ran.stdout.splitlines()) == [
            f"[{rank}] ['--epochs', '2'] {rank % 2}" for rank in range(4)
        ]
        shown = json.loads(here("status", "--json").stdout)
        assert [host["processes"] for host in shown["hosts"]] == [0, 0]
        # what still runs inside ends with the box
        left = subprocess.Popen(
            ["ip", "netns", "exec", "autoddl-box-host1", sys.executable, "-c", "input()"],
            stdin=subprocess.PIPE,
        )
        assert "down: box" in cli("down").stdout
        assert left.wait(timeout=10) != 0
    finally:
        here("down")
    assert not mine()
    assert here("down").stdout == "no box was up\n"
    gone = here("run", str(script))
    assert gone.exit_code == 2 and "no box is up" in gone.stderr


@pytest.mark.parametrize(
    ("number", "inside"),
    [
        (signal.SIGINT, RUN),
        (signal.SIGTERM, RUN),
        (signal.SIGKILL, RUN),
        pytest.param(signal.SIGINT, WAIT, marks=pytest.mark.full),
        pytest.param(signal.SIGTERM, WAIT, marks=pytest.mark.full),
        (signal.SIGHUP, WAIT),
    ],
)
def test_nothing_is_left_after_a_signal(number, inside):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(inside=inside)],
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert "inside" in process.stdout.readline()
    assert mine()
    process.send_signal(number)
    assert process.wait(timeout=30) != 0
    if number == signal.SIGKILL:
        assert mine(), "a killed process cannot clean up"
        with Box(1):  # the next box does it
            assert not mine()
    assert not mine()
    assert not (FOLDER / "held.json").exists()


def test_a_failure_inside_takes_it_down():
    with pytest.raises(RuntimeError, match="inside"), Box(2, name="held"):
        raise RuntimeError("inside")
    assert not mine()


def test_a_box_that_cannot_be_built_is_removed(monkeypatch):
    def fail(spec):
        raise ValueError("no such queue")

    monkeypatch.setattr("autoddl.tools.box.network.shape", fail)
    with pytest.raises(ValueError, match="no such queue"), Box(2, 1, "1mbit", "held"):
        pass
    assert not mine()


def test_without_root_it_explains_itself():
    """Needs root only to give it up."""
    commands = ("up", "2"), ("down",), ("run", __file__), ("status",)
    text = (
        "import json, os; from click.testing import CliRunner; from autoddl.tools.cli import main\n"
        "import autoddl.tools.box.box, autoddl.tools.commands.box, autoddl.tools.train_plan\n"
        "import autoddl.tools.show, rich.table\n"
        "os.setuid(65534)\n"
        f"done = [CliRunner().invoke(main, ['box', *words]) for words in {commands!r}]\n"
        "print(json.dumps([(one.exit_code, one.output) for one in done]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], env=ENV, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for words, (status, said) in zip(commands, json.loads(done.stdout), strict=True):
        assert status == 2, said
        assert ("needs root" if words[0] in ("up", "down") else "no box is up") in said
    assert not mine()


def test_without_the_tools_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="needs the commands ip and tc.*install iproute2"):
        Box(2).up()


def test_the_second_of_two_with_one_name(tmp_path):
    with Box(1, name="held"):
        with pytest.raises(ValueError, match="already up"):
            Box(2, name="held").up()
        assert mine() == {"autoddl-held-host0", "autoddl-held-router"}
    started = time.monotonic()
    with Box(1, name="held"):
        assert time.monotonic() - started < 10
