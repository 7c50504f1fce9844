"""Which faults there are, and what a job must say of each."""

from __future__ import annotations

import itertools
import math
import re
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass

MARK, TRAINED = "fault at", "trained to the end"  # what ranks say
SIGNALS = {
    "SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGINT": signal.SIGINT,
    "SIGTERM": signal.SIGTERM, "SIGABRT": signal.SIGABRT, "SIGSEGV": signal.SIGSEGV,
}  # fmt: skip
SUDDEN = ("raise", "_exit(0)", "_exit(5)", "sys.exit(3)", "sleep", *SIGNALS)
# kind -> what the message names; all others are set up as they should
DISAGREE = {
    "plan": "plan", "width": "model", "debug": "option: debug", "lr": "optimizer",
    "optimizer": "optimizer: class", "loss": "model", "micro-batches": "option: micro_batches",
    "search": "option: search", "batch norm": "option: batch_norm", "cluster": "cluster",
}  # fmt: skip
# kind -> what the message names; on one rank while all train
LATER = {
    "scheduler": "options of the optimizer: group 0 with lr", "group": "group 0 with momentum",
    "clip": "settings: clip_grad_norm", "hook": "settings: hooks", "evaluates": "evaluate",
    "saves": "save", "short batch": "batch of 4 rows", "fewer batches": "exit",
}  # fmt: skip
# of the model itself, on all ranks
TRAINS_NOTHING = {
    "own parameters": "parameters", "detached": "detached", "loss ignores": "loss",
}  # fmt: skip
LINKS = ("down", "one way", "parted", "loses 5 %", "down 4 s")
LONG = ("down 40 s",)  # with the default limit, which is longer
SHAPES = {
    "1x2": (1, 2), "1x2 in stages": (1, 2),
    "1x4": (1, 4), "1x4 in stages": (1, 4), "2x2": (2, 2), "2x2 in stages": (2, 2),
    "box 2x2": (2, 2), "box 4x1": (4, 1),
    "box 2x2 in stages": (2, 2), "box 4x1 in stages": (4, 1),
}  # fmt: skip
BOXES = tuple(name for name in SHAPES if name.startswith("box"))
PLACES = ("start", "step 1", "inside step 2", "step 4")
STEPS = 6
MANY_STEPS = 200  # where a link loses packets: some seconds


@dataclass(frozen=True, order=True)
class Fault:
    """What happens on `rank`, or to its host's link, when; in a job on `mesh`."""

    kind: str
    rank: int
    when: str
    mesh: str

    @property
    def goes_on(self) -> bool:
        """The job has to survive it."""
        return self.kind in ("loses 5 %", "down 4 s", "seed", *LONG)

    @property
    def is_slow_to_show(self) -> bool:
        """Only after the time that hosts have to come at all: nobody knows that it has ended."""
        return self.kind == "never starts" or (
            self.when == "before import" and self.kind == "_exit(0)"
        )

    @property
    def is_of_link(self) -> bool:
        return self.kind in LINKS + LONG

    @property
    def steps(self) -> int:
        return MANY_STEPS if self.kind == "loses 5 %" else STEPS

    @property
    def ranks(self) -> int:
        """Of the job."""
        return math.prod(SHAPES[self.mesh])

    @property
    def host(self) -> int:
        """Of the rank."""
        return self.rank // SHAPES[self.mesh][1]

    @property
    def cause(self) -> str:
        """A pattern of what the first line that names a cause has to say."""
        kind = self.kind
        me = rf"rank {self.rank} of {self.ranks}\b.*"
        if kind in DISAGREE:
            return rf"not set up alike: .*{DISAGREE[kind]}.* on rank .*\b{self.rank}\b"
        if kind in LATER:
            return rf"the ranks do .*{LATER[kind]}.* on rank .*\b{self.rank}\b"
        if kind in TRAINS_NOTHING:
            return TRAINS_NOTHING[kind]
        if kind == "seed":
            return rf"values on rank {self.rank} are not those of rank 0"
        if kind == "nan":
            return rf"step {int(self.when[-1]) + 1}: the loss.* no number .*rank"
        if kind == "batch":
            return rf"tensor [01] of the batch .*\brank {self.rank}\b"
        if kind == "loses 5 %":
            return rf"link .*10\.77\.{self.host}\.2.* (again|lost)"
        if self.goes_on:
            return ""
        if kind == "parted":
            return r"10\.77.*link"  # several, which ones is the judge's choice
        if kind == "reset":
            # it has two ends, and whichever process finds it broken first ends first
            return rf"rank [0-3] of {self.ranks}\b.*connection"
        if self.is_of_link:
            return rf"(10\.77\.{self.host}\.2.*link|link.*10\.77\.{self.host}\.2)"
        say = {
            "raise": "RuntimeError: a fault",
            "sleep": "has done nothing for",
            "SIGSTOP": "is stopped",
            "_exit(0)": "ended (without a word|with status 0)",
            "_exit(5)": "status 5",
            "sys.exit(3)": "(sys.exit.3.|status 3)",
        }
        if self.when == "before import" and kind == "raise":
            return me + "status 1"  # Python has said why
        if self.is_slow_to_show:
            return me + "has not come"
        return me + say.get(kind, kind)

    def as_words(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}, rank {self.rank}, {self.when}, {self.mesh}"


def is_named(fault: Fault, line: str) -> bool:
    return re.search(fault.cause, line) is not None


def faults() -> Iterator[Fault]:
    """All of them. Ranks go round, and of the kinds that every mesh would show so do meshes."""
    ranks = itertools.cycle((1, 3, 0, 2, 0))  # five, as there are four boxes
    four = itertools.cycle(("1x4", "2x2", "1x4 in stages", "2x2 in stages", *BOXES))
    pairs = itertools.cycle(("1x2", "1x2 in stages"))

    def rank_of(kind: str, size: int) -> int:
        """Of those that every rank shows any, of the others not the one they are compared with."""
        rank = next(ranks)
        return rank % size if kind in SUDDEN else 1 + rank % (size - 1)

    for turn, (kind, when) in enumerate(_of_ranks()):
        if turn % 2:
            next(four)  # else a kind would meet only half of the meshes
        for _ in range(4):
            yield Fault(kind, rank_of(kind, 4), when, next(four))
        yield Fault(kind, rank_of(kind, 2), when, next(pairs))
    for kind, mesh in itertools.product(("never starts", "raise", "_exit(0)"), ("1x4", *BOXES)):
        yield Fault(kind, next(ranks), "before import", mesh)
    for kind, when, mesh in itertools.product(LINKS, ("step 1", "step 4"), BOXES):
        yield Fault(kind, next(ranks), when, mesh)
    for kind, mesh in itertools.product(LONG, BOXES[:2]):
        yield Fault(kind, next(ranks), "step 1", mesh)
    for turn, kind in enumerate(LATER):
        if turn % 2:
            next(four)
        for _ in range(4):
            yield Fault(kind, rank_of(kind, 4), "step 4", next(four))
        yield Fault(kind, rank_of(kind, 2), "step 4", next(pairs))


def _of_ranks() -> Iterator[tuple[str, str]]:
    """Kind and place."""
    for when, kind in itertools.product(PLACES, SUDDEN):
        yield kind, when
    for kind in (*DISAGREE, "seed", *TRAINS_NOTHING):
        yield kind, "start"
    for kind, when in itertools.product(("nan", "reset"), ("step 1", "step 4")):
        yield kind, when
    yield "batch", "step 0"
