"""Operators between which nothing happens run as one: where such chains end, and what they give."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autoddl.cluster.spec import Cluster
from autoddl.graph.rows import Rows
from autoddl.runtime.execution.buckets import Bucket
from autoddl.runtime.execution.chains import in_chains
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.exactness.schemes import plan_of
from tests.pytorch.models import Gpt

ALONE = Cluster.load("laptop").with_shape(1, 1)
IGNORED = -100


class Branches(nn.Module):
    """A tensor is read again where no gradient may go, another by two; something is dropped."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.dropped = nn.Dropout(0.0)

    def forward(self, x):
        y = self.dropped(torch.tanh(self.first(x)))
        z = self.second(y.detach()) * y
        return self.third(z + y) + z.max(-1, keepdim=True).values


class Normed(nn.Module):
    """BatchNorms, of which one is called twice and so reads what its first call has changed."""

    def __init__(self):
        super().__init__()
        self.conv, self.back = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(6), nn.BatchNorm1d(3)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.relu(self.norm(self.back(y)) + y)
        return self.last(self.head(y.mean((2, 3))))


def words(ignored):
    torch.manual_seed(3)
    x, target = torch.randint(0, 64, (2, 4, 16))
    target[:2, ignored:] = IGNORED
    return x, target


def next_word(logits, target):
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=IGNORED)


def trainer_of(model, batch, loss, **changes):
    traced = trace_with_state(model, *batch, loss=loss)
    plan = plan_of("searched", traced.graph, ALONE, "sgd", changes.pop("micro_batches", 1))
    return build_trainer(
        traced, plan.changed(back_end="torch", **changes), lambda own: torch.optim.SGD(own, lr=0.1)
    )


def without_chains(trainer):
    """The program in debug mode, which looks at each operator."""
    part = trainer._parts[0]
    job = dataclasses.replace(trainer._job, debug=True)
    return job.executor(part.plan.graph, part.plan, part.state)._program


@pytest.mark.parametrize(
    ("kind", "micro_batches"),
    [("branches", 1), ("branches", 2), ("gpt", 1), ("gpt", 2), ("normed", 1)],
)
def test_chains_give_what_eager_torch_does(kind, micro_batches):
    torch.manual_seed(0)
    if kind == "gpt":  # its loss has a sum that is known before the first micro-batch
        model, batch, loss = Gpt(), words(5), next_word
    elif kind == "normed":
        model, batch, loss = Normed(), (torch.randn(8, 2, 4, 4), torch.randn(8, 3)), F.mse_loss
    else:
        model, batch, loss = Branches(), tuple(torch.randn(2, 8, 6)), F.mse_loss
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = trainer_of(copy.deepcopy(model), batch, loss, micro_batches=micro_batches)
    kinds = [node.op.kind for node in trainer._parts[0].executor._program.nodes]
    assert "chain" in kinds and len(kinds) < 12
    for _ in range(3):
        own.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        own.step()
        assert float(trainer.step(*batch)) == pytest.approx(float(value.detach()), rel=1e-6)
    for name, x in trainer.state_dict().items():
        torch.testing.assert_close(x, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_a_chain_ends_where_a_bucket_of_gradients_is_full():
    trainer = trainer_of(Gpt(), words(16), next_word)
    program, backend = without_chains(trainer), trainer._backend
    uses = program.uses
    cut = len(uses) // 2
    buckets = [Bucket(part, (), None, backend) for part in (uses[cut:], uses[:cut])]
    found = in_chains(program, backend, Rows(), buckets)
    assert found.uses == uses
    at = next(n for n, node in enumerate(found.nodes) if uses[cut] in node.edges)
    assert found.nodes[at].op.kind == "chain"
    assert [e.key for node in found.nodes[at:] for e in node.edges if e in uses] == [
        e.key for e in uses[cut:]
    ]
    assert len(in_chains(program, backend, Rows()).nodes) < len(found.nodes) < len(program.nodes)


@pytest.mark.parametrize("label", [-1, 6])
def test_a_label_of_no_class_is_no_number(label):
    """Eager torch raises IndexError; labels that no shard of split classes holds cannot be told."""
    model, labels = nn.Linear(4, 6), torch.tensor([0, IGNORED, 5, 2])
    trainer = trainer_of(model, (torch.randn(4, 4), labels), F.cross_entropy)
    assert torch.isfinite(trainer.step(torch.randn(4, 4), labels))
    labels[3] = label
    assert torch.isnan(trainer.step(torch.randn(4, 4), labels))
    with pytest.raises(FloatingPointError, match="loss"):
        trainer.step(torch.randn(4, 4), labels)
