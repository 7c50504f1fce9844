"""Autograd keeps what the memory rules say, and the peak of a step is predicted."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import autoddl
from autoddl.graph.placed import PlannedOp
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.comm import inner
from autoddl.runtime.execution.vjp import product, run_kernel
from autoddl.runtime.kernel import Context, RunState
from autoddl.runtime.torch.kernels import KERNELS
from autoddl.runtime.torch.memory import rules
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from autoddl.sbp.signature import OpSpec, find_rule, signatures_of
from tests.back_ends import back_end
from tests.pytorch.live import Live
from tests.pytorch.models import Gpt, Llama, Residual, next_word
from tests.ranks import ROOT
from tests.sbp.operators import CASES

FEW_BYTES = 256  # statistics by rows, numbers, and the leaf that begins every history
# of shapes that no fused kernel takes, or of formulas whose parts depend on shape or attributes,
# and what a function or an opaque module keeps nobody knows
UNLIKE = (
    "normalization-eval", "adaptive_avg_pool2d-whole", "adaptive_avg_pool1d",
    "attention", "ctc_loss", "nll", "median_with_indices", "l2_normalize", "layer_norm",
    "opaque", "batched",
)  # fmt: skip


def rule_of(op):
    rule = find_rule(op.kind)
    assert rule is not None
    return rule


COUNTED = [
    case
    for case in CASES
    if case.op.kind in KERNELS
    and not {case.op.kind, case.id} & {*UNLIKE}
    and not rule_of(case.op).view
]


def nbytes(x):
    return x.untyped_storage().nbytes()


def recorded(case):
    """An operator's record, inputs, outputs, what is alive, who wants a gradient, and its plan."""
    op, mesh, backend = case.op, Mesh(1, 1), back_end("torch")
    arrays = case.inputs(np.random.default_rng(0))
    wanted = [array.dtype.kind == "f" for array in arrays]
    if op.kind.startswith("binary_cross_entropy"):
        wanted[2:] = [False] * (len(wanted) - 2)  # of no weight is there a gradient
    whole = NdSbp.broadcast(mesh.num_axes)
    sides = (whole,) * len(op.inputs), (whole,) * len(op.outputs)
    planned = PlannedOp(*sides, sides[1], tuple(whole if w else None for w in wanted), ())
    context = Context("op", op, planned, mesh, 0, RunState(seed=0), None)
    attrs = rule_of(op).local_attrs(
        op, tuple(t.shape for t in op.inputs), tuple(t.shape for t in op.outputs)
    )
    inputs = [backend.from_numpy(array.copy()) for array in arrays]
    live = Live()
    with live:
        record, outputs = run_kernel(backend, KERNELS[op.kind], context, attrs, inputs, wanted)
    live.see((inputs, outputs))
    return record, inputs, outputs, live, wanted, planned


def kept(case):
    """Indices of inputs and of outputs that a record keeps, and bytes beside them."""
    record, inputs, outputs, live, wanted, planned = recorded(case)
    if record is None:
        return None
    sizes = [[nbytes(x) for x in tensors] for tensors in (inputs, outputs)]
    refs = [[StorageWeakRef(x.untyped_storage()) for x in ts] for ts in (inputs, outputs)]
    slopes = [torch.ones_like(y) if y.is_floating_point() else None for y in outputs]
    del inputs, outputs
    of_inputs, of_outputs = ([n for n, r in enumerate(rs) if not r.expired()] for rs in refs)
    beside = live.held() - sum(sizes[0][n] for n in of_inputs)
    beside -= sum(sizes[1][n] for n in of_outputs)
    product(record, slopes)
    return of_inputs, of_outputs, beside, wanted, planned


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.id)
def test_what_autograd_keeps_of_an_operator_is_what_its_rule_says(case):
    found = kept(case)
    if found is None:
        return
    *real, beside, wanted, planned = found
    op, names = case.op, rules.saves(case.op.kind).split()
    ins, outs = [t.bytes for t in op.inputs], [t.bytes for t in op.outputs]
    inputs = [
        n
        for n in range(len(ins))
        if "all" in names
        or f"x{n}" in names
        or ("other" in names and any(w for m, w in enumerate(wanted) if m != n))
    ]
    outputs = list(range(len(outs))) if "all" in names else [0] if "y0" in names else []
    said = sum(ins[n] for n in inputs) + sum(outs[n] for n in outputs)
    said += rules.kept_bytes(op, planned, ins, outs, [0.0] * len(ins))
    is_kept = sum(ins[n] for n in real[0]) + sum(outs[n] for n in real[1]) + beside
    assert is_kept <= said + FEW_BYTES, (real, beside, names)
    assert said <= is_kept + FEW_BYTES, (real, beside, names)


@pytest.mark.parametrize(("kind", "inputs"), [
    ("layer_norm", 1), ("layer_norm", 2), ("layer_norm", 3), ("rms_norm", 1), ("rms_norm", 2),
])  # fmt: skip
def test_norms_in_16_bits_keep_what_their_rules_say(kind, inputs):
    """Their parameters are float32, and a tensor of 16 bits takes twice as much in float32."""
    rows, width = 256, 512
    x, own = TensorSpec((rows, width), "float16"), TensorSpec((width,), "float32")
    attrs = {"begin_norm_axis": -1, "begin_params_axis": -1, "normalized_shape": (width,),
             "epsilon": 1e-5, "scale": inputs > 1}  # fmt: skip
    op = OpSpec(kind, attrs=attrs, inputs=(x, *[own] * (inputs - 1)), outputs=(x,))
    arrays = [np.ones(x.shape, "float16"), *np.ones((inputs - 1, width), "float32")]
    found = kept(SimpleNamespace(op=op, inputs=lambda rng: arrays))
    assert found is not None
    of_inputs, of_outputs, beside, _, planned = found
    ins = [t.bytes for t in op.inputs]
    is_kept = beside + sum(ins[n] for n in of_inputs) + len(of_outputs) * x.bytes
    said = sum(ins[n] for n in range(inputs) if n < 2)  # "x0" or "x0 x1"
    said += rules.kept_bytes(op, planned, ins, [x.bytes], [0.0] * inputs)
    assert is_kept == pytest.approx(said, abs=0.02 * x.bytes)


@pytest.mark.parametrize(
    "case", [case for case in COUNTED if case.op.kind in rules._BETWEEN], ids=lambda case: case.id
)
def test_what_lies_between_the_steps_of_a_backward_formula(case):
    """Bytes beside what the record keeps, the gradient that comes and those that are made."""
    record, inputs, outputs, live, *_ = recorded(case)
    assert record is not None
    slopes = [torch.ones_like(y) for y in outputs]
    del inputs, outputs
    live.see(slopes)
    before, live.peak = live.held(), 0
    with live:
        given = product(record, slopes)
    made = sum(nbytes(x) for x in given if x is not None)
    said = rules._BETWEEN[case.op.kind] * case.op.inputs[0].bytes
    # of a variance it depends on how much is summed up
    assert abs(live.peak - before - made - said) <= FEW_BYTES, live.moment


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in COUNTED
        if case.op.kind in (*rules._HANDED_ON, *rules._PARTED) and case.op.outputs[0].is_float
    ],
    ids=lambda case: case.id,
)
def test_gradients_that_are_handed_on_take_no_memory(case):
    """But for a stretched input's, which is a sum, and a mean's, as large as what it is of."""
    record, inputs, outputs, *_ = recorded(case)
    assert record is not None
    sizes = [nbytes(x) for x in inputs]
    (slope,) = slopes = [torch.ones_like(y) for y in outputs]
    of_one = nbytes(slope)
    del inputs, outputs
    for size, gradient in zip(sizes, product(record, slopes), strict=True):
        if size < of_one and case.op.kind not in rules._PARTED:
            continue
        assert gradient is not None
        is_handed_on = gradient.untyped_storage()._cdata == slope.untyped_storage()._cdata
        assert is_handed_on or (case.op.kind == "reduce_mean" and nbytes(gradient) == of_one)


def test_a_step_of_a_redistribution_holds_what_is_counted(launch):
    """Of each kind of step, even and uneven, on four processes."""
    assert launch(ROOT / "tests/runtime/workers/moved.py", 4).count("checked") == 4


class Alone:
    """A group of one rank: what formulas hold there is what they hold beside others."""

    backend = SimpleNamespace(cat=torch.cat)

    def all_reduce(self, x):
        return x.clone()

    all_max = all_reduce


ROWS, IMAGES = (256, 512), (16, 32, 16, 16)
NORM = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}
CHANNELS = {"axis": 1, "epsilon": 1e-5, "training": True}
# kind, attributes, shapes of inputs, and of the first one's bytes what is kept beside the output
FORMULAS = {
    "softmax": (lambda c, x: inner.softmax(x, c.inner), {}, [ROWS], 0),
    "log_softmax": (lambda c, x: inner.log_softmax(x, c.inner), {}, [ROWS], 0),
    "sparse_softmax_cross_entropy": (
        lambda c, x, _: inner.cross_entropy(x, torch.zeros_like(x), c.inner), {},
        [ROWS, ROWS[:1]], 1,
    ),
    "layer_norm": (lambda c, *xs: inner.layer_norm(c, xs, NORM), NORM, [ROWS, (512,), (512,)], 1),
    "normalization": (
        lambda c, *xs: inner.batch_norm(c, xs, CHANNELS), CHANNELS, [IMAGES, (32,), (32,)], 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORMULAS)
def test_the_room_of_formulas_that_meet_other_ranks(kind):
    """Beside what they read, keep and make: `Inner.room` of their rules."""
    formula, attrs, shapes, kept_times = FORMULAS[kind]
    specs = tuple(TensorSpec(shape) for shape in shapes)
    out = TensorSpec(shapes[1]) if kind == "sparse_softmax_cross_entropy" else specs[0]
    signatures = signatures_of(OpSpec(kind, attrs, specs, (out,)))
    room = next(s.inner.room for s in signatures if s.inner is not None)
    tensors = [torch.randn(shape) for shape in shapes]
    spec = SimpleNamespace(inputs=[SimpleNamespace(shape=shape) for shape in shapes])
    size, live = nbytes(tensors[0]), Live()
    live.see(tensors)
    with torch.no_grad(), live:
        before = live.held()
        ran = formula(SimpleNamespace(inner=Alone(), updates={}, spec=spec), *tensors)
        (y,) = ran.outputs
        beside = live.peak - before - nbytes(y) - kept_times * size
        if kind == "sparse_softmax_cross_entropy":
            beside -= size  # the labels as a table, which are the test's
        assert beside == pytest.approx(room[0] * size, abs=0.02 * size), live.moment
        slopes = [torch.ones_like(y)]
        before, live.peak = live.held(), 0
        made = sum(nbytes(x) for x in ran.vjp(slopes) if x is not None)
    assert live.peak - before - made == pytest.approx(room[1] * size, abs=0.02 * size)


def mlp():
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    data = torch.randn(512, 128), torch.randn(512, 128)
    return nn.Sequential(*layers), data, F.mse_loss


def words_of(model):
    words = torch.randint(0, 64, (8, 32))
    return model, (words, words), next_word


def resnet():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1), Residual(16), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    return model, (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))), nn.CrossEntropyLoss()


MODELS = {
    "mlp": mlp,
    "gpt": lambda: words_of(Gpt(2, 64, 4, 64, 32)),
    "llama": lambda: words_of(Llama(2, 64, 64, 32)),
    "resnet": resnet,
}


@pytest.mark.parametrize(
    ("name", "micro_batches", "checkpointing"),
    [
        ("mlp", 1, "none"),
        ("llama", 2, "all"),
        *(
            pytest.param(name, 1, "none", marks=pytest.mark.full)
            for name in MODELS
            if name != "mlp"
        ),
        pytest.param("gpt", 2, "all", marks=pytest.mark.full),
    ],
)
def test_the_peak_of_a_step_is_predicted(name, micro_batches, checkpointing):
    """Measured: 0 to 4.6 % above what is live, of one device."""
    torch.manual_seed(0)
    model, batch, loss = MODELS[name]()
    trainer = autoddl.parallelize(
        model, autoddl.Cluster.load("laptop").with_shape(1, 1), example=batch, loss=loss,
        optimizer=lambda own: torch.optim.SGD(own, lr=1e-3), micro_batches=micro_batches,
        checkpointing=checkpointing,
    )  # fmt: skip
    trainer.step(*batch)
    with Live(model.parameters()) as live:  # the trainer's are others
        trainer.step(*batch)
    predicted = stage_figures(trainer.plan.stage).peak_bytes
    assert 0.99 * live.peak <= predicted <= 1.06 * live.peak, live.moment
