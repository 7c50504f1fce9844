"""scripts/find_python and scripts/setup, on made-up machines: nothing is installed here."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERSION = "{}.{}".format(*sys.version_info[:2])
PROGRAMS = ("sh", "cat", "cksum", "dirname", "mkdir", "chmod")
BASE = os.path.join(sys.base_prefix, "bin", f"python{VERSION}")
# A Python that makes a virtual environment whose own python only writes down how it was called.
PRETENDER = f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p .venv/bin
    printf '#!/bin/sh\\necho "$@" >>calls\\n' >.venv/bin/python
    chmod +x .venv/bin/python
else
    exec {BASE} "$@"
fi
"""


@pytest.fixture
def machine(tmp_path):
    """A folder with the scripts, a PATH (`bin`) without any Python, and an empty home."""
    shutil.copytree(ROOT / "scripts", tmp_path / "repo" / "scripts")
    (tmp_path / "repo" / "autoddl" / "_native").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "constraints.txt", "autoddl/_native/loops.c"):
        shutil.copy(ROOT / name, tmp_path / "repo" / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program, name
        (tmp_path / "bin" / name).symlink_to(program)
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(machine: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": str(machine / "bin"), "HOME": str(machine / "home")}
    return subprocess.run(
        command, cwd=machine / "repo", env={**known, **environment}, capture_output=True, text=True
    )


def test_no_python_is_one_clear_line(machine):
    done = run(machine, "scripts/setup")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "needs Python 3.10" in line
    assert "pyenv install 3.10" in line
    assert not (machine / "repo" / ".venv").exists()


def test_a_python_of_another_version_will_not_do(machine):
    program(machine / "bin" / "python3.7", PRETENDER)
    assert run(machine, "scripts/find_python", "3.7").returncode == 1


def test_a_shim_that_fails_is_passed_over_for_pyenv(machine):
    program(machine / "bin" / f"python{VERSION}", "#!/bin/sh\nexit 127\n")
    for root in (machine / "home" / ".pyenv", machine / "elsewhere"):
        real = program(root / "versions" / f"{VERSION}.99" / "bin" / "python", PRETENDER)
        done = run(machine, "scripts/find_python", VERSION, PYENV_ROOT=str(root))
        assert done.stdout.strip() == str(real)
    assert run(machine, "scripts/find_python", VERSION).stdout.startswith(str(machine / "home"))


def test_an_active_environment_leads_to_the_python_behind_it(machine):
    environment = program(
        machine / "bin" / f"python{VERSION}", f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    )
    inside = sys.prefix != sys.base_prefix
    found = run(machine, "scripts/find_python", VERSION).stdout.strip()
    assert found == (BASE if inside else str(environment))


def test_uv_is_asked_last(machine):
    real = program(machine / "uv python" / "python", PRETENDER)
    program(machine / "bin" / "uv", f'#!/bin/sh\n[ "$2" = find ] && echo "{real}"\n')
    assert run(machine, "scripts/find_python", VERSION).stdout.strip() == str(real)
    first = program(machine / "bin" / f"python{VERSION}", PRETENDER)
    assert run(machine, "scripts/find_python", VERSION).stdout.strip() == str(first)


def test_uv_fetches_what_it_has_not(machine):
    real = program(machine / "fetched" / "python", PRETENDER)
    program(
        machine / "bin" / "uv",
        f'#!/bin/sh\nif [ "$2" = install ]; then echo "$@" >got; exit 0; fi\n'
        f'[ -e got ] && echo "{real}"\n',
    )
    assert run(machine, "scripts/find_python", VERSION).stdout.strip() == str(real)
    assert (machine / "repo" / "got").read_text() == f"python install {VERSION}\n"


def test_the_first_of_several_versions_is_taken(machine):
    program(machine / "bin" / "python3", PRETENDER)
    done = run(machine, "scripts/find_python", "2.1", VERSION)
    assert done.stdout.strip() == str(machine / "bin" / "python3")


def test_setup_installs_once_and_again_only_on_change(machine):
    program(machine / "bin" / "python3.10", PRETENDER)
    repo = machine / "repo"

    def installs() -> int:
        assert run(machine, "scripts/setup").returncode == 0
        calls = (repo / "calls").read_text().splitlines()
        return sum("--editable" in call and "constraints.txt" in call for call in calls)

    assert installs() == 1
    assert installs() == 1
    with (repo / "constraints.txt").open("a") as file:
        file.write("colorama==0.4.6\n")
    assert installs() == 2


def test_no_registry_is_named():
    for name in (
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "scripts/setup",
        "scripts/setup_torch",
        ".ci/run",
    ):
        text = (ROOT / name).read_text()
        assert "://" not in text, name
        assert os.fspath(ROOT) not in text, name


def test_what_is_installed_gives_a_sign_of_life(machine):
    """The command ends once it has seen the sign; a second takes no time here."""
    program(machine / "bin" / "sleep", "#!/bin/sh\n")
    (machine / "repo" / ".venv" / "lib" / "python3" / "site-packages" / "a.dist-info").mkdir(
        parents=True
    )
    until = "until read line <told; do :; done; exit 7"
    done = run(machine, "sh", "-c", f'scripts/at_work installing .venv sh -c "{until}" 2>told')
    assert done.returncode == 7
    told = (machine / "repo" / "told").read_text().splitlines()
    assert told[0] == "installing: 1 s; 1 packages are there"


@pytest.fixture
def install():
    """scripts/install.py, as a module."""
    path = ROOT / "scripts" / "install.py"
    spec = importlib.util.spec_from_file_location("install", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_is_told_where_pip_looks(install, tmp_path):
    (tmp_path / "wheels").mkdir()
    (tmp_path / "some.txt").write_text("")
    told = f"""\
:env:.cert='/etc/some.crt'
:env:.find-links='{tmp_path}/wheels'
global.constraint='{tmp_path}/some.txt {tmp_path}/none.txt'
global.extra-index-url='file://{tmp_path}/none file://{tmp_path}/wheels https://b/simple'
global.find-links='{tmp_path}/wheels'
install.index-url='https://a/simple'
"""
    assert install.uv_words(told) == [
        "--find-links", f"{tmp_path}/wheels",
        "--constraint", f"{tmp_path}/some.txt",
        "--index", f"file://{tmp_path}/wheels",
        "--index", "https://b/simple",
        "--default-index", "https://a/simple",
    ]  # fmt: skip
    assert install.uv_words("") == []


@pytest.mark.parametrize(
    ("fails", "tried"),
    [((), ["pip uv", "uv wheel"]), (("uv wheel",), ["pip uv", "uv wheel", "pip wheel"])]
    + [(("pip uv",), ["pip uv", "pip wheel"])],
    ids=["uv installs", "uv fails", "no uv"],
)
def test_pip_installs_what_uv_cannot(install, monkeypatch, fails, tried):
    seen = []

    def call(command):
        seen.append(f"{command[2]} {command[-1]}")
        return seen[-1] in fails

    told = subprocess.CompletedProcess([], 0, stdout="")
    monkeypatch.setattr(install.subprocess, "run", lambda *_, **__: told)
    monkeypatch.setattr(install.subprocess, "call", call)
    assert install.main(["-c", "constraints.txt", "wheel"]) == 0
    assert seen == tried
