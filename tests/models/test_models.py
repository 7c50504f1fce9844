"""The papers' models have the papers' sizes, and all of them trace and train."""

import subprocess
import sys
from pathlib import Path

import pytest

flow = pytest.importorskip("oneflow", reason="needs OneFlow")

from autoddl.runtime.oneflow import models as shipped  # noqa: E402
from autoddl.runtime.oneflow.models.gpt import Gpt  # noqa: E402
from autoddl.runtime.oneflow.trace.job.meta import storage_free  # noqa: E402
from autoddl.runtime.oneflow.trace.trace import trace  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "entry, billions, shape",
    [
        (shipped.gpt_6_8b, 6.8, (1024, 1024)),
        (shipped.gpt_16b, 16.5, (1024, 1024)),
        (shipped.gpt_36b, 35.8, (1024, 1024)),
        (shipped.gpt_0_35b, 0.35, (2048, 1024)),
        (shipped.gpt_5_8b, 5.8, (2048, 1024)),
        (shipped.gpt3_175b, 175.0, (1536, 2048)),
        (shipped.vgg13, 0.133, (128, 3, 224, 224)),
        (shipped.alexnet, 0.0611, (128, 3, 224, 224)),
        (shipped.dlrm, 3.33, (2048, 13)),
        # HiDup's BERT-SGMoE, section 6: 89 million and 19 million an expert
        (shipped.bert_moe_8, 0.089 + 8 * 0.019, (256, 128)),
        (shipped.bert_moe_64, 0.089 + 64 * 0.019, (2048, 128)),
    ],
)
def test_parameters_and_batches(entry, billions, shape):
    with storage_free():
        model, example, _ = entry()
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(billions * 1e9, rel=0.02)
    assert tuple(example[0].shape) == shape
    assert tuple(example[-1].shape)[0] == shape[0]


def test_gpt_names_and_column_order():
    model, example, loss = shipped.gpt_small()
    graph = trace(model, *example, loss=loss)
    names = {op.attrs["name"] for op in graph.params}
    for part in ("attention.qkv", "attention.proj", "mlp.fc1", "mlp.fc2"):
        assert f"blocks.0.{part}.weight" in names
    by_name = {op.name: op for op in graph.ops}
    heads = by_name["blocks.0.attention/reshape"].attrs["shape"]
    assert heads == (16, 32, 4, 3 * 16), "the columns are (head, 3, dim)"
    assert len([op for op in graph.ops if op.kind == "buffer"]) == 1, "one mask for all layers"


def test_gpt_untied_has_its_own_logits():
    tied, untied = (Gpt(1, 16, 2, 8, vocabulary=32, tied=tied) for tied in (True, False))
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == 32 * 16


def test_gpt_does_not_look_ahead():
    model, _, _ = shipped.gpt_small()
    tokens = flow.arange(32).reshape(1, 32)
    changed = flow.cat([tokens[:, :20], tokens[:, 20:] + 100], dim=1)
    difference = (model(tokens) - model(changed)).abs().sum(dim=-1).reshape(-1).numpy()
    assert difference[:20].max() < 1e-4 < difference[20:].min()


@pytest.mark.parametrize(
    "entry",
    [
        shipped.gpt_small,
        shipped.vgg13_small,
        shipped.alexnet_small,
        shipped.dlrm_small,
        shipped.gpt_moe_small,
    ],
)
def test_small_models_train(entry):
    flow.manual_seed(0)
    model, example, loss = entry(batch=8)
    batch = [
        flow.randn(*t.shape) if t.dtype == flow.float32 else flow.randint(0, 10, tuple(t.shape))
        for t in example
    ]
    if entry is shipped.dlrm_small:
        batch[-1] = flow.tensor([0.0, 1.0] * 4)
    # at 1e-2 the loss of VGG jumps to 13.8 first, and on one processor ended at 0.81 of the first
    rate = 1e-3 if entry is shipped.vgg13_small else 1e-2
    optimizer = flow.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(12):
        value = loss(model(*batch[:-1]), batch[-1])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.8 * losses[0]


def test_dropout_is_an_option():
    for entry in (shipped.gpt_small, shipped.vgg13_small, shipped.alexnet_small):
        found = {}
        for rate in (0.0, 0.3):
            model, example, loss = entry(batch=2, dropout=rate)
            graph = trace(model, *example, loss=loss)
            found[rate] = {op.attrs["rate"] for op in graph.ops if op.kind == "dropout"}
        assert found == {0.0: set(), 0.3: {0.3}}


TRACE_36B = """
import resource, time
start = time.time()
from autoddl.runtime.oneflow.trace.entries import trace_entry
graph = trace_entry("gpt_36b")
print(len(graph.ops), graph.batch, time.time() - start)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.full
def test_36_billion_parameters_trace_in_little_time_and_memory():
    run = subprocess.run(
        [sys.executable, "-c", TRACE_36B], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    operators, batch, seconds, kilobytes = run.stdout.split()
    assert int(operators) > 2000 and int(batch) == 1024
    assert float(seconds) < 60
    assert int(kilobytes) < 1.5e6
