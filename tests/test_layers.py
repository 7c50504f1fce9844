"""The layers: each part imports only what stands below it, and OneFlow stays in one place.

`LAYERS` lists, from the bottom up, what each part may import directly. What those may import is
allowed as well, so the table is a chain of short lists. A module belongs to the longest name that
matches it. Imports inside functions count like any others.
"""

import ast
import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "autoddl"

LAYERS: dict[str, tuple[str, ...]] = {
    "files": (),
    "collector": (),
    "compiled": (),
    "sbp.placement": (),
    "sbp.mesh": (),
    "sbp.layout": ("sbp.placement", "sbp.mesh"),
    "sbp.signature": ("sbp.layout",),
    "sbp.rules": ("sbp.signature",),
    "sbp.steps": ("sbp.layout",),
    "sbp.edges": ("sbp.steps",),
    "sbp.needless": ("sbp.edges",),
    "sbp.states": ("sbp.needless",),
    "sbp.lean": ("sbp.relax", "sbp.states"),
    "sbp.relax": ("compiled", "sbp.dijkstra"),
    "sbp.dijkstra": ("compiled", "sbp.states"),
    "sbp.traffic": ("sbp.steps",),
    "sbp.symmetry": ("sbp.layout",),
    "sbp.redistribute": ("sbp.lean", "sbp.relax", "sbp.symmetry", "sbp.traffic"),
    "sbp.summed": ("sbp.redistribute",),
    "sbp.counted_states": ("sbp.relax", "sbp.symmetry"),
    "sbp.counted": ("sbp.redistribute", "sbp.counted_states"),
    "sbp.oracle": ("sbp.rules", "sbp.redistribute", "sbp.summed", "sbp.counted"),
    "sbp.simulate": ("sbp.oracle",),
    "sbp": ("sbp.simulate",),
    "graph": ("sbp.rules", "files"),
    "batch_norm": ("graph",),
    "rows": ("batch_norm",),
    "blocks": ("graph",),
    "planned": ("sbp.redistribute",),
    "cluster": ("sbp.mesh", "files"),
    "cost": ("graph", "planned", "sbp", "cluster"),
    "search": ("cost",),
    "pipeline": ("blocks", "cost"),
    "explain": ("cost",),
    "plans": ("explain", "pipeline", "precision", "rows"),
    "baselines": ("search",),
    "precision": ("graph", "cluster"),
    "look": ("search",),
    "found": ("search",),
    "searches": ("found", "look"),
    "attempts": ("blocks", "searches"),
    "smallest": ("attempts",),
    "planner": ("smallest", "baselines", "plans", "collector"),
    "renamed": ("plans",),
    "stage_account": ("plans",),
    "stage_memory": ("search",),
    "stage_search": ("stage_account", "stage_memory", "planner"),
    "stage_prices": ("stage_search",),
    "stage_plan": ("stage_search",),
    "stage_links": ("stage_account",),
    "staged_plan": ("renamed", "stage_links"),
    "staged_planner": ("staged_plan", "stage_plan", "stage_prices", "renamed"),
    "megatron_stages": ("staged_plan", "stage_plan"),
    "compare": ("megatron_stages", "staged_planner"),
    "annotate": (),
    "entry": (),
    "calibration": ("cost", "explain"),
    "backend": ("staged_plan", "plans", "annotate", "entry", "calibration"),
    "new_plan": ("staged_planner",),
    "api": ("backend", "planner", "new_plan"),
    "synthetic": ("graph",),
    "job": ("api", "synthetic"),
    "box": ("backend",),
    "plan_job": ("backend", "synthetic"),
    "doctor": ("backend", "compiled"),
    "summary": ("staged_plan",),
    "differences": ("plans",),
    "report": ("compare", "differences", "doctor", "calibration"),
    "calibrate": ("backend", "report"),
    "commands": ("box", "plan_job", "calibrate", "report", "new_plan", "summary"),
    "cli": ("job", "report", "commands"),
    "__main__": ("cli",),
    "__init__": ("api",),
}

# Third-party packages, by the part that may import them.
OUTSIDE = {
    "": {"numpy"},
    "sbp.dijkstra": {"numpy", "scipy"},
    "cluster": set(),
    "cost": {"numpy"},
    "search": {"numpy", "scipy"},
    "pipeline": {"numpy", "scipy"},
    "pipeline.timeline": {"matplotlib"},
    "calibration": {"numpy"},
    "calibration.fit": {"numpy", "scipy"},
    "calibration.lines": {"numpy", "scipy"},
    "calibration.plot": {"matplotlib"},
    "calibration.progress": {"rich"},
    "backend": {"numpy", "oneflow"},
    "backend.oneflow.rival": {"numpy", "oneflow", "google"},
    "report": {"numpy", "rich"},
    "report.page": {"jinja2"},
    "report.compare": {"matplotlib", "rich"},
    "commands": {"click"},
    "cli": {"click", "rich"},
}


def part_of(module: str, table=LAYERS) -> str | None:
    """The longest name in `table` that is `module` ('search.space') or a package around it."""
    pieces = module.split(".")
    names = (".".join(pieces[:n]) for n in range(len(pieces), 0, -1))
    return next((name for name in names if name in table), None)


@functools.lru_cache
def allowed(part: str) -> frozenset[str]:
    """What `part` may import: its own list, and whatever those may."""
    return frozenset({part, *LAYERS[part]}.union(*(allowed(p) for p in LAYERS[part])))


def imports(path: Path) -> list[tuple[str, int]]:
    """(dotted name, line) of every import; `from x import y` gives x.y, as y may be a module."""
    package = (PACKAGE, *path.relative_to(ROOT / PACKAGE).parent.parts)
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            prefix = ".".join((*base, *((node.module,) if node.module else ())))
            found += [(f"{prefix}.{alias.name}", node.lineno) for alias in node.names]
    return found


def violations(path: Path) -> list[str]:
    relative = path.relative_to(ROOT / PACKAGE).with_suffix("")
    module = ".".join(p for p in relative.parts if p != "__init__") or "__init__"
    part = part_of(module)
    if part is None:
        return [f"{relative}: a new part; give it a place in LAYERS"]
    third_party = OUTSIDE[part_of(module, OUTSIDE) or ""]
    bad = []
    for name, line in imports(path):
        top, _, rest = name.partition(".")
        if top == PACKAGE:
            target = part_of(rest) or "__init__"
            # Importing from a package's __init__ reaches everything in the package.
            if target not in allowed(part) and not (rest and f"{part}.".startswith(f"{rest}.")):
                bad.append(f"{relative}.py:{line}: {part} must not import {rest or PACKAGE}")
        elif top not in sys.stdlib_module_names and top not in third_party:
            bad.append(f"{relative}.py:{line}: {part} must not import {top}")
    return bad


SOURCES = sorted((ROOT / PACKAGE).rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    assert violations(path) == []


@pytest.mark.parametrize(
    ("where", "line", "what"),
    [
        ("sbp/mesh.py", "from ..graph import Graph", "sbp.mesh must not import graph.Graph"),
        ("sbp/layout.py", "from .signature import Rule", "must not import sbp.signature.Rule"),
        ("search/x.py", "def f():\n    from autoddl import plans", "must not import plans"),
        ("search/x.py", "import autoddl.backend.oneflow", "must not import backend.oneflow"),
        ("cluster/x.py", "from .. import graph", "cluster must not import graph"),
        ("cost/x.py", "import oneflow.nn as nn", "cost must not import oneflow"),
        ("sbp/x.py", "import scipy", "sbp must not import scipy"),
        ("novel.py", "", "novel: a new part; give it a place in LAYERS"),
    ],
)
def test_an_upward_import_is_caught(tmp_path, monkeypatch, where, line, what):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / PACKAGE / where
    path.parent.mkdir(parents=True)
    path.write_text(line)
    (message,) = violations(path)
    assert message.endswith(what)


def test_models_import_no_planner():
    """Models are plain single-device modules; they know nothing of autoddl."""
    for path in (ROOT / "models").rglob("*.py"):
        names = {
            alias.name.partition(".")[0] if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not any(name.split(".")[0] == PACKAGE for name in names), path
