"""Actions of a stage, and the order of its computation in every family of schedules.

An action has a short text that can be read back:

    F3      forward of micro-batch 3            SF3>1   send its result to stage 1
    B3      backward for the inputs             RF3<0   receive stage 0's result
    W3      backward for the weights            SB3>0   send the gradient of what stage 0 sent
                                                RB3<1   receive a gradient from stage 1

A stage that holds several chunks of the model (interleaved schedules) names the chunk after a dot,
`F3.1`, `SF3>0.1`; chunk 0 is not written. An order has computation only; `make` adds transfers.

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

On one mesh, too, several micro-batches may be in flight in one step. Whose turn it is of them says
a plan's `turns`. A strand is what one micro-batch does in a step: of N operators
(`StepMaker.operators`) it passes through 4 N positions, and is at position

    2 i + 1            when the collectives that bring inputs to operator i are issued
    2 i + 2            when operator i is, with the collectives inside of it
    2 N + 2 j + 1      when the backward pass of operator i = N - 1 - j is, with all that is run
                       again or gathered for it
    2 N + 2 j + 2      when the collectives of its inputs' gradients are

`turns` are pairs (strand, position that it goes on to), in the one order in which every device
issues them. Micro-batches run in groups of as many as there are strands, group by group, and each
group in these turns. Computation goes to one queue and collectives to another, so that one
strand's run beside the other's computation; within a strand, each waits for the one before.

No strand is ahead of one before it. So gradients are added up in the order of micro-batches, and a
group's are there when its last strand has made them. It costs nothing where all strands are alike:
where one overtakes another, they may change their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["F", "B", "W", "SF", "RF", "SB", "RB"]
COMPUTE_KINDS = ("F", "B", "W")
Turns = tuple[tuple[int, int], ...]  # (strand, position)

_TEXT = re.compile(r"(F|B|W|SF|RF|SB|RB)(\d+)(?:\.(\d+))?(?:([<>])(\d+)(?:\.(\d+))?)?")


@dataclass(frozen=True, slots=True)
class Action:
    """What a stage does with one micro-batch: a pass, or a transfer.

    `chunk` is the stage's own; `peer` and `peer_chunk` say where a transfer goes or comes from.

    `peer` is -1 for computation.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0
    peer: int = -1
    peer_chunk: int = 0

    def __post_init__(self) -> None:
        if self.is_compute != (self.peer < 0):
            raise ValueError(f"{self.kind} of micro-batch {self.micro_batch}: peer {self.peer}")

    @property
    def is_compute(self) -> bool:
        return self.kind in COMPUTE_KINDS

    @property
    def is_send(self) -> bool:
        return self.kind in ("SF", "SB")

    def __str__(self) -> str:
        text = f"{self.kind}{self.micro_batch}{_dotted(self.chunk)}"
        if self.is_compute:
            return text
        return f"{text}{'>' if self.is_send else '<'}{self.peer}{_dotted(self.peer_chunk)}"

    @staticmethod
    def parse(text: str) -> Action:
        """The inverse of `str`. Raises ValueError on anything else."""
        match = _TEXT.fullmatch(text.strip())
        if match:
            kind, micro_batch, chunk, arrow, peer, peer_chunk = match.groups()
            if arrow == {"S": ">", "R": "<"}.get(kind[0] if len(kind) == 2 else ""):
                return Action(
                    cast(Kind, kind),
                    int(micro_batch),
                    int(chunk or 0),
                    -1 if peer is None else int(peer),
                    int(peer_chunk or 0),
                )
        raise ValueError(
            f"{text!r} is not an action; expected e.g. F3, B3, W3, SF3>1, RF3<0, SB3>0, RB3<1"
        )


def _dotted(chunk: int) -> str:
    return f".{chunk}" if chunk else ""


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


SCHEDULES = tuple(ORDERS)


def orders_of(
    name: str, stages: int, micro_batches: int, chunks: int = 1, delay: int | None = None
) -> list[Order]:
    """Of each stage under the schedule `name`. ValueError if the numbers do not fit."""
    order = ORDERS.get(name)
    if order is None:
        raise ValueError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")
    for what, n in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if n < 1:
            raise ValueError(f"{what} must be at least 1, got {n}")
    if chunks > 1 and name != "interleaved-1f1b":
        raise ValueError(f"{name} has one chunk a stage, got {chunks}; use interleaved-1f1b")
    if delay is not None and delay < 0:
        raise ValueError(f"delay must be 0 or more micro-batches, got {delay}")
    return [order(i, stages, micro_batches, chunks, delay) for i in range(stages)]


def in_flight(
    name: str, stages: int, micro_batches: int, chunks: int = 1, delay: int | None = None
) -> tuple[int, ...]:
    """Per part of the model, the most forward passes that are stored at once."""
    orders = orders_of(name, stages, micro_batches, chunks, delay)
    return tuple(
        int(peak_stash(order.actions, [float(other == chunk) for other in range(chunks)]))
        for chunk in range(chunks)
        for order in orders
    )


def peak_stash(actions: Sequence[Action], of_chunk: Sequence[float] | None = None) -> float:
    """The most forward passes that are stored at once, from F until W.

    of_chunk: the weight of one, by its chunk (e.g. bytes); None: 1
    """
    held = peak = 0.0
    for action in actions:
        size = 1 if of_chunk is None else of_chunk[action.chunk]
        held += {"F": size, "W": -size}.get(action.kind, 0)
        peak = max(peak, held)
    return peak


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


def num_strands(turns: Turns) -> int:
    """How many micro-batches are in flight at once."""
    return 1 + max((strand for strand, _ in turns), default=0)


def check_turns(turns: Turns, operators: int, micro_batches: int) -> None:
    """ValueError unless each strand passes through all positions, none ahead of one before it.

    operators: that run, without sources
    """
    if not turns:
        return
    count, last = num_strands(turns), 4 * operators
    if micro_batches % count:
        raise ValueError(
            f"the plan's turns are of {count} micro-batches in flight, which do not divide its "
            f"{micro_batches} micro-batches"
        )
    at = [0] * count
    for strand, position in turns:
        ahead = at[strand - 1] if strand else last
        if not at[strand] < position <= ahead:
            raise ValueError(
                f"the plan's turns take micro-batch {strand} in flight from position {at[strand]} "
                f"to {position}: it must rise, to {ahead} at most"
            )
        at[strand] = position
    if count == 1 or any(position != last for position in at):
        raise ValueError(
            f"the plan's turns leave {count} micro-batches in flight at positions {at}: there must "
            f"be two or more, and each must get to position {last}"
        )
