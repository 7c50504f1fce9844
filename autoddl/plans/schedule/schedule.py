"""A pipeline schedule: what every stage does, in order.

The model is cut into stages x chunks parts, the virtual stages; part v lies on stage v mod stages
(as chunk v div stages), so that with one chunk the two are the same. `flows` are the pairs (u, v),
u < v, of parts between which tensors travel: neighbours, and the ends of long skip connections.
For every micro-batch, part v waits for the activations of its flows (u, v), and part u for the
gradients that come back.

Computation and communication of a stage are two queues: computation runs in the order of the
list, and all of the stage's transfers are one first-in-first-out queue in the order of the list. A
send waits for what it sends; a receive waits only for its turn.

`Costs` are the seconds of its passes and transfers, by which it is ordered and simulated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .orders import Action

Flow = tuple[int, int]
Actions = tuple[Action, ...]

_HEADER = re.compile(
    r"schedule (\S+), (\d+) stages, (\d+) micro-batches, (\d+) chunks, backward (joint|split)"
)


@dataclass(frozen=True)
class Schedule:
    """The actions of each stage, in order.

    joint:   the two halves of a backward pass run as one, so gradients are sent after both
    stash:   per stage, the most forward passes whose activations it may hold
    actions: per stage, in order
    """

    name: str
    micro_batches: int
    chunks: int
    joint: bool
    flows: tuple[Flow, ...]
    stash: tuple[int, ...]
    actions: tuple[Actions, ...]

    @property
    def stages(self) -> int:
        return len(self.actions)

    @property
    def parts(self) -> int:
        """Number of virtual stages."""
        return self.stages * self.chunks

    def part(self, stage: int, chunk: int) -> int:
        return chunk * self.stages + stage

    def stage_of(self, part: int) -> int:
        return part % self.stages

    def crosses(self, flow: Flow) -> bool:
        """True if the two parts lie on different stages, so that the flow is a transfer."""
        return self.stage_of(flow[0]) != self.stage_of(flow[1])

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Per part, the parts whose activations it takes."""
        return tuple(tuple(u for u, v in self.flows if v == part) for part in range(self.parts))

    @cached_property
    def targets(self) -> tuple[tuple[int, ...], ...]:
        """Per part, the parts that take its activations (and send it gradients)."""
        return tuple(tuple(v for u, v in self.flows if u == part) for part in range(self.parts))

    def compute(self, stage: int) -> Actions:
        return tuple(a for a in self.actions[stage] if a.is_compute)

    def communication(self, stage: int) -> Actions:
        return tuple(a for a in self.actions[stage] if not a.is_compute)

    def __str__(self) -> str:
        lines = [
            f"schedule {self.name}, {self.stages} stages, {self.micro_batches} micro-batches, "
            f"{self.chunks} chunks, backward {'joint' if self.joint else 'split'}",
            f"flows {' '.join(f'{u}>{v}' for u, v in self.flows)}".rstrip(),
            f"stash {' '.join(map(str, self.stash))}",
        ]
        for stage, actions in enumerate(self.actions):
            lines.append(f"{stage}: {' '.join(map(str, actions))}".rstrip())
        return "\n".join(lines) + "\n"

    @staticmethod
    def parse(text: str) -> Schedule:
        """The inverse of `str`. Raises ValueError that names the line."""
        lines = text.strip().split("\n")
        header = _HEADER.fullmatch(lines[0])
        if header is None or len(lines) != int(header[2]) + 3:
            raise ValueError(f"not a schedule: {lines[0]!r} and {len(lines) - 1} more lines")
        try:
            flows = [_flow(word) for word in _words(lines[1], "flows")]
            stash = [int(word) for word in _words(lines[2], "stash")]
            actions = [
                tuple(map(Action.parse, _words(line, f"{stage}:")))
                for stage, line in enumerate(lines[3:])
            ]
        except ValueError as error:
            raise ValueError(f"not a schedule: {error}") from error
        return Schedule(
            header[1], int(header[3]), int(header[4]), header[5] == "joint",
            tuple(flows), tuple(stash), tuple(actions),
        )  # fmt: skip


def chain(parts: int) -> tuple[Flow, ...]:
    """The flows of a model without skip connections between stages."""
    return tuple((v, v + 1) for v in range(parts - 1))


def check_flows(flows: Iterable[Flow], parts: int) -> tuple[Flow, ...]:
    """`flows` in order, each once. ValueError if one leads backwards or out of the model."""
    for u, v in flows:
        if not 0 <= u < v < parts:
            raise ValueError(
                f"a flow leads from a part to a later one of the {parts} parts, got {u} to {v}"
            )
    return tuple(sorted(set(flows)))


def _words(line: str, start: str) -> list[str]:
    first, *rest = line.split()
    if first != start:
        raise ValueError(f"expected a line that starts with {start!r}, got {line[:40]!r}")
    return rest


def _flow(word: str) -> Flow:
    u, arrow, v = word.partition(">")
    if not arrow:
        raise ValueError(f"{word!r} is not a flow; expected e.g. 0>1")
    return int(u), int(v)


@dataclass(frozen=True)
class Costs:
    """Seconds of one micro-batch, per part (virtual stage) and per flow.

    forward, backward, weight: of each part; the backward pass is `backward` + `weight`
    activation, gradient:      of each flow's transfers; a flow that is not listed costs nothing
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    activation: Mapping[Flow, float]
    gradient: Mapping[Flow, float]

    def __post_init__(self) -> None:
        if not len(self.forward) == len(self.backward) == len(self.weight):
            raise ValueError("costs need one forward, backward and weight time for each part")
        times = (*self.forward, *self.backward, *self.weight)
        if min((*times, *self.activation.values(), *self.gradient.values()), default=0.0) < 0:
            raise ValueError("costs cannot be negative")

    @staticmethod
    def uniform(
        parts: int,
        flows: Iterable[Flow],
        forward_s: float = 1.0,
        backward_s: float = 1.0,
        weight_s: float = 1.0,
        transfer_s: float = 0.0,
    ) -> Costs:
        """Costs of equal parts and equal transfers."""
        transfers = dict.fromkeys(flows, transfer_s)
        return Costs(
            (forward_s,) * parts, (backward_s,) * parts, (weight_s,) * parts, transfers, transfers
        )

    def seconds(self, kind: str, part: int) -> float:
        """Seconds of the computation `kind` (F, B or W) of a part."""
        return {"F": self.forward, "B": self.backward, "W": self.weight}[kind][part]

    def transfer_s(self, direction: str, flow: Flow) -> float:
        """Seconds to transfer the activations (F) or gradients (B) of a flow."""
        return (self.activation if direction == "F" else self.gradient).get(flow, 0.0)
