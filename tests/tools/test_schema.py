"""The schemas in docs/ are those of the code, and the repository's files keep to them."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from autoddl.cluster.spec import MACHINE_FILE, MACHINES
from autoddl.graph.graph import GRAPH_FILE
from autoddl.graph.hint_file import HINT_FILE
from autoddl.graph.hints import as_hints
from autoddl.plans.plan import PLAN_FILE
from autoddl.runtime.measure.record import RECORD_FILE
from autoddl.tools.cli import main
from autoddl.tools.commands.schema import NAMES
from tests.plans.example import BOTH

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "docs" / "schemas"
KINDS = MACHINE_FILE, GRAPH_FILE, PLAN_FILE, RECORD_FILE, HINT_FILE
FILES = {kind.name: kind for kind in KINDS}
HINTS = {"head": "split(4, dim=0)"}, {"blocks.*": ["replicate(2)", "split()"], "x": "(B, S0)"}


def schema_of(name: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def examples(name: str) -> Iterator[dict[str, Any]]:
    """The repository's files of a kind; plans and graphs are made here."""
    measured = [
        *ROOT.glob("calibration/*.json"),
        *ROOT.glob("benchmarks/results/box/machine*.json"),
    ]
    records = [file for file in measured if file.name.endswith(".measurements.json")]
    machines = [*MACHINES.glob("*.json"), *set(measured) - set(records)]
    for file in {"machine-file": machines, "calibration-record": records}.get(name, ()):
        yield json.loads(file.read_text())
    if name == "plan":
        yield from (json.loads(plan.dumps()) for plan in BOTH.values())
    if name == "hint-file":
        yield from (json.loads(HINT_FILE.dumps(as_hints(hints))) for hints in HINTS)
    if name == "graph":
        yield from (json.loads(GRAPH_FILE.dumps(plan.graph)) for plan in BOTH.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_in_the_docs_is_the_codes(name):
    told = CliRunner().invoke(main, ["schema", name])
    mend = f"autoddl schema {name} > docs/schemas/{name}.json"
    assert told.exit_code == 0 and told.stdout == (SCHEMAS / f"{name}.json").read_text(), mend
    Draft202012Validator.check_schema(schema_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_files_of_the_repository_keep_to_their_schema(name):
    validator = Draft202012Validator(schema_of(name))
    found = list(examples(name))
    assert len(found) > 1
    for data in found:
        validator.validate(data)
        FILES[name.replace("-", " ")].from_json(data)


def removed(*path: str | int) -> Callable[[Any], None]:
    return lambda data: inside(data, path[:-1]).__delitem__(path[-1])


def put(value: Any, *path: str | int) -> Callable[[Any], None]:
    return lambda data: inside(data, path[:-1]).__setitem__(path[-1], value)


def inside(data: Any, path: tuple[str | int, ...]) -> Any:
    for name in path:
        data = data[name]
    return data


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("machine-file", removed("intra", "alpha_s"), "'intra.alpha_s' is missing"),
        ("machine-file", put(0, "device", "memory_bytes"), "'device.memory_bytes' must be greater"),
        ("machine-file", put("x", "sources", "nods"), "did you mean 'nodes'?"),
        ("graph", put("flaot32", "tensors", 0, 1), r"'tensors\[0\]\[1\]' must be 'float64'"),
        ("graph", put([-1], "tensors", 0, 2), r"'tensors\[0\]\[2\]\[0\]' must be greater"),
        ("graph", put([], "ops", 0, "input"), r"'ops\[0\].input'; did you mean 'inputs'"),
        ("plan", put(0, "micro_batches"), "'micro_batches' must be greater than 0"),
        (
            "plan",
            put("soon", "stages", 0, "search", "end"),
            "'stages.0..search.end' must be 'done'",
        ),
        ("plan", put([[0]], "stages", 0, "edges"), r"edges\[0\]\[0\]' must be a string, got 0"),
        ("plan", removed("graph", "ops", 0, "kind"), r"'graph.ops\[0\].kind' is missing"),
        ("calibration-record", put("sent", "collectives", 0, "kind"), "'collectives.0..kind' must"),
        ("calibration-record", put(-1, "confidence"), "'confidence' must be greater than 0"),
    ],
)
def test_a_schema_refuses_what_reading_refuses_and_reading_says_where(name, damage, told):
    data = copy.deepcopy(next(examples(name)))
    damage(data)
    assert not Draft202012Validator(schema_of(name)).is_valid(data)
    with pytest.raises(ValueError, match=told):
        FILES[name.replace("-", " ")].from_json(data)
