"""One action of a stage in a pipeline, with a short text that can be read back.

    F3      forward of micro-batch 3            SF3>1   send its result to stage 1
    B3      backward for the inputs             RF3<0   receive stage 0's result
    W3      backward for the weights            SB3>0   send the gradient of what stage 0 sent
                                                RB3<1   receive a gradient from stage 1

A stage that holds several chunks of the model (interleaved schedules) names the chunk after a dot,
`F3.1`, `SF3>0.1`; chunk 0 is not written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["F", "B", "W", "SF", "RF", "SB", "RB"]
COMPUTE_KINDS = ("F", "B", "W")

_TEXT = re.compile(r"(F|B|W|SF|RF|SB|RB)(\d+)(?:\.(\d+))?(?:([<>])(\d+)(?:\.(\d+))?)?")


@dataclass(frozen=True, slots=True)
class Action:
    """`chunk` is the stage's own; `peer` and `peer_chunk` say where a transfer goes or comes from.

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
