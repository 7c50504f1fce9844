"""One operator's backward pass on the tape of a step, as the rules of `backward` see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..graph import Op
from ..planned import PlannedOp
from ..sbp.placement import NdSbp
from .forward import VIEWS
from .step_tensors import StepTensors


@dataclass
class OpPullback:
    """`given`: input index -> the name of the gradient that has been worked out."""

    step: StepTensors
    op: Op
    given: dict[int, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.op.kind

    @property
    def num_inputs(self) -> int:
        return len(self.op.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.op.outputs)

    @property
    def planned(self) -> PlannedOp:
        return self.step.plan.ops[self.op.name]

    def x(self, index: int) -> str:
        return self.step.received[self.op.name, index]

    def y(self, index: int = 0) -> str:
        return self.step.value(self.op.outputs[index])

    def dy(self, index: int = 0) -> str:
        return self.step.arrived.get(self.op.outputs[index], "")

    def extra(self) -> str:
        return self.step.value(self.step.extra_of(self.op))

    def wants(self, index: int) -> bool:
        tensor = self.op.inputs[index]
        needs_grad = tensor in self.step.plan.graph.needs_grad
        return needs_grad and self.planned.grad_ins[index] is not None

    def bytes_x(self, index: int) -> float:
        return self.step.bytes_of(self.op.inputs[index], self.planned.ins[index])

    def bytes_y(self, index: int = 0) -> float:
        return self.step.bytes_of(self.op.outputs[index], self.planned.outs[index])

    def bytes_whole(self, index: int) -> float:
        return float(self.step.plan.graph.tensors[self.op.inputs[index]].spec.bytes)

    def whole_x(self, index: int) -> str:
        return self._gathered(self.x(index), self.op.inputs[index], self.planned.ins[index])

    def whole_dy(self) -> str:
        nd = self.planned.grad_outs[0]
        assert nd is not None, f"{self.op.name} takes no gradient"
        return self._gathered(self.dy(), self.op.outputs[0], nd)

    def _gathered(self, name: str, tensor: str, nd: NdSbp) -> str:
        whole = NdSbp.broadcast(len(nd))
        if nd == whole:
            return name
        way = "all_gather", nd, whole
        return self.step.moved(f"gathering of {tensor}", tensor, name, way, "implied")

    def temporary(
        self, reads: Sequence[str], size: float, workspace: float = 0, over: str = ""
    ) -> str:
        return self.step.new(
            f"backward of {self.op.name}", reads, size, "gradients", workspace, over
        )

    def give(self, index: int, reads: Sequence[str], workspace: float = 0, over: str = "") -> None:
        nd = self.planned.grad_ins[index]
        if not self.wants(index) or nd is None:
            return
        size = self.step.bytes_of(self.op.inputs[index], nd)
        self.given[index] = self.temporary(reads, size, workspace, over)

    def give_view(self, index: int, source: str) -> None:
        if not self.wants(index):
            return
        name = self.step.name(f"gradient of input {index} of {self.op.name}")
        self.step.tape.view(name, source)
        self.given[index] = name

    def all_at_once(self) -> None:
        """Autograd of one operator: every input and output is there, all gradients come out."""
        reads = [*map(self.x, range(self.num_inputs)), *map(self.y, range(self.num_outputs))]
        reads += [self.dy(o) for o in range(self.num_outputs) if self.dy(o)]
        extra = self.extra()
        if extra in self.step.extras:
            reads.append(extra)
        if self.kind in VIEWS or self.kind in ("add_n", "broadcast_add", "bias_add"):
            self.step.tape.act(f"backward of {self.op.name}", reads)
            for index in range(self.num_inputs):
                if self.bytes_x(index) < self.bytes_y():
                    self.give(index, [self.dy()])
                else:
                    self.give_view(index, self.dy())
            return
        makes = []
        for index in range(self.num_inputs):
            nd = self.planned.grad_ins[index]
            if self.wants(index) and nd is not None:
                name = self.step.name(f"gradient of input {index} of {self.op.name}")
                size = self.step.bytes_of(self.op.inputs[index], nd)
                makes.append((name, size, "gradients"))
                self.given[index] = name
        self.step.tape.act(f"backward of {self.op.name}", reads, makes)
