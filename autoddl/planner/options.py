"""What can be chosen for a plan: the one list of options, in Python and on the command line.

`autoddl.plan(graph, cluster, micro_batches=4)` makes `PlanOptions` of its keyword arguments, and
the command line makes the same of its options, which are built from the metadata of the fields.
Every planning function takes them as one value, which was checked when it was made. This module
needs nothing but the standard library, so that `autoddl --help` stays quick; so what is paused
while plans are made stands here, too, and can be before all else is imported.
"""

from __future__ import annotations

import dataclasses
import difflib
import gc
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..graph.hints import GivenHints, as_hints
from ..search.algorithms import ALGORITHMS, RESTARTS, Algorithm, find_algorithm

if TYPE_CHECKING:
    from ..cost.collectives import CommRule
    from ..cost.recompute import Checkpointing
    from ..graph.batch_norm import BatchNorm

Stages = int | Literal["auto"]
MOST_IN_FLIGHT = 2  # on one mesh: Akers' path is one of two strands
INTERLEAVED = "interleaved-1f1b"
SCHEDULES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", INTERLEAVED)
PROVING = tuple(name for name, search in ALGORITHMS.items() if search.proves_bound)
_LEAST_S = 1e-6  # of a budget
_LARGEST = 2**63 - 1  # of a whole number, as files have them
_OF_STAGES = ("schedule", "delay", "chunks")


@dataclass(frozen=True)
class About:
    """What an option may be, and what `--help` says of it.

    least: the smallest value; `above` is the same with that value itself left out
    """

    help: str
    kind: type = str
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None


def _option(default: Any, about: About) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The choices of a user beside the graph and the cluster.

    seed:               of the search; equal inputs and seeds give byte-identical plans
    optimizer:          whose state takes memory
    ema:                an average of the parameters is kept beside them, and takes as much memory
    micro_batches:      parts of the batch whose gradients are accumulated; None chooses, 1 where
                        rows of the batch meet, in a contrastive loss for instance
    in_flight:          micro-batches at once on one mesh: 2, of which one computes while the other
                        communicates, or 1; None for what is faster, of 1 without overlap
    memory_limit_bytes: per device; None takes the device's memory, and inf sets no limit. Where
                        devices are not alike, of that with least memory: the others may hold
                        as many times more as they have
    search:             an algorithm of `search.algorithms` by name, or one of your own
    comm_rule:          "shared_nic", or "plain" for the prices of the AutoDDL paper
    restarts:           random starts of a heuristic search
    budget_seconds:     of planning, which then returns the best plan so far: some plan that fits
                        comes first, however long that takes, and known schemes are not priced if
                        time is over. The plan depends on the machine then. Of a model in stages,
                        half is for the cuts, and each stage gets an even share of the rest; with
                        stages="auto", one mesh comes first and takes half. `autoddl plan` and
                        `compare` count them from their start, with what they read and trace
    budget_evaluations: of the search, likewise; the plan does not depend on the machine
    gap:                at which the search may end, such as 0.01 for at most 1 % above the lower
                        bound; 0 proves what it can. None: 0.01 %. Only for a search that proves
                        a bound
    split_channels:     search channel splits of convolutions even where the batch divides over all
                        devices (there AutoDDL section 4.5 finds data parallel convolutions best)
    zero:               store parameters, gradients and the optimizer's state split (ZeRO) where it
                        pays; False as in AutoDDL's own space. The schemes named ZeRO are priced
                        all the same, and not taken
    overlap:            gradients travel beside the backward pass, in buckets that prices choose; so
                        in the known schemes, too, and in pipeline stages unless weights' gradients
                        come later (zb-h1, a delay). False: one task after the other, as in AutoDDL,
                        of which plans can mostly be proven optimal
    baselines:          price the known schemes too, and return the best of them if it is faster
                        than what was found; in stages each is priced in the same stages
    checkpointing:      which of the model's repeated blocks keep only their inputs and run forward
                        again before their backward pass: "none", "all", or "auto" for as few as
                        make the fastest plan that fits
    precision:          "float32", or "float16" or "bfloat16" for mixed precision
    back_end:           that runs the plan: what it keeps of an operator decides what fits; None
                        for the framework that the model is of
    batch_norm:         the rows that BatchNorm takes its statistics of: the whole "batch", which is
                        then not cut into micro-batches, each "micro_batch", or each device's
                        "shard" of it
    shares:             by which tensors are divided among runs of equally many hosts, such as
                        "3:1", or "even"; None chooses where the machine file has hosts of several
                        kinds, and is even elsewhere
    hints:              how parts of the model are to be placed, such as {"head": "split(4)"}, or
                        hosts to spare, {"host 3": "least"}; see `graph.hints`. Beside those in the
                        model's own code
    stages:             None for one mesh, a number of pipeline stages, or "auto" for as many as pay
    schedule:           of the stages
    delay:              weight gradients are computed so many backward passes late; None: with the
                        gradients of the inputs
    chunks:             parts of the model on each stage, for interleaved-1f1b

    Raises ValueError for a value that is none of these, and for options that exclude each other.
    """

    seed: int = _option(0, About("Of the search.", int, least=0))
    optimizer: str = _option(
        "adam", About("Its state takes memory.", choices=("adam", "adamw", "momentum", "sgd"))
    )
    ema: bool = _option(False, About("An average of the parameters takes memory, too.", bool))
    micro_batches: int | None = _option(
        None, About("Instead of what memory asks for.", int, least=1)
    )
    in_flight: int | None = _option(
        None,
        About("Micro-batches at once on one mesh, 1 or 2; else what is faster.", int, least=1),
    )
    memory_limit_bytes: float | None = _option(
        None, About("Of the device with least, instead of all; inf for no limit.", float, above=0)
    )
    search: str | Algorithm = _option(
        "auto",
        About("Algorithm; docs/how-it-works.md says what each proves.", choices=tuple(ALGORITHMS)),
    )
    comm_rule: CommRule = _option(
        "shared_nic",
        About(
            "plain: the paper's prices, as if no two groups shared a NIC.",
            choices=("shared_nic", "plain"),
        ),
    )
    restarts: int = _option(RESTARTS, About("Random starts of a heuristic search.", int, least=1))
    budget_seconds: float | None = _option(
        None, About("After which planning gives the best plan so far.", float, above=0)
    )
    budget_evaluations: int | None = _option(
        None, About("Likewise; unlike seconds, the same on every machine.", int, least=1)
    )
    gap: float | None = _option(
        None,
        About(
            "At which the search may end: 1% for a plan at most 1% above its lower bound.",
            float,
            least=0,
        ),
    )
    split_channels: bool = _option(False, About("Search channel splits of all convolutions.", bool))
    zero: bool = _option(
        True,
        About(
            "Split parameters, gradients and the optimizer's state (ZeRO 1 to 3) where it pays.",
            bool,
        ),
    )
    overlap: bool = _option(
        True, About("Exchange gradients in buckets, beside the backward pass.", bool)
    )
    baselines: bool = _option(
        True, About("Price the known schemes too; the plan is the best of all.", bool)
    )
    checkpointing: Checkpointing = _option(
        "auto",
        About(
            "Which repeated blocks keep only their inputs and run forward again.",
            choices=("auto", "none", "all"),
        ),
    )
    precision: str = _option(
        "float32",
        About(
            "float16, bfloat16: mixed precision, with master weights; loss scaling for float16.",
            choices=("float32", "float16", "bfloat16"),
        ),
    )
    back_end: str | None = _option(
        None,
        About(
            "That runs the plan, if not the model's: its rules say what memory it needs.",
            choices=("oneflow", "torch"),
        ),
    )
    batch_norm: BatchNorm = _option(
        "batch",
        About(
            "Rows that BatchNorm takes its statistics of; with batch, the batch is not cut.",
            choices=("batch", "micro_batch", "shard"),
        ),
    )
    shares: str | None = _option(
        None, About("Of tensors among hosts that are not alike, e.g. 3:1; even: equal ones.")
    )
    hints: GivenHints = _option((), About("How parts of the model are to be placed.", tuple))
    stages: Stages | None = _option(
        None, About("Cut the model into pipeline stages; auto: as many as pay.")
    )
    schedule: str = _option("1f1b", About("Of the stages.", choices=SCHEDULES))
    delay: int | None = _option(
        None, About("Weight gradients so many backward passes late.", int, least=0)
    )
    chunks: int = _option(
        1, About("Parts of the model on each stage, for interleaved-1f1b.", int, least=1)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "hints", as_hints(self.hints))
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            _check(option, value)
            if isinstance(value, Integral) and not isinstance(value, int):  # NumPy's
                object.__setattr__(self, option.name, int(value))
            elif isinstance(value, Real) and not isinstance(value, (int, float)):
                object.__setattr__(self, option.name, float(value))
        if self.gap is not None and self.gap >= 1:
            raise ValueError(f"gap is a share of the bound, 0.01 for 1 %: below 1, got {self.gap}")
        if self.gap and not find_algorithm(self.search).proves_bound:
            raise ValueError(
                f"the search {self.search!r} proves no bound, so it cannot keep to a gap; leave "
                f"the gap out, or use one of {', '.join(PROVING)}"
            )
        if self.shares not in (None, "even") and self.stages not in (None, 1):
            raise ValueError("shares divide tensors on one mesh; leave them out, or the stages")
        if self.in_flight is not None:
            self._check_in_flight(self.in_flight)
        if self.stages is None:
            self._refuse(_OF_STAGES, "cannot go without stages")
            return
        if self.checkpointing == "all" and (self.delay is not None or self.schedule == "zb-h1"):
            raise ValueError(
                "weight gradients that come later need what a block that is run again forgets; "
                "use checkpointing='none' with zb-h1 and with a delay"
            )
        if (self.schedule == INTERLEAVED) != (self.chunks > 1):
            raise ValueError(
                f"{INTERLEAVED} has 2 or more chunks a stage (--chunks) and other schedules have "
                f"1; got {self.chunks} for {self.schedule}"
            )
        if self.schedule == INTERLEAVED and self.stages == "auto":
            raise ValueError(f"{INTERLEAVED} takes a given number of stages")

    def _check_in_flight(self, count: int) -> None:
        if count > MOST_IN_FLIGHT:
            raise ValueError(f"in_flight must be 1 or {MOST_IN_FLIGHT}, got {count}")
        if self.stages is not None:
            raise ValueError(
                "in_flight is of one mesh: in stages the schedule says how many micro-batches are; "
                "leave one of the two out"
            )
        if count > 1 and not self.overlap:
            raise ValueError(
                "several micro-batches in flight overlap computation and communication; they need "
                "overlap=True"
            )

    @classmethod
    def of(cls, options: PlanOptions | None, keywords: Mapping[str, Any]) -> PlanOptions:
        """`options` with these changes. TypeError for an unknown name, with the nearest known one.

        ValueError as when they are made.
        """
        known = [option.name for option in dataclasses.fields(cls)]
        for name in keywords:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise TypeError(f"plans have no option {name!r}; {hint}")
        return dataclasses.replace(options or cls(), **keywords)

    @property
    def given_shares(self) -> tuple[int, ...] | None:
        """The shares asked for: () for even ones, None for any."""
        return None if self.shares is None else parse_shares(self.shares)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the options that are not at their defaults."""
        return tuple(
            option.name
            for option in dataclasses.fields(self)
            if getattr(self, option.name) != option.default
        )

    def keywords(self, *without: str) -> dict[str, Any]:
        """All of them by name, but for those named."""
        return {
            option.name: getattr(self, option.name)
            for option in dataclasses.fields(self)
            if option.name not in without
        }

    def later(self, seconds: float) -> PlanOptions:
        """The same once so many seconds of the budget are spent, of which some is always left."""
        if self.budget_seconds is None:
            return self
        return dataclasses.replace(
            self, budget_seconds=max(self.budget_seconds - seconds, _LEAST_S)
        )

    def on_one_mesh(self) -> PlanOptions:
        """The same without pipeline stages."""
        default = PlanOptions()
        plain = {name: getattr(default, name) for name in _OF_STAGES}
        return dataclasses.replace(self, **plain, stages=None)

    def _refuse(self, names: tuple[str, ...], why: str) -> None:
        given = [name for name in self.changed if name in names]
        if given:
            raise ValueError(f"{' and '.join(given)} {why}; leave one of them out")


class TrainKeywords(TypedDict, total=False):
    """The options of `autoddl.parallelize`, for type checkers: it has an optimizer of its own.

    `stages` stands in the signatures, as the type of the result depends on it.
    """

    seed: int
    micro_batches: int | None
    in_flight: int | None
    memory_limit_bytes: float | None
    search: str | Algorithm
    comm_rule: CommRule
    restarts: int
    budget_seconds: float | None
    budget_evaluations: int | None
    gap: float | None
    split_channels: bool
    zero: bool
    overlap: bool
    baselines: bool
    checkpointing: Checkpointing
    precision: str
    back_end: str | None
    batch_norm: BatchNorm
    shares: str | None
    hints: GivenHints
    schedule: str
    delay: int | None
    chunks: int


class PlanKeywords(TrainKeywords, total=False):
    """The options of `autoddl.plan`, likewise."""

    optimizer: str
    ema: bool


def about(option: dataclasses.Field[Any]) -> About:
    """What an option of `PlanOptions` may be."""
    return option.metadata["about"]


def _check(option: dataclasses.Field[Any], value: Any) -> None:
    """ValueError unless the option may have this value."""
    name, asked = option.name, about(option)
    if value is None and option.default is None:
        return
    if name == "stages":
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (isinstance(value, str) and value == "auto"):
            raise ValueError(f"stages must be a number from 1 on, 'auto' or None, got {value!r}")
        return
    if name == "shares":
        parse_shares(value)
        return
    if name == "hints":  # checked when they are made
        return
    if asked.choices:
        if name == "search" and isinstance(value, Algorithm):
            return
        if not isinstance(value, str) or value not in asked.choices:
            raise ValueError(
                f"unknown {name} {value!r}; use one of {', '.join(map(repr, asked.choices))}"
            )
        return
    if asked.kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")
        return
    kind, words = (Integral, "a whole number") if asked.kind is int else (Real, "a number")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {words}, got {value!r}")
    if isinstance(value, int) and abs(int(value)) > _LARGEST:
        raise ValueError(f"{name} must be at most {_LARGEST}, got a larger number")
    number = float(value)
    if asked.least is not None and not number >= asked.least:
        raise ValueError(f"{name} must be at least {asked.least:g}, got {value}")
    if asked.above is not None and not number > asked.above:
        raise ValueError(f"{name} must be more than {asked.above:g}, got {value}")


def parse_shares(text: object) -> tuple[int, ...]:
    """`3:1` -> (3, 1), without a common factor; () for `even`. ValueError on anything else."""
    if isinstance(text, str) and text == "even":
        return ()
    number = r"(0|[1-9]\d{0,5})"
    if not isinstance(text, str) or not re.fullmatch(rf"{number}(:{number})+", text):
        raise ValueError(
            f"shares must be like '3:1', one for every so many hosts, or 'even': {text!r}"
        )
    shares = tuple(map(int, text.split(":")))
    if sum(map(bool, shares)) < 2:
        raise ValueError(
            f"shares {text} leave all work to some hosts alone: plan for these, or give at least "
            "two shares that are not 0"
        )
    return tuple(share // math.gcd(*shares) for share in shares)


DEFAULTS = PlanOptions()


@contextmanager
def paused_collector() -> Iterator[None]:
    """Without Python's garbage collector inside, as many objects are made that stay.

    It looks at all objects again each time that so many new ones were made, and so costs the more
    the larger a traced model and its plan are, though reference counts free what planning leaves.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
