"""The gates send tokens as GShard and the Switch Transformer say, and as published codes do not."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

flow = pytest.importorskip("oneflow", reason="needs OneFlow")

import oneflow.nn.functional as F  # noqa: E402

from autoddl.runtime.oneflow.models.moe import Experts, capacity, route  # noqa: E402
from autoddl.runtime.oneflow.trace.trace import trace  # noqa: E402
from tests.clusters import cluster  # noqa: E402
from tests.models.einsum_experts import EinsumExperts  # noqa: E402
from tests.planned import planned  # noqa: E402
from tests.ranks import ROOT  # noqa: E402


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gshard(logits, top, room):
    """One group's tokens [length, experts], one after the other (GShard, Algorithm 1).

    With top = 1 that is the Switch Transformer. Gives the experts, positions and weights
    [top, length], and the loss of the balance in Switch's scale (equation 4, without its factor).
    """
    length, experts = logits.shape
    share = softmax(logits.astype(np.float64))
    ranked = np.argsort(-logits, axis=-1, kind="stable")[:, :top]
    taken = np.zeros(experts, np.int64)
    expert, position = np.zeros((2, top, length), np.int64)
    weight, balance = np.zeros((top, length)), 0.0
    for choice in range(top):
        for token in range(length):
            e = ranked[token, choice]
            expert[choice, token], position[choice, token] = e, taken[e]
            if taken[e] < room:
                every = share[token, ranked[token]].sum() if top > 1 else 1.0
                weight[choice, token] = share[token, e] / every
            taken[e] += 1
        if choice == 0:
            balance = experts * float((taken / length * share.mean(axis=0)).sum())
    return expert, position, weight, balance


def published(logits, room):
    """Which first and second choices the published codes of HiDup and HAP keep, of one group.

    Positions count from 1 and must be below the capacity; those of second choices start after the
    sum of the first choices' positions, where their number is meant.
    """
    experts = logits.shape[-1]
    first, second = np.argsort(-logits, axis=-1, kind="stable")[:, :2].T
    first, second = np.eye(experts)[first], np.eye(experts)[second]
    place = np.cumsum(first, axis=0) * first
    after = (np.cumsum(second, axis=0) + place.sum(axis=0)) * second
    return tuple(((p > 0) & (p < room)).any(axis=-1) for p in (place, after))


def random_case(rng):
    batch, length, experts = rng.integers(1, 4), rng.integers(1, 25), rng.integers(2, 10)
    logits = rng.standard_normal((batch, length, experts)) * rng.choice([0.1, 1, 5])
    if rng.random() < 0.3:
        logits = np.round(logits)  # of equal shares the first expert comes first
    top = int(rng.integers(1, 3))
    factor = rng.choice([0.5, 1.0, 1.25, 2.0])
    return logits.astype(np.float32), top, capacity(top, int(length), int(experts), factor)


@pytest.mark.parametrize("cases", [200, pytest.param(1000, marks=pytest.mark.full)])
def test_gating_is_gshards_in_random_cases(cases):
    rng = np.random.default_rng(0)
    dropped = 0
    for _ in range(cases):
        logits, top, room = random_case(rng)
        choices, balance = route(flow.tensor(logits), top, room)
        for row, group in enumerate(logits):
            expert, position, weight, even = gshard(group, top, room)
            assert np.array_equal(choices.expert.numpy()[row].T, expert)
            assert np.array_equal(choices.position.numpy()[row].T, position)
            assert pytest.approx(weight, abs=1e-6) == choices.weight.numpy()[row].T
            assert balance.numpy()[row] == pytest.approx(even, rel=1e-5)
            dropped += int((weight == 0).sum())
    assert dropped > cases


@pytest.mark.parametrize(
    "experts, length, kept_by_us, kept_by_them",
    [(8, 128, (1.0, 0.989), (1.0, 0.006)), (64, 128, (0.991, 0.821), (0.968, 0.500))],
)
def test_the_published_gating_drops_second_choices(experts, length, kept_by_us, kept_by_them):
    rng = np.random.default_rng(0)
    room = capacity(2, length, experts)
    logits = rng.standard_normal((200, length, experts)).astype(np.float32)
    choices, _ = route(flow.tensor(logits), 2, room)
    ours = (choices.weight.numpy() > 0).mean(axis=(0, 1))
    theirs = np.mean([published(group, room) for group in logits], axis=(0, 2))
    assert ours == pytest.approx(kept_by_us, abs=0.01)
    assert theirs == pytest.approx(kept_by_them, abs=0.01)


def of_layer(kind, *sizes):
    flow.manual_seed(0)
    layer = kind(*sizes)
    for parameter in layer.parameters():
        flow.nn.init.normal_(parameter, 0.0, 0.3)
    return layer


@pytest.mark.parametrize("top", [1, 2])
def test_experts_equal_the_products_with_one_hot_tensors(top):
    x = np.random.default_rng(0).standard_normal((3, 12, 8)).astype(np.float32)
    found = []
    for kind in (Experts, EinsumExperts):
        layer, given = of_layer(kind, 8, 5, top), flow.tensor(x, requires_grad=True)
        y, _ = layer(given)
        (y * y).sum().backward()
        found.append([y, given.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        scale = abs(other.numpy()).max()
        assert scale > 0
        assert one.numpy() / scale == pytest.approx(other.numpy() / scale, abs=1e-6)


def test_experts_need_less_than_a_tenth_of_the_memory_of_one_hot_tensors():
    """At 1,024 tokens and 64 experts, of a layer so narrow that little else takes memory."""
    peaks = []
    for kind in (Experts, EinsumExperts):
        layer, x = kind(32, 64, 2, hidden=32), flow.zeros(8, 1024, 32)
        graph = trace(flow.nn.Sequential(layer), x, x, loss=lambda y, t: F.mse_loss(y[0], t))
        options = {"micro_batches": 1, "checkpointing": "none", "optimizer": "sgd"}
        peaks.append(planned(graph, cluster("gcp_a100", 1, 1), **options).peak_bytes)
    assert peaks[0] <= peaks[1] / 10


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's clear_refs")
def test_experts_need_less_than_a_tenth_of_it_as_measured_too():
    """Of the same layers, what a step on OneFlow adds to the process's memory."""
    script, taken = Path(__file__).with_name("experts_memory.py"), []
    for kind in ("index", "einsum"):
        command = [sys.executable, str(script), kind]
        run = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
        )
        assert run.returncode == 0, run.stderr.decode()
        taken.append(int(run.stdout.split()[-1]))
    assert taken[1] > 250e6  # the one-hot tensors alone
    assert taken[0] <= taken[1] / 10
