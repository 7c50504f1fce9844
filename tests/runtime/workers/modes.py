"""Models whose results have another structure in evaluation, by plans, beside one device.

Arguments: one JSON list of cases: a model, whether its loss takes evaluation's results, and a plan.
Prints a line for each that is equal.
"""

import json
import sys
import warnings

import numpy as np

import autoddl
from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from tests.exactness.schemes import in_turns
from tests.framework import F, build_trainer, flow, new_backend, nn, trace_with_state
from tests.runtime.random_plans import cluster_of, random_plan

ROWS, STEPS, LIMIT = 8, 3, 1e-6


class Heads(nn.Module):
    """As GoogLeNet: in training two heads, in evaluation one, and no head on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(12, 16), nn.BatchNorm1d(16)
        layers = (layer for _ in range(3) for layer in (nn.Linear(16, 16), nn.ReLU()))
        self.middle = nn.Sequential(*layers)
        self.aux, self.last = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        x = self.norm(F.relu(self.first(x)))
        aux = self.aux(x) if self.training else None
        y = self.last(self.middle(x))
        return (y, aux) if self.training else y


class Times(nn.Module):
    """Runs as it is, with a number that the model gives it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, number):
        return self.layer(x) * number


class Others(Heads):
    """In evaluation with a layer of its own and one twice, and what the first ones give."""

    def __init__(self):
        super().__init__()
        self.side, self.times = nn.Linear(12, 8), autoddl.batchwise(Times())

    def forward(self, x):
        early = self.times(F.relu(self.first(x)), 1.0 if self.training else 0.5)
        aux = self.aux(early) if self.training else None
        y = self.last(self.middle(self.norm(early)))
        if self.training:
            return {"y": y, "aux": aux}
        side = self.side(x) + early.narrow(1, 4, 8)
        return [y.softmax(-1), {"side": self.middle[0](side.repeat(1, 2)), "early": early}, y]


def main_of(output):
    """What is to be like the target."""
    if isinstance(output, dict):
        return output["y"]
    return output[-1] if isinstance(output, list) else output


def squares(output, target):
    return ((output - target) ** 2).mean()


def loss(output, target):
    if isinstance(output, (tuple, dict)):
        return in_training(output, target)
    return squares(main_of(output), target)


def in_training(output, target):
    """Takes results of training alone."""
    y, aux = output.values() if isinstance(output, dict) else output
    return squares(y, target) + 0.3 * squares(aux, target)


MODELS = {"heads": Heads, "others": Others}


def batch(number, rows=ROWS):
    rng = np.random.default_rng(number)
    return [flow.tensor(rng.standard_normal((rows, n)).astype("float32")) for n in (12, 8)]


def leaves(output):
    items = output.values() if isinstance(output, dict) else output
    if not isinstance(output, (dict, tuple, list)):
        return [output.detach().numpy()]
    return [leaf for item in items for leaf in leaves(item)]


def alone(model, own_loss):
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        value = own_loss(model(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def planned(case, graph):
    cluster = cluster_of(2, 2)
    stages, parts = case.get("stages", 1), case.get("micro_batches", 1)

    def made():
        if stages == 1 and not case.get("turns"):
            return random_plan(graph, cluster, case.get("seed", 0), micro_batches=parts).dumps()
        options = PlanOptions(
            stages=stages, micro_batches=parts, memory_limit_bytes=1e12, baselines=False,
            schedule="interleaved-1f1b" if "chunks" in case else "1f1b",
            batch_norm="micro_batch" if parts > 1 else "batch", chunks=case.get("chunks", 1),
            hints={"middle.2": "stage()"} if stages > 1 and "chunks" not in case else (),
        )  # fmt: skip
        found = find_plan(graph, cluster, options)
        return (in_turns(found) if case.get("turns") else found).dumps()

    return Plan.loads(share_text(made, new_backend()))


def apart(ours, theirs):
    assert len(ours) == len(theirs)
    return max(
        float(np.abs(a - b).max() / max(np.abs(b).max(), 1.0))
        for a, b in zip(ours, theirs, strict=True)
    )


def check_left_out(trainer, case):
    """That neither mode has what only the other one needs."""
    training = [
        node.op.name
        for part in trainer._parts.values()
        for node in part.executor._program.nodes
        if not node.idle
    ]
    trainer.eval_step(batch(0)[0])
    evaluation = [
        node.op.name
        for run in trainer._evaluator._runs.values()
        for executor in run.executors.values()
        for node in executor._program.nodes
    ]
    assert not any("side" in name or name == "softmax" for name in training), training
    assert not any("aux" in name for name in evaluation), evaluation
    assert not any("loss" in name for name in evaluation), evaluation
    for names in (training, evaluation):  # with the number of the mode
        assert len({"times/opaque", "times/opaque_1"} & {*names}) <= 1, names
    links = trainer._job.aside
    assert bool(links) == (case["model"] == "others" and "stages" in case), links
    reshards = trainer._walk._passing.reshards
    assert not any(link in links for link, _ in reshards), reshards.keys()


def check(case):
    own_loss = in_training if case.get("in_training") else loss
    flow.manual_seed(0)
    model = MODELS[case["model"]]()
    traced = trace_with_state(model, *batch(0), loss=own_loss)
    plan = planned(case, traced.graph)
    trainer = build_trainer(
        traced, plan, lambda p: flow.optim.SGD(p, lr=0.05, momentum=0.9), debug=case.get("debug")
    )
    flow.manual_seed(0)
    one = MODELS[case["model"]]()
    one.load_state_dict(trainer.state_dict())
    if case.get("micro_batches", 1) == 1:
        losses = alone(one, own_loss)
        ours = [float(trainer.step(*batch(step))) for step in range(STEPS)]
        assert apart([np.array(ours)], [np.array(losses)]) <= LIMIT, (ours, losses)
        state = {key: x.numpy() for key, x in trainer.state_dict().items()}
        theirs = {key: x.detach().numpy() for key, x in one.state_dict().items()}
        assert apart([state[key] for key in theirs], [*theirs.values()]) <= LIMIT
    else:  # statistics are those of micro-batches
        for step in range(STEPS):
            trainer.step(*batch(step))
        one.load_state_dict(trainer.state_dict())
    one.eval()
    for rows in (ROWS, 2 * ROWS):
        x, _ = batch(5, rows)
        found = trainer.eval_step(x)
        expected = one(x)
        assert type(found) is type(expected) and apart(leaves(found), leaves(expected)) <= LIMIT
    check_left_out(trainer, case)
    check_scores(trainer, one, own_loss, case)
    return plan


def check_scores(trainer, one, own_loss, case):
    batches = [batch(7), batch(8, ROWS if case["model"] == "others" else 3)]
    x, y = (flow.cat([*parts], 0) for parts in zip(*batches, strict=True))
    metrics = {"above": lambda out, target: main_of(out) > target}
    above = float((main_of(one(x)) > y).detach().numpy().mean())
    if not case.get("in_training"):
        found = trainer.evaluate(batches, metrics)
        expected = float(own_loss(one(x), y).detach())
        assert apart([found["loss"]], [expected]) <= LIMIT and found["above"] == above, found
        return
    try:
        trainer.evaluate(batches)
    except ValueError as error:
        assert "no loss of what the model gives in evaluation" in str(error)
    else:
        raise AssertionError("there is no loss")
    with warnings.catch_warnings(record=True) as told:
        assert trainer.evaluate(batches, metrics) == {"above": above}
        assert trainer.evaluate(batches, metrics) == {"above": above}
    assert len(told) == (rank() == 0)


for one in json.loads(sys.argv[1]):
    plan = check(one)
    if rank() == 0:
        split = sum(
            any(p.is_split for p in op.ins[0])
            for s in plan.stages
            for op in s.ops.values()
            if op.ins
        )
        print(f"equal: {one}, {plan.num_stages} stages, {split} operators split", flush=True)
