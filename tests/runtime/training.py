"""A small model trained on one device and by several, and how far they are apart."""

from dataclasses import dataclass

import numpy as np

from tests.exactness.losses import LOSSES
from tests.framework import flow
from tests.runtime.dict_models import DICTS
from tests.runtime.random_models import RandomModel
from tests.runtime.small_models import MODELS, OPTIMIZERS, floats, mean_square
from tests.runtime.user_models import USERS

# with Adam their gradients, which are truly zero (a norm or a softmax follows), blow up what
# rounding leaves, and a moving mean follows
IDLE = ("conv1.bias", "bn1.running_mean", "qkv.bias")


@dataclass(frozen=True)
class Trained:
    """The loss of each step, the state after them, and what the model then makes of batches."""

    losses: list[float]
    state: dict[str, np.ndarray]
    results: list[np.ndarray]


def build(name):
    """A model that is the same wherever it is built, its loss, and (step, rows) -> batch."""
    flow.manual_seed(7)
    kind, _, seed = name.partition(":")
    if kind == "random":
        model = RandomModel(int(seed))
        shape = model.shape
        loss, batch = (
            mean_square,
            lambda rng, rows: (floats(rng, rows, *shape), floats(rng, rows, 4)),
        )
    else:
        make, loss, batch = {**MODELS, **LOSSES, **DICTS, **USERS}[name]
        model = make()
    return model, loss, lambda step, rows: batch(np.random.default_rng(step), rows)


def alone(name, optimizer, rows, steps, parts=1, evaluated=()) -> Trained:
    """On one device, in this process; the loss is the mean over `parts` of the batch."""
    model, loss, batch = build(name)
    update, losses = OPTIMIZERS[optimizer](model.parameters()), []
    for step in range(steps):
        total = 0.0
        for m in range(parts):
            part = slice(m * rows // parts, (m + 1) * rows // parts)
            *inputs, target = (flow.tensor(t.numpy()[part]) for t in batch(step, rows))
            value = loss(model(*inputs), target) / parts
            value.backward()
            total += float(value)
        update.step()
        update.zero_grad()
        losses.append(total)
    model.eval()
    with flow.no_grad():
        results = [first(model(*batch(9, n)[:-1])) for n in evaluated]
    return Trained(losses, arrays(model), results)


def together(trainer, batch, rows, steps, evaluated=(), own_rows=False) -> Trained:
    """By a trainer, to which each rank gives the whole batch or only its own rows."""
    losses = []
    for step in range(steps):
        tensors = batch(step, rows)
        if own_rows:
            tensors = [flow.tensor(t.numpy()[trainer.rows]) for t in tensors]
        losses.append(float(trainer.step(*tensors)))
    results = [first(trainer.eval_step(*batch(9, n)[:-1])) for n in evaluated]
    return Trained(losses, arrays(trainer), results)


def arrays(holder) -> dict[str, np.ndarray]:
    return {k: v.numpy() for k, v in holder.state_dict().items()}


def first(out) -> np.ndarray:
    return (out[0] if isinstance(out, tuple) else out).numpy()


def differences(found: Trained, expected: Trained, skipped=()) -> tuple[float, float, float]:
    """Of losses and results the largest, relatively; of the state the norm over the norm."""
    losses = max(abs(a / b - 1) for a, b in zip(found.losses, expected.losses, strict=True))
    assert found.state.keys() == expected.state.keys(), (found.state, expected.state)
    wanted = {k: v.astype(float) for k, v in expected.state.items() if k not in skipped}
    apart = sum(((found.state[k] - v) ** 2).sum() for k, v in wanted.items())
    state = float(np.sqrt(apart / sum((v**2).sum() for v in wanted.values())))
    pairs = zip(found.results, expected.results, strict=True)
    return (
        losses,
        state,
        max((np.abs(a - b).max() / np.abs(b).max() for a, b in pairs), default=0.0),
    )
