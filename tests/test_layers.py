"""The rooms of the package: what each may import, that there are no cycles, and their sizes.

`ROOMS` lists the entries of the package from the bottom up with the rooms that each may import.
Only `runtime.oneflow` imports oneflow, and only `runtime.torch` torch. Imports inside functions
count like any others.
"""

import ast
import functools
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "autoddl"
Modules = dict[str, Path]

ROOMS: dict[str, tuple[str, ...]] = {
    "_native": (),
    "_files": (),
    "sbp": ("_native",),
    "cluster": ("sbp", "_files"),
    "graph": ("cluster", "sbp", "_files"),
    "search": ("_native",),
    "cost": ("graph", "cluster", "sbp"),
    "plans": ("cost", "graph", "cluster", "sbp", "search", "_files"),
    "planner": ("plans", "search", "cost", "graph", "cluster", "sbp"),
    "runtime": ("plans", "cost", "graph", "cluster", "sbp", "_files"),
    "api": ("runtime", "planner", "plans", "cost", "graph", "cluster", "_files"),
    "__init__": ("api", "runtime", "planner", "plans", "graph", "cluster"),
    "tools": (
        "api", "runtime", "planner", "plans", "cost", "graph", "cluster", "sbp", "_files",
        "_native", "__init__",  # which has the version
    ),
    "__main__": ("tools",),
}  # fmt: skip

# Third-party packages, by the longest name of a module or package that may import them.
OUTSIDE = {
    "": {"numpy"},
    "sbp.states": {"numpy", "scipy"},
    "_files": {"pydantic", "pydantic_core", "typing_extensions"},
    "cluster": {"pydantic"},
    "graph": {"numpy", "pydantic"},
    "search": {"numpy", "scipy"},
    "planner": {"numpy", "scipy"},
    "plans": {"numpy", "pydantic"},
    "plans.reshard": {"numpy", "scipy"},
    "plans.schedule.timeline": {"matplotlib"},
    "plans.report.terminal": {"rich"},
    "api": {"typing_extensions"},  # for type checkers only
    "runtime": {"numpy"},
    "runtime.measure.record": {"pydantic"},
    "runtime.oneflow": {"numpy", "oneflow"},
    "runtime.oneflow.rival": {"numpy", "oneflow", "google"},
    "runtime.torch": {"numpy", "torch"},
    "runtime.torch.memory": set(),
    "runtime.entry": {"numpy", "transformers"},
    "runtime.framework": {"numpy", "oneflow", "torch"},  # says what to do where it is missing
    "tools.calibration": {"numpy", "scipy", "matplotlib", "rich"},
    "tools.report": {"jinja2", "matplotlib"},
    "tools.commands": {"click"},
    "tools.errors": {"click"},
    "tools.show": {"click"},
    "tools.cli": {"click"},
}

# Ceilings, which only fall.
MOST_ENTRIES = 12  # beside __init__ and __main__; two of them private
MOST_LINES = 450  # a file
MOST_FUNCTION_LINES = 60
BACK_END = ("Tensors", "Collectives", "Training")  # the functions of `runtime.backend`
MOST_OF_A_BACK_END = 28
MOST_MODULES = {"": 13, "search": 15}  # a folder
# Modules that one is built on. Families of operator rules are not among them: they register
# themselves, `sbp/__init__.py` alone names them, and all else asks the registry in `sbp.signature`.
MOST_REACHED = {"planner.planner": 95, "plans.plan": 25, "search.exact": 15}  # to be 90


def modules(root: Path) -> Modules:
    """Dotted names below the package ('search.problem', 'sbp') and their files."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__") or "__init__"
        found[name] = path
    return found


def longest(module: str, table: dict[str, set[str]]) -> str:
    """The longest name in `table` that is `module` or a package around it."""
    pieces = module.split(".")
    names = (".".join(pieces[:n]) for n in range(len(pieces), 0, -1))
    return next((name for name in names if name in table), "")


def imports(path: Path, root: Path) -> list[tuple[str, int]]:
    """(dotted name, line) of every import; `from x import y` gives x.y, as y may be a module."""
    package = (PACKAGE, *path.relative_to(root / PACKAGE).parent.parts)
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*base, *((node.module,) if node.module else ())))
            found += [(f"{prefix}.{alias.name}", node.lineno) for alias in node.names]
    return found


def violations(name: str, path: Path, root: Path) -> list[str]:
    room = name.split(".")[0]
    if room not in ROOMS:
        return [f"{name}: a new room; does it earn its place in ROOMS?"]
    third_party = OUTSIDE[longest(name, OUTSIDE)]
    bad = []
    for target, line in imports(path, root):
        top, _, rest = target.partition(".")
        if top == PACKAGE:
            other = rest.split(".")[0]
            other = other if other in ROOMS else "__init__"
            if other not in (room, *ROOMS[room]):
                bad.append(f"{name}:{line}: {room} must not import {rest or PACKAGE}")
        elif top not in sys.stdlib_module_names and top not in third_party:
            bad.append(f"{name}:{line}: {room} must not import {top}")
    return bad


MODULES = modules(ROOT)


@functools.cache
def needs(name: str) -> frozenset[str]:
    """The modules of the package that a module imports directly."""
    found = set()
    for target, _ in imports(MODULES[name], ROOT):
        if target.startswith(f"{PACKAGE}."):
            rest = target.removeprefix(f"{PACKAGE}.")
            found.add(rest if rest in MODULES else rest.rpartition(".")[0])
    return frozenset(found & MODULES.keys())


@functools.cache
def reached(name: str) -> frozenset[str]:
    """Every module of the package that importing one reaches."""
    found, left = {name}, [name]
    while left:
        new = needs(left.pop()) - found
        found |= new
        left += new
    return frozenset(found)


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_downwards(name):
    assert violations(name, MODULES[name], ROOT) == []


def test_the_rooms_are_in_order():
    """A room imports only rooms that stand before it."""
    seen: set[str] = set()
    for room, below in ROOMS.items():
        assert seen.issuperset(below), room
        seen.add(room)


def test_no_module_reaches_itself():
    for name in MODULES:
        assert not any(name in reached(other) for other in needs(name) - {name}), name


def test_the_house_stays_small():
    entries = {name.split(".")[0] for name in MODULES} - {"__init__", "__main__"}
    assert len(entries) <= MOST_ENTRIES
    for name, path in MODULES.items():
        assert path.read_text().count("\n") <= MOST_LINES, name
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    for folder, count in folders.items():
        name = ".".join(folder.relative_to(ROOT / PACKAGE).parts)
        assert count <= MOST_MODULES.get(name, MOST_MODULES[""]), name


def test_a_back_end_is_few_functions():
    """What a framework has to do for the runtime, which each back end writes anew."""
    tree = ast.parse(MODULES["runtime.backend"].read_text())
    parts = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in BACK_END]
    assert len(parts) == len(BACK_END)
    functions = [f.name for part in parts for f in part.body if isinstance(f, ast.FunctionDef)]
    assert len(functions) <= MOST_OF_A_BACK_END, functions


def test_functions_stay_short():
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                last = node.end_lineno or node.lineno
                assert last - node.lineno < MOST_FUNCTION_LINES, f"{name}.{node.name}"


@pytest.mark.parametrize("name", MOST_REACHED)
def test_little_has_to_be_read(name):
    assert len(reached(name)) <= MOST_REACHED[name]


@pytest.mark.parametrize(
    ("where", "line", "what"),
    [
        ("sbp/mesh.py", "from ..graph.graph import Graph", "sbp must not import graph.graph.Graph"),
        ("search/x.py", "def f():\n    from autoddl import plans", "must not import plans"),
        ("search/x.py", "from ..cost.account import Cost", "must not import cost.account.Cost"),
        ("planner/x.py", "import autoddl.runtime.oneflow", "must not import runtime.oneflow"),
        ("runtime/x.py", "from ..planner import x", "runtime must not import planner.x"),
        ("runtime/x.py", "import oneflow.nn as nn", "runtime must not import oneflow"),
        ("runtime/x.py", "import torch.fx", "runtime must not import torch"),
        ("sbp/x.py", "import scipy", "sbp must not import scipy"),
        ("novel.py", "", "novel: a new room; does it earn its place in ROOMS?"),
    ],
)
def test_an_upward_import_is_caught(tmp_path, where, line, what):
    path = tmp_path / PACKAGE / where
    path.parent.mkdir(parents=True)
    path.write_text(line)
    ((name, found),) = modules(tmp_path).items()
    (message,) = violations(name, found, tmp_path)
    assert message.endswith(what)


def test_models_import_no_planner():
    """Models are plain single-device modules; they know nothing of autoddl."""
    for path in (ROOT / PACKAGE / "runtime" / "oneflow" / "models").rglob("*.py"):
        names = {
            alias.name.partition(".")[0] if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not any(name.split(".")[0] == PACKAGE for name in names), path
