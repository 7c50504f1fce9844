"""A file that somebody changed is refused with a reason, or is what it says.

The graph in it is sealed, so that only what is left as it was, or what is shown of the plan, loads.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autoddl
from autoddl.cluster.spec import MACHINE_FILE
from autoddl.graph.graph import GRAPH_FILE
from autoddl.plans.plan import PLAN_FILE
from tests.clusters import cluster
from tests.plans.example import MODEL, PLAN, STAGED

FILES = {
    "plan": (PLAN_FILE, PLAN_FILE.to_json(PLAN)),
    "plan with stages": (PLAN_FILE, PLAN_FILE.to_json(STAGED)),
    "graph": (GRAPH_FILE, GRAPH_FILE.to_json(MODEL)),
    "machine file": (MACHINE_FILE, MACHINE_FILE.to_json(cluster("gcp_a100", 2, 4))),
}
WRONG = (None, -1, 0, 1, 7, 1e400, -0.5, 10**30, True, "x", "", [], {}, [[]], "(B, B)", "(P, P)")

Path = tuple[Any, ...]


def paths(data: Any, here: Path = ()) -> Iterator[Path]:
    """To every field and item of a JSON object, at any depth."""
    parts = data.items() if isinstance(data, dict) else enumerate(data)
    for key, part in parts if isinstance(data, dict | list) else ():
        yield (*here, key)
        yield from paths(part, (*here, key)) if isinstance(part, dict | list) else ()


def at(data: Any, path: Path) -> Any:
    for key in path:
        data = data[key]
    return data


def mutate(data: Any, draw: st.DataObject) -> Any:
    """A copy in which one field or item is gone, twice there, another's, or a wrong one."""
    changed, places = copy.deepcopy(data), list(paths(data))
    *home, key = draw.draw(st.sampled_from(places))
    parent = at(changed, tuple(home))
    how = draw.draw(st.sampled_from(("gone", "twice", "another's", "wrong")))
    if how == "gone":
        del parent[key]
    elif how == "twice" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif how == "another's":
        parent[key] = copy.deepcopy(at(data, draw.draw(st.sampled_from(places))))
    else:
        parent[key] = draw.draw(st.sampled_from(WRONG))
    return changed


def check(kind: str, draw: st.DataObject) -> None:
    file, data = FILES[kind]
    changed = mutate(data, draw)
    try:
        loaded = file.loads(json.dumps(changed))
        if kind.startswith("plan"):
            autoddl.explain(loaded)
    except ValueError as error:
        assert str(error)
        return
    if kind == "graph":
        assert loaded == MODEL
    elif kind != "machine file":
        assert loaded.graph == (PLAN if kind == "plan" else STAGED).graph


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=25)
@given(draw=st.data())
def test_a_changed_file_is_refused_or_right(kind: str, draw: st.DataObject):
    check(kind, draw)


@pytest.mark.full
@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=500)
@given(draw=st.data())
def test_many_changed_files_are_refused_or_right(kind: str, draw: st.DataObject):
    check(kind, draw)
