"""Plans obey their hints, and say what these cost."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from autoddl.graph.demands import find_demands
from autoddl.graph.graph import SOURCE_KINDS, Graph, Op
from autoddl.graph.hints import Hint, HintAt, as_hints
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.planner.tables.groups import make_groups
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from tests.clusters import cluster
from tests.graphs import attention, mlp, residual

FOUR = cluster("piz_daint", 2, 2)
MLP = mlp(64, (256, 512, 512, 256))


def hinted(hints) -> Plan:
    return find_plan(MLP, FOUR, PlanOptions(baselines=False, hints=hints))


def modules(graph: Graph) -> list[str]:
    return list(dict.fromkeys(op.module for op in graph.ops if op.module))


def parts(plan: Plan, module: str) -> tuple[int, int]:
    """Into how many parts the rows and the weight of a linear module's product are split.

    Read off the placements by hand: nothing of `graph.demands` is used.
    """
    (op,) = (o for o in plan.graph.ops if o.module == module and "matmul" in o.kind)
    placed, extents = plan.stage.ops[op.name], plan.stage.mesh.extents
    rows = np.prod([e for p, e in zip(placed.outs[0], extents, strict=True) if str(p) == "S0"])
    weight = np.prod([e for p, e in zip(placed.ins[1], extents, strict=True) if p.is_split])
    return int(rows), int(weight)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_replicate_divides_the_batch_over_so_many(devices):
    plan = hinted({"fc1": f"replicate({devices})"})
    assert parts(plan, "fc1")[0] == devices


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_split_divides_the_weights_over_so_many(devices):
    plan = hinted({"fc*": f"split({devices})"})
    assert [parts(plan, name)[1] for name in modules(MLP)] == [devices] * 3


def test_split_of_a_dim_divides_no_other():
    for dim in (0, 1):
        plan = hinted({"fc1": f"split(2, dim={dim})"})
        (weight,) = (o for o in plan.graph.ops if o.name == "fc1.weight")
        (reader, index) = plan.graph.consumers[weight.outputs[0]][0]
        assert plan.stage.ops[reader.name].ins[index].split_dims() == (dim,)


def test_a_placement_is_that_of_the_parameter_or_the_output():
    hints = {"fc0.weight": "(B, S1)", "fc2": "(S1, B)"}
    plan = hinted(hints)
    ops = plan.stage.ops
    assert str(ops["fc0/matmul"].ins[1]) == "(B, S1)" and str(ops["fc2/add"].outs[0]) == "(S1, B)"


def test_the_hint_ends_where_its_module_does():
    """Light operators of the module that could be planned with the next one's product."""
    plan = hinted({"fc0": "replicate()", "fc1": "split(4)"})
    assert parts(plan, "fc0")[0] == 4 and parts(plan, "fc1") == (1, 4)


def test_hints_cost_what_the_plan_without_them_saves():
    free, plan = (
        find_plan(MLP, FOUR, PlanOptions(hints=hints)) for hints in ({}, {"fc*": "split(4)"})
    )
    assert plan.unhinted_s == figures(free).iteration_s < figures(plan).iteration_s
    assert [b.iteration_s for b in plan.baselines] == [b.iteration_s for b in free.baselines]
    broken = {b.name: b.breaks for b in plan.baselines}
    assert "split(4) for 'fc*'" in broken["data parallel"] and not broken["Megatron"]


def test_what_the_best_plan_does_anyway_is_free():
    free = hinted({})
    _, weight = parts(free, "fc1")
    plan = hinted({"fc1": f"split({weight})"})
    assert plan.stage == free.stage and plan.unhinted_s == figures(plan).iteration_s


def test_the_file_has_the_hints_and_is_held_to_them():
    plan = hinted({"fc1": "split(4, dim=0)"})
    assert Plan.loads(plan.dumps()) == plan
    data = plan.to_json()
    data["hints"][0][1] = "split(2)"
    with pytest.raises(ValueError, match=r"does not obey the hint split\(2\) for 'fc1'"):
        Plan.from_json(data)


def test_hints_that_contradict_each_other_are_both_named():
    with pytest.raises(ValueError, match=r"split\(2\) for 'fc1'.*replicate\(\) for 'fc\*'"):
        hinted({"fc1": "split(2)", "fc*": "replicate()"})


@pytest.mark.parametrize(
    ("hints", "says"),
    [
        ({"fc1": "split(3)"}, r"split\(1\), split\(2\), split\(4\)"),
        ({"fc1": "replicate(8)"}, r"replicate\(4\)"),
        ({"fc1.weight": "(S2, B)"}, r"\(B, S0\)"),
        ({"fc1.weight": "(B, S0, S1)"}, "3 placements.*one for each of its 2 axes"),
    ],
)
def test_a_hint_that_nothing_obeys_is_refused_with_what_is_possible(hints, says):
    with pytest.raises(ValueError, match=says):
        hinted(hints)


def test_equal_layers_with_equal_hints_share_their_tables():
    graph = attention(4, 16, 32, 64, 4).with_forks()

    def tables(hints: dict[str, str]) -> int:
        return len(set(make_groups(graph, find_demands(graph, as_hints(hints))).kinds))

    every = {f"layer{n}": "split(2)" for n in range(4)}
    assert tables({}) == tables(every) == tables({"layer*": "split(2)"})
    assert tables({"layer1": "split(2)"}) > tables({})


# ---- many sets


def some_hints(graph: Graph, rng: np.random.Generator) -> tuple[HintAt, ...]:
    """One to three hints for modules and weights of the graph."""
    weights = [op.attrs["name"] for op in graph.params if op.attrs["name"].endswith("weight")]
    found: dict[str, list[str]] = {}
    for _ in range(rng.integers(1, 4)):
        n = int(rng.choice([1, 2, 4]))
        kind = rng.choice(["replicate", "split", "dim", "place", "default"])
        where = str(rng.choice(weights if kind == "place" else modules(graph)))
        text = {
            "replicate": f"replicate({n})",
            "split": f"split({n})",
            "dim": f"split({n}, dim={rng.integers(2)})",
            "place": str(rng.choice(["(B, S0)", "(S0, B)", "(S1)", "(B)", "(S0, S1)"])),
            "default": str(rng.choice(["replicate()", "split(2)"])),
        }[str(kind)]
        found.setdefault("default" if kind == "default" else where, []).append(text)
    return as_hints(found)


def small_model(rng: np.random.Generator) -> Graph:
    if rng.random() < 0.3:
        return residual(int(rng.integers(1, 3)), 8, int(rng.choice([16, 64])))
    widths = rng.choice([16, 64, 256, 1024], size=int(rng.integers(2, 5)))
    return mlp(int(rng.choice([8, 64, 512])), tuple(map(int, widths)))


def obeys(plan: Plan, hints: Sequence[HintAt]) -> bool:
    """Read off the placements by hand, for hints as `some_hints` draws them.

    Nothing of `graph.demands` is used.
    """
    graph, mesh, named = plan.stage.graph, plan.stage.mesh, {at.where for at in hints}

    def devices(counts: Callable[[int], bool]) -> int:
        return int(np.prod([e for axis, e in enumerate(mesh.extents) if counts(axis)]))

    def obeyed(op: Op, hint: Hint) -> bool:
        placed, wanted = plan.stage.ops[op.name], hint.devices or mesh.size
        weights = [placed.ins[i] for i, t in enumerate(op.inputs) if t.endswith(".weight")]
        if hint.kind == "split":
            fits = all(w.split_dims() in ((), (hint.dim,)) for w in weights)
            parts = [devices(lambda axis, w=w: w[axis].is_split) for w in weights]
            return set(parts) <= {wanted} and (hint.dim is None or fits)
        if hint.kind == "place":
            names = [str(w[axis]) for w in weights for axis in range(mesh.num_axes)]
            return names == list(hint.placement) * (mesh.num_axes // len(hint.placement))
        sides = zip((*op.inputs, *op.outputs), (*placed.ins, *placed.outs), strict=True)
        rows = [(own, graph.tensors[name].batch_dims[:1]) for name, own in sides]

        def by_rows(axis: int) -> bool:
            return all(
                (own[axis].is_split and (own[axis].dim,) == dims) if dims
                else not own[axis].is_split
                for own, dims in rows
            )  # fmt: skip

        return devices(by_rows) == wanted or not any(dims for _, dims in rows)

    return all(
        obeyed(op, at.hint)
        for at in hints
        for op in graph.ops
        if op.kind not in (*SOURCE_KINDS, "fork", "loss") and op.name not in graph.free_ops
        if at.where in (op.module, *op.inputs)
        or (at.where == "default" and not named & {op.module, *op.inputs})
    )


class Checked(NamedTuple):
    """Sets of hints that were drawn: that a plan obeys, and that are refused.

    cost: of these that the plan without hints does not obey
    """

    obeyed: int
    cost: int
    refused: int
    contradict: int


def check_some(wanted: int, first: int) -> Checked:
    """Draws sets of hints until a plan obeys so many of them, and none is cheaper than free.

    At most three times as many are drawn. What is refused names the hints.
    """
    obeyed = cost = refused = contradict = 0
    for seed in range(first, first + 3 * wanted):
        rng = np.random.default_rng(seed)
        graph = small_model(rng)
        hints = some_hints(graph, rng)
        options = PlanOptions(hints=hints, baselines=bool(rng.integers(2)))
        free = find_plan(graph, FOUR, dataclasses.replace(options, hints=()))
        try:
            plan = find_plan(graph, FOUR, options)
        except ValueError as error:
            says = str(error)
            together = "contradict" in says or "cannot hold together" in says
            assert together or "cannot hold for" in says, (seed, says)
            assert sum(str(at) in says for at in hints) >= 1 + together, (seed, says)
            assert not obeys(free, hints), (seed, says)
            refused, contradict = refused + 1, contradict + together
            continue
        plan.verify()
        assert plan.hints == hints and len(plan.stages) == 1 and obeys(plan, hints), (seed, hints)
        assert plan.unhinted_s == figures(free).iteration_s
        # both searches may leave a gap of 0.01 %
        assert figures(plan).iteration_s >= figures(free).iteration_s * (1 - 1e-4), (seed, hints)
        obeyed, cost = obeyed + 1, cost + (not obeys(free, hints))
        if obeyed == wanted:
            break
    return Checked(obeyed, cost, refused, contradict)


def test_no_hint_makes_a_plan_cheaper():
    assert check_some(3, first=0).obeyed == 3


@pytest.mark.full
@pytest.mark.timeout(1500)  # some 600 plans
def test_no_hint_makes_a_plan_cheaper_in_200_sets_that_plans_obey():
    found = check_some(200, first=6)
    assert found.obeyed == 200 and found.cost >= 100 and found.contradict, found


# ---- in stages

STAGED = PlanOptions(stages=2, micro_batches=4, baselines=False)


def starts(plan: Plan) -> list[str]:
    """The modules with which stages begin."""
    ops = {op.name: op for op in plan.graph.ops}
    return [ops[plan.cut.layers[stage.first][0]].module for stage in plan.stages]


def test_stages_begin_where_hints_say():
    free = find_plan(MLP, FOUR, STAGED)
    for name in ("fc1", "fc2"):
        plan = find_plan(MLP, FOUR, dataclasses.replace(STAGED, hints={name: "stage()"}))
        assert starts(plan) == [starts(free)[0], name]
        assert plan.unhinted_s is not None and figures(plan).iteration_s >= plan.unhinted_s
        assert Plan.loads(plan.dumps()) == plan
    data = plan.to_json()
    data["hints"][0][0] = "fc1"
    with pytest.raises(ValueError, match="begins at 'fc2/matmul', against its hints"):
        Plan.from_json(data)


def test_stages_obey_hints_of_their_modules():
    hints = {"fc1": ("stage()", "split(2)"), "fc2": "replicate(2)"}
    plan = find_plan(MLP, FOUR, dataclasses.replace(STAGED, hints=hints, baselines=True))
    second = plan.stages[1]
    assert second.mesh.size == 2 and second.ops["fc1/matmul"].ins[1].split_dims()
    assert second.ops["fc2/matmul"].outs[0].split_dims() == (0,)
    assert {b.name: bool(b.breaks) for b in plan.baselines}["data parallel"]


@pytest.mark.parametrize(
    ("hints", "stages", "says"),
    [
        ({"fc1": "stage()"}, None, "needs stages"),
        ({"fc1": "stage()"}, 3, "more than the model's 2 layers"),
        ({"fc1": "split(4)"}, 2, r"cannot hold.*possible there: split\(1\), split\(2\)"),
        ({"fc9": "stage()"}, 2, "names no module"),
    ],
)
def test_hints_that_stages_cannot_obey_are_refused(hints, stages, says):
    options = PlanOptions(stages=stages, micro_batches=4, hints=hints, baselines=False)
    with pytest.raises(ValueError, match=says):
        find_plan(MLP, FOUR, options)
