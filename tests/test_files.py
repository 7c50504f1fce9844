"""Files are read only where they are files, and written whole, where their reader looks."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoddl._files import write_atomically
from autoddl.cluster.spec import MACHINE_FILE, Cluster
from autoddl.graph.graph import GRAPH_FILE
from autoddl.plans import Plan
from autoddl.plans.report.figure_file import write_figure
from tests.clusters import cluster
from tests.graphs import mlp


def test_the_file_of_a_link_is_replaced_and_keeps_its_mode(tmp_path: Path):
    (tmp_path / "here").mkdir()
    file, link = tmp_path / "here" / "plan.json", tmp_path / "link.json"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    write_atomically(link, "new")
    assert link.is_symlink() and file.read_text() == "new\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]


def test_a_link_to_no_file_yet_gets_one(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe"):  # nobody reads it
        write_atomically(pipe, "lost")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    while reader.is_alive():
        try:
            write_atomically(pipe, "x" * 100_000)
            break
        except OSError:
            continue
    reader.join()
    assert read == ["x" * 100_000 + "\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_error_names_the_path_that_was_asked_for(tmp_path: Path):
    """Not the partial file beside it."""
    for path in (tmp_path / "none" / "plan.json", tmp_path, f"{tmp_path}/new/"):
        with pytest.raises(OSError, match=r"\] [A-Z]") as error:
            write_atomically(path, "lost")
        assert error.value.filename == str(path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="empty name"):
        write_atomically("", "lost")


def test_a_new_file_is_as_private_as_others(tmp_path: Path):
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "plan.json", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_stays_its_owners(tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(0o640)
    os.chown(path, 65534, 65534)
    write_atomically(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (65534, 65534, 0o640)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes devices")
def test_no_disk_is_written_to(tmp_path: Path):
    disk = tmp_path / "disk"
    os.mknod(disk, 0o600 | stat.S_IFBLK, os.makedev(7, 250))
    with pytest.raises(OSError, match="a disk is not written to"):
        write_atomically(disk, "lost")
    assert stat.S_ISBLK(disk.stat().st_mode)


def test_what_an_output_file_has_stays_there(tmp_path: Path):
    """The file is written where the output is: before and after it others write."""
    code = (
        "from autoddl._files import write_atomically\n"
        "print('first'); write_atomically('/dev/stdout', 'second'); print('third')"
    )
    log = tmp_path / "log"
    log.write_text("before\n")
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert log.read_text() == "before\nfirst\nsecond\nthird\n"
    assert os.listdir(tmp_path) == ["log"]


def test_a_file_beyond_all_memory_is_not_read(tmp_path: Path):
    with open(tmp_path / "huge.json", "w") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"huge.json: has 1,099,511,627,776 bytes"):
        Cluster.load(tmp_path / "huge.json")


def test_a_device_stays_a_device():
    code = (
        "import os, stat; from autoddl._files import write_atomically\n"
        "write_atomically('/dev/stdout', 'seen'); write_atomically('/dev/null', 'gone')\n"
        "assert stat.S_ISCHR(os.stat('/dev/null').st_mode)\n"
        "write_atomically('/dev/full', 'x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "seen\n"
    assert "No space left" in done.stderr and Path("/dev/full").is_char_device()


def test_what_is_no_file_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="not a file"):
        Cluster.load(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="not a file"):
        Cluster.load("/dev/zero")


def test_a_machine_beyond_all_machines_and_endless_nesting_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="nodes"):
        cluster("laptop", 2**40, 1)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="deep.json: not valid JSON"):
        Cluster.load(tmp_path / "deep.json")


def test_the_page_of_a_plan_is_named_as_a_page(tmp_path: Path):
    """It had been JSON that is not valid, for which the model was to be planned again."""
    (tmp_path / "page.html").write_text("<!doctype html>\n<html></html>")
    with pytest.raises(ValueError, match="page.html is a page; a plan is needed here"):
        Plan.load(tmp_path / "page.html")


def test_a_name_in_a_figure_is_no_formula(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().loglog([1, 1000], [1, 1000])
    figure.suptitle(r"a name $\frac{$")
    write_figure(figure, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_that_a_terminal_would_obey_is_refused():
    named = {**GRAPH_FILE.to_json(mlp(16, (32, 32))), "name": "model \x1b[2J"}
    with pytest.raises(ValueError, match=r"the name 'model \\x1b\[2J' has characters"):
        GRAPH_FILE.from_json(named)
    machine = {**MACHINE_FILE.to_json(cluster("laptop", 1, 1)), "name": "a\nb"}
    with pytest.raises(ValueError, match="field 'name': the name"):
        MACHINE_FILE.from_json(machine)
