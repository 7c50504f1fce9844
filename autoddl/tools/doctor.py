"""Checks what autoddl needs on this machine, what is missing, and how to fix it.

Planning needs the first checks only; running needs OneFlow and its exact dependencies. Nothing here
imports OneFlow: a broken install may abort the interpreter, so the import is tried in another
process.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from .._native.library import Loops, loops
from ..plans.report.sections import Column, Figure, Figures, Report, Table
from ..runtime.jobs.launch import free_port
from .box.commands import TOOLS as BOX_TOOLS
from .report.browser import NAMES as BROWSERS

ONEFLOW = "0.9.0"
CUDA_LIBRARIES = {"nvidia-cublas-cu11": "11.10.3.66", "nvidia-cudnn-cu11": "8.5.0.96"}
REINSTALL = "reinstall with 'pip install .' (or 'make clean setup' in a checkout)"
NEED_MEMORY_GB = 4  # for the demo's four processes; with less only a note is given

Status = Literal["ok", "note", "fail"]
Installed = Mapping[str, str]  # distribution name, lower case -> version


@dataclass(frozen=True)
class Check:
    """One line of the report; `mend` says what to do unless all is well."""

    name: str
    status: Status
    found: str
    mend: str = ""


def examine() -> list[Check]:
    """All checks, in the order in which to mend what fails."""
    installed = installed_versions()
    checks = [python_check(sys.version_info[:2], platform.system(), platform.machine())]
    needed = ("numpy", "scipy", "pydantic", "click", "rich", "jinja2")
    checks += [planner_check(name, installed) for name in needed]
    checks.append(loops_check(loops))
    checks += oneflow_checks(installed, can_have_oneflow())
    if "oneflow" in installed:
        checks.append(import_check(run_import))
    checks += [memory_check(available_memory_bytes()), port_check(free_port, os.environ)]
    checks.append(gpu_check(shutil.which("nvidia-smi") is not None))
    return [*checks, *optional_checks(installed, shutil.which, os.geteuid() == 0)]


def installed_versions() -> dict[str, str]:
    """Version of every installed distribution."""
    found: dict[str, str] = {}
    for dist in metadata.distributions():
        name, version = dist.metadata["Name"], dist.version
        if name and version:  # a broken install may lack either
            found.setdefault(name.lower().replace("_", "-"), version)
    return found


def can_have_oneflow() -> bool:
    """True where OneFlow 0.9.0 has wheels that autoddl installs."""
    supported = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return supported and sys.version_info[:2] == (3, 10)


def python_check(version: tuple[int, int], system: str, machine: str) -> Check:
    """autoddl runs on 3.10 and later, OneFlow on 3.10 under 64-bit x86 Linux only."""
    found = f"{version[0]}.{version[1]} on {system} {machine}"
    if version < (3, 10):
        return Check("python", "fail", found, "use Python 3.10")
    if version != (3, 10) or (system, machine) != ("Linux", "x86_64"):
        return Check(
            "python", "note", found,
            "planning and PyTorch models work; OneFlow models need Python 3.10 on Linux x86_64",
        )  # fmt: skip
    return Check("python", "ok", found)


def planner_check(name: str, installed: Installed) -> Check:
    """A package without which not even planning works."""
    if name not in installed:
        return Check(name, "fail", "not installed", REINSTALL)
    return Check(name, "ok", installed[name])


def loops_check(find: Callable[[], Loops | None]) -> Check:
    """Whether planning's inner loops were compiled; `find` as `_native.loops`."""
    try:
        found = find()
    except ImportError as error:
        return Check("compiled loops", "fail", str(error), REINSTALL)
    if found is None:
        mend = f"planning takes longer without; with a C compiler (such as gcc), {REINSTALL}"
        return Check("compiled loops", "note", "not there", mend)
    return Check("compiled loops", "ok", "there")


def oneflow_checks(installed: Installed, possible: bool) -> list[Check]:
    """OneFlow's version and the versions of others that it can live with."""
    version = installed.get("oneflow")
    if version is None:
        if possible:
            return [Check("oneflow", "fail", "not installed", REINSTALL)]
        return [Check("oneflow", "note", "not installed", "its models need Python 3.10")]
    if version.partition("+")[0] != ONEFLOW:
        mend = f"autoddl needs {ONEFLOW}: pip install oneflow=={ONEFLOW} (Python 3.10)"
        return [Check("oneflow", "fail", version, mend)]
    checks = [Check("oneflow", "ok", version)]
    for name, below in (("numpy", 2), ("protobuf", 4)):
        found = installed.get(name, "")
        if not found or int(found.partition(".")[0]) >= below:
            mend = f"OneFlow {ONEFLOW} needs it: pip install '{name}<{below}'"
            checks.append(Check(f"{name}<{below}", "fail", found or "not installed", mend))
        else:
            checks.append(Check(f"{name}<{below}", "ok", found))
    for name, wanted in CUDA_LIBRARIES.items():
        found = installed.get(name, "not installed")
        mend = f"OneFlow does not import without it: pip install {name}=={wanted}"
        good = found == wanted
        checks.append(Check(name, "ok" if good else "fail", found, "" if good else mend))
    return checks


def run_import() -> tuple[bool, str]:
    """(worked, version or the last line of the error) of `import oneflow` in a new process."""
    command = [sys.executable, "-c", "import oneflow; print(oneflow.__version__)"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120,
            env={**os.environ, "GLOG_minloglevel": "2"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, "no answer within 120 s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return done.returncode == 0, last or f"exit status {done.returncode}"


def import_check(attempt: Callable[[], tuple[bool, str]]) -> Check:
    """Whether OneFlow really loads; `attempt` as `run_import`."""
    worked, found = attempt()
    if worked:
        return Check("import oneflow", "ok", found)
    return Check("import oneflow", "fail", found, f"mend what is above, else {REINSTALL}")


def available_memory_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory that a new process may take; None where the system does not say."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:")), None)


def memory_check(available: int | None) -> Check:
    """Four OneFlow processes with a small model want about 4 GB."""
    if available is None:
        return Check("free memory", "note", "unknown on this system")
    found = f"{available / 1e9:.1f} GB"
    if available < NEED_MEMORY_GB * 1e9:
        mend = f"the demo's four processes want about {NEED_MEMORY_GB} GB; close something"
        return Check("free memory", "note", found, mend)
    return Check("free memory", "ok", found)


def port_check(bind: Callable[[], int], environment: Mapping[str, str]) -> Check:
    """The launcher's processes meet at a local port; `bind` as `launch.free_port`."""
    left_over = [name for name in ("RANK", "WORLD_SIZE", "MASTER_PORT") if name in environment]
    if left_over:
        names = " ".join(left_over)
        mend = f"autoddl takes this shell for a launched rank; run 'unset {names}' if it is none"
        return Check("launcher", "note", f"{names} set in the environment", mend)
    try:
        port = bind()
    except OSError as error:
        mend = "let processes listen on 127.0.0.1 (a sandbox or firewall forbids it)"
        return Check("launcher", "fail", f"no local port: {error}", mend)
    return Check("launcher", "ok", f"local ports can be had (tried {port})")


def gpu_check(driver: bool) -> Check:
    """A GPU is not needed: without one, OneFlow runs on the CPU."""
    return Check("gpu", "ok", "NVIDIA driver found" if driver else "none; OneFlow runs on the CPU")


def optional_checks(
    installed: Installed, which: Callable[[str], str | None], is_root: bool
) -> list[Check]:
    """What only some commands need; without it a note says which. `which` as `shutil.which`."""
    pictures = "compare --plot, explain --timeline and calibrate's plot"
    found = [
        _optional("torch", installed.get("torch"), "models of PyTorch", "pip install"),
        _optional("matplotlib", installed.get("matplotlib"), pictures, "pip install"),
    ]
    browser = next((name for name in BROWSERS if which(name)), None)
    found.append(_optional("chromium", browser, "explain --png", "apt install"))
    tools = None if any(which(tool) is None for tool in BOX_TOOLS) else " and ".join(BOX_TOOLS)
    found.append(_optional("iproute2", tools, "box", "apt install"))
    mend = "" if is_root else "box needs it; sudo, or root in a container"
    found.append(Check("root", "note" if mend else "ok", "no" if mend else "yes", mend))
    return found


def _optional(name: str, found: str | None, what: str, install: str) -> Check:
    if found is None:
        return Check(name, "note", "not there", f"{what} need it: {install} {name}")
    return Check(name, "ok", found)


def report(checks: Sequence[Check]) -> Report:
    """Each finding, with what mends it."""
    ok = all(check.status != "fail" for check in checks)
    columns = (
        Column("status", ""),
        Column("name", "what"),
        Column("found", "found"),
        Column("mend", "what mends it"),
    )
    rows = tuple(vars(check) for check in checks)
    whole = Figures("", "", (Figure("ok", "", ok),))
    return Report("autoddl on this machine", "", (whole, Table("checks", "Checks", columns, rows)))
