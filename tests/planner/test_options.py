"""The options of a plan: one list for Python, type checkers and the command line, checked once."""

import dataclasses
import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import click
import numpy as np
import pytest

import autoddl
from autoddl.cost.collectives import COMM_RULES
from autoddl.cost.model import OPTIMIZER_SLOTS
from autoddl.cost.recompute import Checkpointing
from autoddl.graph.precision import PRECISIONS
from autoddl.planner.options import (
    DEFAULTS,
    SCHEDULES,
    PlanKeywords,
    PlanOptions,
    TrainKeywords,
    about,
)
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.plans.schedule import orders
from autoddl.search.algorithms import ALGORITHMS
from autoddl.tools.cli import main
from tests.clusters import cluster
from tests.graphs import mlp

GRAPH = mlp(16, (32, 64, 64, 32))
CLUSTER = cluster("gcp_a100", 2, 2)
FIELDS = {option.name: option for option in dataclasses.fields(PlanOptions)}
NO_STAGES = {"baselines", "stages", "schedule", "delay", "chunks"}


def choices(name: str) -> tuple[str, ...]:
    return about(FIELDS[name]).choices


def test_the_choices_are_those_of_the_parts_that_make_them():
    assert set(ALGORITHMS) == set(choices("search"))
    assert set(SCHEDULES) == set(orders.SCHEDULES) == set(choices("schedule"))
    assert choices("comm_rule") == COMM_RULES
    assert choices("checkpointing") == get_args(Checkpointing)
    assert choices("precision") == PRECISIONS
    assert set(choices("optimizer")) == set(OPTIMIZER_SLOTS)


def test_type_checkers_see_every_option():
    """And the same types; those that stand in signatures, or follow from one, are left to these."""
    types = {name: option.type for name, option in FIELDS.items()}
    del types["stages"]
    assert {n: t.__forward_arg__ for n, t in PlanKeywords.__annotations__.items()} == types
    del types["optimizer"], types["ema"]
    assert {n: t.__forward_arg__ for n, t in TrainKeywords.__annotations__.items()} == types


def test_every_option_is_explained():
    text = inspect.getdoc(PlanOptions)
    assert text is not None
    assert [name for name in FIELDS if f"\n{name}:" not in text] == []


@pytest.mark.parametrize(
    ("command", "missing"), [("plan", set()), ("train", {"chunks"}), ("compare", NO_STAGES)]
)
def test_the_command_line_has_the_same_options_and_defaults(command, missing):
    found = main.commands[command]
    own = {p.name: p for p in found.params if p.name in FIELDS}
    assert set(own) - {"stages"} == set(FIELDS) - missing - {"stages"}
    context = click.Context(found)
    given: dict[str, Any] = {name: param.get_default(context) for name, param in own.items()}
    if command != "compare":  # whose --stages asks for more to be compared
        assert PlanOptions(**given) == DEFAULTS
    assert all(isinstance(p, click.Option) and p.help for p in own.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'; use one of 'adam'"),
        ({"micro_batches": 0}, "micro_batches must be at least 1, got 0"),
        ({"micro_batches": True}, "micro_batches must be a whole number"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes must be more than 0"),
        ({"memory_limit_bytes": math.nan}, "memory_limit_bytes must be more than 0"),
        ({"memory_limit_bytes": "16 GB"}, "memory_limit_bytes must be a number"),
        ({"search": "guess"}, "unknown search 'guess'"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"budget_seconds": 0}, "budget_seconds must be more than 0"),
        ({"budget_evaluations": 0}, "budget_evaluations must be at least 1"),
        ({"gap": -0.1}, "gap must be at least 0"),
        ({"gap": 2}, "a share of the bound, .* below 1, got 2"),
        ({"gap": 0.1, "search": "random"}, "proves no bound"),
        ({"zero": 1}, "zero must be True or False"),
        ({"checkpointing": "some"}, "unknown checkpointing 'some'"),
        ({"precision": None}, "unknown precision None"),
        *(({"stages": wrong}, "stages must be a number") for wrong in (0, -1, "two", 1.5, True)),
        (
            {"stages": 2, "checkpointing": "all", "schedule": "zb-h1"},
            "need what a block that is run again forgets",
        ),
        ({"stages": 2, "checkpointing": "all", "delay": 1}, "use checkpointing='none'"),
        ({"delay": 1}, "delay cannot go without stages"),
        ({"stages": 2, "chunks": 2}, "other schedules have 1; got 2 for 1f1b"),
        ({"stages": 2, "schedule": "interleaved-1f1b"}, "got 1 for interleaved-1f1b"),
        (
            {"stages": "auto", "chunks": 2, "schedule": "interleaved-1f1b"},
            "takes a given number of stages",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        PlanOptions(**options)


@pytest.mark.parametrize("call", [autoddl.plan, autoddl.parallelize])
def test_an_unknown_option_is_named_with_the_nearest_one(call: Callable[..., Any]):
    given: dict[str, Any] = {} if call is autoddl.plan else _training()
    with pytest.raises(TypeError, match="no option 'micro_batch'; did you mean 'micro_batches'"):
        call(GRAPH, CLUSTER, micro_batch=2, **given)
    with pytest.raises(TypeError, match="no option 'quickly'; known: seed, "):
        call(GRAPH, CLUSTER, quickly=True, **given)


def _training() -> dict[str, Any]:
    """What `parallelize` needs; the options are looked at before any of it is used."""
    pytest.importorskip("oneflow")
    return {"example": (), "loss": lambda y, t: y, "optimizer": lambda params: None}


def test_a_plan_that_is_given_has_its_own_options():
    plan, training = find_plan(GRAPH, CLUSTER), _training()
    with pytest.raises(ValueError, match="has its own stages; leave it out"):
        autoddl.parallelize(GRAPH, CLUSTER, plan=plan, stages=2, **training)
    with pytest.raises(ValueError, match="has its own seed and gap; leave them out"):
        autoddl.parallelize(GRAPH, CLUSTER, plan=plan, seed=3, gap=0.1, **training)


def test_keywords_change_options_that_are_given():
    options = PlanOptions(seed=3, micro_batches=2)
    assert options.changed == ("seed", "micro_batches")
    assert PlanOptions.of(options, {"seed": 0}) == PlanOptions(micro_batches=2)
    assert PlanOptions(**options.keywords()) == options
    staged = PlanOptions(stages=2, schedule="gpipe", delay=1, seed=1)
    assert staged.on_one_mesh() == PlanOptions(seed=1)


def test_numbers_of_numpy_are_numbers():
    """As they come out of an array of sizes; a plan file has them in its words."""
    numbers: Any = {"micro_batches": np.int64(2), "seed": np.int32(3), "gap": np.float32(0.5)}
    given = PlanOptions(**numbers)
    assert given == PlanOptions(micro_batches=2, seed=3, gap=0.5)
    assert [type(x) for x in (given.micro_batches, given.seed, given.gap)] == [int, int, float]


def test_they_cost_nothing_to_import():
    code = "import sys, autoddl.planner.options; print({'numpy', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_what_is_spent_of_a_budget_leaves_some():
    options = PlanOptions(budget_seconds=2)
    assert options.later(0.5).budget_seconds == 1.5
    assert 0 < (options.later(3).budget_seconds or 0) < 1e-3
    assert PlanOptions().later(3) == PlanOptions()


def test_without_stages_it_is_a_plan_for_one_mesh():
    found = autoddl.plan(GRAPH, CLUSTER, optimizer="sgd")
    assert found == find_plan(GRAPH, CLUSTER, PlanOptions(optimizer="sgd"))
    assert found == autoddl.plan(GRAPH, CLUSTER, PlanOptions(optimizer="sgd"))


@pytest.mark.parametrize("stages", [2, "auto"])
def test_stages(stages):
    asked = {"stages": stages, "schedule": "gpipe", "micro_batches": 4, "overlap": False}
    found, options = autoddl.plan(GRAPH, CLUSTER, **asked), PlanOptions(**asked)
    assert found.dumps() == find_plan(GRAPH, CLUSTER, options).dumps()
    assert Plan.loads(found.dumps()).dumps() == found.dumps()
    assert isinstance(found, Plan) or stages == "auto"
