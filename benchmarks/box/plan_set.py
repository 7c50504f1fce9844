"""Plans of one model to measure: searched, well-known schemes, and random ones.

Each differs from the others in what it does; the random ones fill up the number.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autoddl._files import write_atomically
from autoddl.cluster import Cluster
from autoddl.graph.graph import Graph
from autoddl.planner.baselines import data_parallel, forced, megatron
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan

Named = tuple[str, Plan]
MOST_RANDOM = 200  # draws; a small model may not have as many different plans as are wanted
SCHEMES_2D_3D = (
    "S0,B,S1",
    "B,S1,S0",
    "S1,S0,B",
    "S0,S1,B",
    "B,B,S1",
    "S1,S1,B",
    "S0,S0,B",
    "B,S1,B",
)


def plan_set(
    graph: Graph, cluster: Cluster, count: int, known: Sequence[Named] = ()
) -> list[Named]:
    """`count` different plans of `graph` for `cluster`, each with what it is.

    known: plans made before, maybe at other prices; all but the searched ones are taken over
    """
    found: dict[str, Named] = {}
    old = {name: plan.on(cluster) for name, plan in known}
    for name, make in _makers(graph, cluster):
        if len(found) == count:
            break
        if name in old and not name.startswith("searched"):
            found.setdefault(_essence(old[name]), (name, old[name]))
            continue
        try:
            plan = make()
        except ValueError:  # the scheme does not divide this model
            continue
        found.setdefault(_essence(plan), (name, plan))
    return list(found.values())


def _makers(graph: Graph, cluster: Cluster) -> Iterator[tuple[str, Callable[[], Plan]]]:
    def make(**options: object) -> Callable[[], Plan]:
        given = {"optimizer": "sgd", "micro_batches": 1, **options}
        return lambda: find_plan(graph, cluster, PlanOptions(**given))  # type: ignore[arg-type]

    yield "searched", make()
    yield "searched, plain rule", make(comm_rule="plain")
    yield "data parallel", make(space=data_parallel(graph))
    axes = range(cluster.mesh.num_axes)
    for size in (2, 1, 0):
        for chosen in itertools.combinations(axes, size):
            name = f"Megatron, data on axes {chosen}"
            yield name, make(space=megatron(graph, chosen))
    for scheme in SCHEMES_2D_3D:
        letters = scheme.split(",")
        name = f"{len(set(letters))}D ({scheme})"
        yield name, make(space=forced(graph, cluster.mesh, letters))
    for seed in range(MOST_RANDOM):
        yield f"random {seed}", make(search="random", restarts=1, seed=seed, baselines=False)


def save_set(plans: Sequence[Named], folder: Path) -> None:
    """Write a set for `load_set`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, plan) in enumerate(plans):
        plan.save(folder / f"plan{number}.json")
    write_atomically(folder / "names.json", json.dumps([name for name, _ in plans]))


def load_set(folder: Path) -> list[Named]:
    """What `save_set` wrote; nothing if there is nothing."""
    if not (folder / "names.json").exists():
        return []
    names = json.loads((folder / "names.json").read_text())
    return [(name, Plan.load(folder / f"plan{n}.json")) for n, name in enumerate(names)]


def _essence(plan: Plan) -> str:
    """Equal for plans that do the same."""
    return repr((sorted(plan.stage.ops.items()), sorted(plan.stage.edges.items())))
