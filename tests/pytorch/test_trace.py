"""Traces of torch modules: the operators, the batch, and gradients that nothing may lose."""

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # type: ignore[import-not-found]  # noqa: E402

import autoddl  # noqa: E402
from autoddl import opaque  # noqa: E402
from autoddl.cluster import Cluster  # noqa: E402
from autoddl.runtime.torch.framework import build_trainer  # noqa: E402
from autoddl.runtime.torch.trace.trace import trace_with_state  # noqa: E402
from tests.exactness.schemes import plan_of  # noqa: E402
from tests.pytorch.models import ROWS, build, same_gradients, traced, trained  # noqa: E402
from tests.runtime.random_plans import cluster_of, random_plan  # noqa: E402

ALONE = cluster_of(1, 1)


@pytest.mark.parametrize(
    "name", ["mlp", "llama", *(pytest.param(n, marks=pytest.mark.full) for n in ("gpt", "resnet"))]
)
def test_a_batch_of_another_size_is_traced_so(name):
    """What `with_batch` makes of one trace is what a trace at that batch gives."""
    model, loss, batch = build(name)
    x, y = batch(0)
    graph = autoddl.trace(model, x, y, loss=loss)
    half = autoddl.trace(model, x[: ROWS // 2], y[: ROWS // 2], loss=loss)
    assert graph.batch == ROWS
    assert graph.with_batch(ROWS // 2).to_json() == half.to_json()
    assert all(op.module or op.kind in ("input", "loss") for op in graph.ops if "." in op.name)


@pytest.fixture(scope="module")
def gpt():
    model, loss, batch = build("gpt")
    return trace_with_state(model, *batch(0), loss=loss)


def test_a_model_without_memory_is_traced_as_one_with(gpt, tmp_path: Path):
    _, loss, batch = build("gpt")
    with torch.device("meta"):
        empty, *_ = build("gpt")
    graph = autoddl.trace(empty, *batch(0), loss=loss)
    assert graph.fingerprint == gpt.graph.fingerprint
    graph.save(tmp_path / "graph.json")
    loaded = type(graph).load(tmp_path / "graph.json")
    assert autoddl.plan(loaded, ALONE).back_end == "torch"
    assert autoddl.plan(loaded, ALONE, back_end="oneflow").back_end == "oneflow"


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_target_that_is_the_input_in_the_example_is_an_input_of_its_own(device):
    """Else a step on other targets would train the model on these."""
    with torch.device(device):
        model, x = nn.Linear(4, 4), torch.ones(8, 4)
    graph = autoddl.trace(model, x, x, loss=F.mse_loss)
    assert sorted(op.attrs["index"] for op in graph.ops if op.kind == "input") == [0, 1]
    if device == "cpu":
        same_gradients(model, x, torch.zeros(8, 4))


def test_a_model_without_memory_is_not_trained():
    with torch.device("meta"):
        found = traced(nn.Linear(4, 4), 8, 4)
    with pytest.raises(ValueError, match="weight is on the meta device: it has no values to train"):
        build_trainer(found, random_plan(found.graph, ALONE, 0), torch.optim.SGD)


def test_a_wrapper_of_torchs_own_is_named():
    with pytest.raises(ValueError, match="in torch's DataParallel, .* give the module itself"):
        autoddl.trace(nn.DataParallel(nn.Linear(4, 4)), torch.zeros(8, 4))


@pytest.mark.parametrize("wrong", [None, object(), len, "gpt"])
def test_what_is_no_model_is_refused(wrong):
    """Where OneFlow is not installed, too, with no word of it."""
    with pytest.raises(ValueError, match=r"a (torch|oneflow)\.nn\.Module"):
        autoddl.trace(wrong, torch.zeros(2, 2))


def test_tied_parameters_are_one(gpt):
    assert gpt.keys["head.weight"] == gpt.keys["words.weight"] == "words.weight"
    assert [op.name for op in gpt.graph.params].count("words.weight") == 1


# ---- gradients


class Frozen(nn.Module):
    """A teacher without gradients, a detached rounding, and a region with gradients inside."""

    def __init__(self):
        super().__init__()
        self.learns, self.teaches = nn.Linear(6, 6), nn.Linear(6, 6)

    @torch.no_grad()
    def teacher(self, x):
        taught = self.teaches(x)
        with torch.enable_grad():
            return taught, self.learns(taught)

    def forward(self, x):
        taught, both = self.teacher(x)
        y = self.learns(x)
        return y + (y.round() - y).detach() - taught * both


def test_what_has_no_gradient_gets_none():
    torch.manual_seed(0)
    found = same_gradients(Frozen(), torch.randn(4, 6), torch.randn(4, 6))
    assert trained(found) == {"learns.weight", "learns.bias"}


def test_a_compiled_part_is_traced_as_it_was_before():
    model = nn.Sequential(torch.compile(nn.LayerNorm(6)), nn.Linear(6, 6))
    assert trained(traced(model, 4, 6)) == {name for name, _ in model.named_parameters()}


class Checkpoints(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in "abc")
        self.reentrant = reentrant

    def forward(self, x):
        x = checkpoint(self.a, x, use_reentrant=self.reentrant)
        return checkpoint(self.c, self.b(x), use_reentrant=self.reentrant)


class Encoder(nn.TransformerEncoder):
    """It compares a mask's values with those of a causal one, to call what is faster."""

    def forward(self, x):
        return super().forward(x, mask=nn.Transformer.generate_square_subsequent_mask(4))


@pytest.mark.full
def test_what_torch_warns_of_itself_is_not_told():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = Encoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(8, 4, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = autoddl.trace(model, x, x.clone(), loss=F.mse_loss)
        autoddl.trace(nn.LSTM(16, 8, batch_first=True), x, x, loss=lambda y, _: y[0].sum())
    assert [op.attrs["causal"] for op in graph.ops if op.kind == "attention"] == [True, True]


@pytest.mark.parametrize("need_weights", [False, pytest.param(True, marks=pytest.mark.full)])
def test_torchs_attention_is_split_by_batch(need_weights):
    """It merges positions and rows, rows inside, for its last product."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x):
            return x + self.attention(x, x, x, need_weights=need_weights)[0]

    graph = traced(Layer(), 8, 6, 16).graph
    plan = plan_of("data_parallel", graph, Cluster.load("laptop").with_shape(2, 2), "sgd", 1)
    last = next(op for op in reversed(graph.ops) if "matmul" in op.kind)
    assert graph.tensors[last.outputs[0]].spec.shape == (6, 8, 16)
    assert str(plan.stage.ops[last.name].outs[0]) == "(S1, S1)"


def test_torchs_own_checkpoints_are_plain_calls():
    everything = {f"{x}.{y}" for x in "abc" for y in ("weight", "bias")}
    assert trained(traced(Checkpoints(False), 4, 6)) == everything
    # a reentrant one has no gradient where nothing that it is given has one
    assert trained(traced(Checkpoints(True), 4, 6)) == everything - {"a.weight", "a.bias"}


def test_distributions_are_not_checked_in_a_trace():
    class Noisy(nn.Linear):
        def forward(self, x):
            return torch.distributions.Normal(super().forward(x), 1.0).rsample()

    before = torch.distributions.Distribution._validate_args  # torch.compile takes it away for good
    assert trained(traced(Noisy(6, 6), 4, 6)) == {"weight", "bias"}
    assert torch.distributions.Distribution._validate_args == before


def test_a_frozen_parameter_stays():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[0].requires_grad_(False)
    assert trained(traced(model, 4, 6)) == {"1.weight", "1.bias"}


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, dy):
        return dy


class Rounds(nn.Linear):
    def forward(self, x):
        return Straight.apply(super().forward(x))


def test_a_backward_pass_of_its_own_is_refused():
    with pytest.raises(ValueError, match="Straight is a torch.autograd.Function"):
        traced(Rounds(6, 6), 4, 6)
    assert Straight.apply(torch.ones(1)) == 1  # as before


class ByHand(nn.Linear):
    """A gradient that a hook takes away, of which a trace knows nothing."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad and not torch.compiler.is_exporting():
            y = y.detach()
        return y + self.bias


def test_gradients_other_than_eager_ones_are_refused():
    with pytest.raises(ValueError, match="weight a gradient that it has not in torch"):
        traced(ByHand(6, 6), 4, 6)


def test_hooks_on_gradients_are_refused():
    """A plan has a backward pass of its own, which would leave them out without a word."""

    class Slowed(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            y.register_hook(lambda dy: dy * 0.1)
            return y

    with pytest.raises(ValueError, match=r"registers a hook on a gradient .*\.detach\(\)"):
        traced(Slowed(6, 6), 4, 6)
    of_parameter, of_module = (nn.Sequential(nn.Linear(6, 6)) for _ in "12")
    of_parameter[0].weight.register_hook(lambda dy: dy * 0.1)
    of_module[0].register_full_backward_hook(lambda module, dx, dy: dx)
    with pytest.raises(ValueError, match="parameter 0.weight has a hook .*after_backward"):
        traced(of_parameter, 4, 6)
    with pytest.raises(ValueError, match="module 0 has a hook on gradients"):
        traced(of_module, 4, 6)
    assert traced(nn.Sequential(opaque(of_module), nn.Linear(6, 6)), 4, 6).opaque  # runs as it is


class Features(nn.Linear):
    """A loss with weights."""

    def forward(self, y, target):
        return F.mse_loss(super().forward(y), super().forward(target))


def test_weights_of_a_loss_may_be_frozen():
    torch.manual_seed(0)
    loss = Features(6, 6)
    with pytest.raises(ValueError, match="the loss has a parameter .*that trains, loss.bias"):
        traced(nn.Linear(6, 6), 4, 6, loss=Features(6, 6))
    found = same_gradients(
        nn.Linear(6, 6), torch.randn(4, 6), torch.randn(4, 6), loss=loss.requires_grad_(False)
    )
    assert trained(found) == {"weight", "bias"}


class Guarded(nn.Linear):
    """As DETR's layers in training; a mask of the same question is one, and so is another."""

    def forward(self, x):
        y = super().forward(x)
        if not torch.isfinite(y).all() or torch.isnan(y).any().item() or y.isinf().any():
            y = y.clamp(-1.0, 1.0)
        return torch.where(torch.isfinite(y), y, 0.0)


def test_questions_whether_numbers_are_finite_are_answered_as_if_they_were():
    found = traced(Guarded(6, 6), 4, 6)
    kinds = [op.kind for op in found.graph.ops]
    assert "isfinite" in kinds and not any("clip" in kind for kind in kinds)
    same_gradients(Guarded(6, 6), torch.randn(4, 6), torch.randn(4, 6))


# ---- operators


class Many(nn.Module):
    """Operators that the other models lack."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(6, 12)
        self.table = nn.Embedding(12, 12, padding_idx=3)
        self.groups, self.alone = nn.GroupNorm(3, 12), nn.InstanceNorm1d(3, affine=True)

    def forward(self, x):
        y = self.lift(x)
        a, b, c = y.split([4, 4, 4], 1)
        y = torch.stack([a, b.flip(1), c.roll(1, 1)], 1).flatten(1)
        y = F.pad(y[:, 2:], (1, 1)).clamp(-2, 2) - y.mean(1, keepdim=True) * y.std(1, keepdim=True)
        y = y.masked_fill(y > 1.5, 0.5) ** 2 + 2 / (1 + y.abs()) + torch.where(y > 0, y, -y)
        y = y + self.table(torch.arange(12).remainder(5)).sum(0) + y.cumsum(1) / 12
        best, places = y.topk(3, 1)
        y = self.groups(y) + F.one_hot(places[:, 0], 12) * best[:, :1] + y.amax(1, keepdim=True)
        y = y.repeat(1, 2)[:, ::2] + y.repeat_interleave(2, 1)[:, 3:15]
        y = y + F.glu(self.alone(y.unflatten(1, (3, 4))).repeat(1, 2, 1), 1).flatten(1)
        return F.leaky_relu(F.elu(y)).log_softmax(1) @ torch.eye(12)[:, :6]


def test_many_operators_repeat_torch():
    torch.manual_seed(1)
    same_gradients(Many(), torch.randn(4, 6), torch.randn(4, 6))


def test_constants_are_recorded_once(monkeypatch):
    """What changes nothing in place is not written anew, which takes as long as an export."""
    again = []
    own = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda *given: (again.append(given), own(*given))[1],
    )
    weights = torch.arange(1.0, 7.0).tolist()
    loss = lambda y, t: (F.mse_loss(y, t, reduction="none") * torch.tensor(weights)).mean()  # noqa: E731
    model = nn.Sequential(nn.Linear(6, 12), nn.GLU(), nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2))
    same_gradients(nn.Sequential(*model, nn.Flatten()), *torch.randn(2, 4, 6), loss=loss)
    assert not again


def test_a_number_that_follows_the_batch_is_scaled():
    class Mean(nn.Linear):
        def forward(self, x):
            return super().forward(x) / x.shape[0]

    graph = traced(Mean(6, 6), 8, 6).graph
    twice = traced(Mean(6, 6), 16, 6).graph
    assert graph.with_batch(16).to_json() == twice.to_json()


# ---- refusals


class Scaled(nn.Linear):
    """By a number that torch.export records as unknown."""

    def forward(self, x):
        return super().forward(x) * x.max().item()


class Counts(nn.Linear):
    def __init__(self):
        super().__init__(6, 6)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return super().forward(x)


class Bags(nn.Linear):
    """The last of the bags has a row more than the others."""

    def forward(self, x):
        rows = (x.flatten()[:13] > 0).long()
        return nn.functional.embedding_bag(rows, self.weight, torch.arange(0, 12, 2))


class Factors(nn.Linear):
    def forward(self, x):
        return super().forward(torch.linalg.lu_factor(x).LU)


class Solves(nn.Linear):
    """With a check of torch's own beside it."""

    def forward(self, x):
        return torch.linalg.ldl_factor(super().forward(x)).LD


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Scaled(6, 6), "no rule for a number that follows from a tensor's values"),
        (Counts(), "changes the buffer seen"),
        (Factors(6, 6), "no rule for aten.linalg_lu_factor"),
        (Solves(6, 6), "no rule for aten.linalg_ldl_factor"),
        (Bags(6, 6), "no rule for an EmbeddingBag of bags that are not equally long"),
        (3, "must be a torch.nn.Module"),
    ],
)
def test_what_cannot_be_traced_is_told(model, why, capfd):
    with pytest.raises(ValueError, match=why):
        trace_with_state(model, torch.eye(6), torch.eye(6), loss=F.mse_loss)
    assert capfd.readouterr().err == ""  # no graphs of torch's before it, from every rank


def test_a_loss_that_is_no_scalar_is_told():
    with pytest.raises(ValueError, match=r"the loss must be a scalar tensor, it is \(4, 6\)"):
        traced(nn.Linear(6, 6), 4, 6, loss=lambda y, t: y - t)
    with pytest.raises(ValueError, match=r"a tensor of floats, it is one of torch.int64"):
        traced(nn.Linear(6, 6), 4, 6, loss=lambda y, t: y.argmax())


class Hinted(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.head = nn.Linear(32, 16)

    def forward(self, x):
        autoddl.set_default(autoddl.replicate(2))
        with autoddl.replicate():
            features = self.features(x)
        with autoddl.split(4, dim=0):
            return self.head(features)


def test_hints_around_calls_are_in_the_graph():
    model = Hinted()
    graph = traced(model, 8, 16).graph
    assert [str(at).partition(" (test_trace.py:")[0] for at in graph.hints] == [
        "replicate(2) for 'default'",
        "replicate() for 'features'",
        "split(4, dim=0) for 'head'",
    ]
    plan = autoddl.plan(graph, cluster_of(2, 2), baselines=False)
    assert plan.hints == graph.hints and model(torch.zeros(8, 16)).shape == (8, 16)
