"""The order of computation of each stage, for every family of schedules, without transfers.

With s stages, stage i counted from 0, and m micro-batches, a stage's warm-up is the number of
forward passes before its first backward pass:

    GPipe            m
    1F1B             s - i
    eager 1F1B       2 (s - i) - 1        AlpaComm section 4, whose stages count from 1
    interleaved      2 (s - i) - 1 + (c - 1) s, for c chunks a stage (in forward passes of a chunk)
    ZB-H1            s - i, with the weight half of a backward pass i micro-batches late

After the warm-up, forward and backward passes alternate; the remaining backward passes follow.
ZB-H1 is the handcrafted schedule of "Zero Bubble Pipeline Parallelism" (Qi et al., 2023), whose
peak memory is that of 1F1B on its first stage.

`delay` says when the weight half of a backward pass runs. None: together with the input half, so
that gradients are sent after both. 0: directly after it, while the gradient travels. k: after the
input half of the k-th next backward pass, which fills a longer wait (AlpaComm section 4) and
increases the number of stored activations by k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .action import Action

Pass = tuple[int, int]  # micro-batch, chunk


@dataclass(frozen=True)
class Order:
    """One stage's computation in order, and the most forward passes whose activations it stores."""

    actions: tuple[Action, ...]
    stash: int


OrderFn = Callable[[int, int, int, int, "int | None"], Order]  # stage, stages, m, chunks, delay


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int, delay: int | None) -> Order:
    """All forward passes, then all backward passes."""
    del stage, stages, chunks
    passes = [(m, 0) for m in range(micro_batches)]
    return _alternate(passes, passes, micro_batches, delay)


def one_f_one_b(
    stage: int, stages: int, micro_batches: int, chunks: int, delay: int | None
) -> Order:
    """1F1B: as few forward passes ahead as keep every stage busy."""
    del chunks
    passes = [(m, 0) for m in range(micro_batches)]
    return _alternate(passes, passes, stages - stage, delay)


def eager(stage: int, stages: int, micro_batches: int, chunks: int, delay: int | None) -> Order:
    """1F1B with forward passes further ahead, so that transfers have time."""
    del chunks
    passes = [(m, 0) for m in range(micro_batches)]
    return _alternate(passes, passes, 2 * (stages - stage) - 1, delay)


def interleaved(
    stage: int, stages: int, micro_batches: int, chunks: int, delay: int | None
) -> Order:
    """1F1B with `chunks` parts a stage: s micro-batches through chunk 0, then through chunk 1, ...

    ValueError unless the micro-batches divide into groups of s.
    """
    if micro_batches % stages:
        raise ValueError(
            f"an interleaved schedule takes its micro-batches in groups of one per stage: "
            f"{micro_batches} micro-batches do not divide by {stages} stages"
        )
    groups = range(0, micro_batches, stages)
    forward = [(g + m, c) for g in groups for c in range(chunks) for m in range(stages)]
    backward = [(g + m, c) for g in groups for c in reversed(range(chunks)) for m in range(stages)]
    warm_up = 2 * (stages - stage) - 1 + (chunks - 1) * stages
    return _alternate(forward, backward, warm_up, delay)


def zb_h1(stage: int, stages: int, micro_batches: int, chunks: int, delay: int | None) -> Order:
    """1F1B whose weight halves run i micro-batches late, so that they fill the final bubbles."""
    del chunks
    if delay is not None:
        raise ValueError("zb-h1 delays weight gradients by its own rule; leave delay out")
    passes = [(m, 0) for m in range(micro_batches)]
    return _alternate(passes, passes, stages - stage, stage)


ORDERS: dict[str, OrderFn] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager,
    "interleaved-1f1b": interleaved,
    "zb-h1": zb_h1,
}


def _alternate(
    forward: Sequence[Pass], backward: Sequence[Pass], warm_up: int, delay: int | None
) -> Order:
    """`warm_up` forward passes, then backward and forward passes in turn, then the rest."""
    warm_up = min(warm_up, len(forward))
    late = delay or 0
    actions = [Action("F", *f) for f in forward[:warm_up]]
    ahead = iter(forward[warm_up:])
    for n, b in enumerate(backward):
        actions.append(Action("B", *b))
        if n >= late:
            actions.append(Action("W", *backward[n - late]))
        actions.extend(Action("F", *f) for f in [next(ahead, None)] if f is not None)
    actions.extend(Action("W", *b) for b in backward[max(len(backward) - late, 0) :])
    return Order(tuple(actions), min(warm_up + late, len(forward)))
