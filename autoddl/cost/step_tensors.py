"""The tensors of a planned step by name, on its tape: what makes them and how they travel.

A tensor of the graph is on the tape under its own name, under a new one if it is made again, and
under one more for each placement that it travels to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..graph.graph import Op
from ..sbp.collectives import Step
from ..sbp.layout import num_shards
from ..sbp.placement import NdSbp
from .chains import ChainRule
from .compiled_comm import MOST_AXES, collective_workspace, goes_through_host, num_changes
from .planned_step import Key, PlannedStep
from .routes import Way, compiled_route, planned_route
from .strides import Strides, contiguous, is_contiguous
from .tape import Tape, Transfer


@dataclass
class StepTensors:
    """Of the step `plan`.

    chains:   how the compiler chains operators; "" for the runtime "executor"
    compiled: true for the runtime "graph"
    received: reader and input -> name
    """

    plan: PlannedStep
    chains: ChainRule | Literal[""] = ""
    tape: Tape = field(default_factory=Tape)
    received: dict[Key, str] = field(default_factory=dict)
    arrived: dict[str, str] = field(default_factory=dict)  # tensor -> name of its gradient
    newest: dict[str, str] = field(default_factory=dict)  # tensor -> its name, made again
    strides: dict[str, Strides] = field(default_factory=dict)  # of views, the executor's
    extras: set[str] = field(default_factory=set)  # names of what operators keep beside outputs
    counter: int = 0
    compiled: bool = field(init=False)
    _parts: dict[int, tuple[NdSbp, int]] = field(default_factory=dict)  # by the object's id
    _whole: dict[str, int] = field(default_factory=dict)
    _routes: dict[tuple[NdSbp, tuple[Step, ...]], tuple[Way, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compiled = bool(self.chains)

    def name(self, what: str) -> str:
        """A new name."""
        self.counter += 1
        return f"{what}#{self.counter}"

    def new(
        self,
        what: str,
        reads: Sequence[str],
        size: float,
        cause: str,
        workspace: float = 0,
        over: str = "",
        transfer: Transfer = "",
    ) -> str:
        """Append an action that makes one tensor; gives the tensor's name."""
        name = self.name(what)
        places = {name: over} if over else None
        self.tape.act(what, reads, [(name, size, cause)], workspace, places, transfer)
        return name

    def value(self, tensor: str) -> str:
        """The name under which a tensor of the graph was made last."""
        return self.newest.get(tensor, tensor)

    def bytes_of(self, tensor: str, nd: NdSbp) -> float:
        """Local bytes of a tensor of the graph that is placed as `nd`."""
        whole = self._whole.get(tensor)
        if whole is None:
            whole = self._whole[tensor] = self.plan.graph.tensors[tensor].spec.bytes
        known = self._parts.get(id(nd))
        if known is None:
            known = self._parts[id(nd)] = nd, num_shards(nd, self.plan.mesh)
        return whole / known[1]

    def strides_of(self, name: str, tensor: str) -> Strides:
        """Of `tensor`, which is `name`; those of the whole, as if it were not split."""
        return self.strides.get(name) or contiguous(self.plan.graph.tensors[tensor].spec.shape)

    def copied_bytes(self, name: str, tensor: str, nd: NdSbp) -> float:
        """Local bytes of a contiguous copy of `tensor`, which is `name`; 0 if it needs none."""
        shape = self.plan.graph.tensors[tensor].spec.shape
        strides = self.strides.get(name)
        if strides is None or is_contiguous(shape, strides):
            return 0.0
        return self.bytes_of(tensor, nd)

    def extra_of(self, op: Op) -> str:
        """What stands for that which an operator keeps beside its outputs."""
        return f"{op.name}:kept"

    # ---- redistributions

    def travel(
        self,
        what: str,
        tensor: str,
        name: str,
        source: NdSbp,
        steps: Sequence[Step],
        transfer: Transfer = "planned",
    ) -> str:
        """The name of `tensor`, which is `name` and placed as `source`, after `steps`."""
        if not steps:
            return name
        for kind, start, nd in self._route(source, steps):
            name = self.moved(f"{kind} of {what}", tensor, name, (kind, start, nd), transfer)
        return name

    def moved(self, what: str, tensor: str, name: str, way: Way, transfer: Transfer) -> str:
        """The name of `tensor`, which is `name`, after one way."""
        kind, start, nd = way
        if not self.compiled and kind == "slice":
            return name
        after = self.bytes_of(tensor, nd)
        if not self.compiled:
            return self.new(what, [name], after, "redistribution", transfer=transfer)
        before = self.bytes_of(tensor, start)
        workspace = collective_workspace(start, nd, before, after, self.plan.mesh)
        if self._leaves_chain(start, nd):
            # into a buffer of its own; what it leaves behind is not reused
            through_host = goes_through_host(start, nd)
            self.tape.keep("redistribution", after + (0 if through_host else workspace))
            self.tape.kept.add(name)
            return self.name(f"always:{what}")
        how: Transfer = "implied" if kind == "slice" else transfer
        return self.new(what, [name], after, "redistribution", workspace, "", how)

    def _leaves_chain(self, source: NdSbp, target: NdSbp) -> bool:
        """True if the compiler has no collective on the mesh of the step for the change."""
        if goes_through_host(source, target):
            return True
        # more than two axes are not compiled at all, and taken as if each had its collectives
        reduced = len(self.plan.compiled_axes) == MOST_AXES and num_changes(source, target) == 1
        return reduced and self.chains == "operators"

    def _route(self, source: NdSbp, steps: Sequence[Step]) -> tuple[Way, ...]:
        key = source, tuple(steps)
        if key not in self._routes:
            self._routes[key] = (compiled_route if self.compiled else planned_route)(*key)
        return self._routes[key]

    def placed_after(self, nd: NdSbp, steps: Sequence[Step]) -> NdSbp:
        """The placement `nd` after `steps`."""
        return self._route(nd, steps)[-1][2] if steps else nd
