"""One operator's backward pass on the tape of a step, as the rules of `backward` see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..graph.graph import Op
from ..graph.placed import PlannedOp
from ..sbp.placement import NdSbp
from ..sbp.signature import OpSpec
from .step_tensors import StepTensors
from .strides import Strides


@dataclass
class OpPullback:
    """`given`: input index -> the name of the gradient that has been worked out."""

    step: StepTensors
    op: Op
    given: dict[int, str] = field(default_factory=dict)
    kind: str = field(init=False)
    planned: PlannedOp = field(init=False)

    def __post_init__(self) -> None:
        self.kind, self.planned = self.op.kind, self.step.plan.ops[self.op.name]

    @property
    def num_inputs(self) -> int:
        return len(self.op.inputs)

    @property
    def num_outputs(self) -> int:
        return len(self.op.outputs)

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

    # ---- the executor's

    @property
    def spec(self) -> OpSpec:
        return self.step.plan.graph.spec(self.op)

    def new_gradient(self, index: int) -> tuple[str, float, str]:
        """The gradient of a wanted input, to be made: name, bytes and cause."""
        nd = self.planned.grad_ins[index]
        assert nd is not None
        name = self.step.name(f"gradient of input {index} of {self.op.name}")
        self.given[index] = name
        return name, self.step.bytes_of(self.op.inputs[index], nd), "gradients"

    def strides_dy(self) -> Strides:
        return self.step.strides_of(self.dy(), self.op.outputs[0])

    def copied_x(self, index: int) -> float:
        """Bytes of a contiguous copy of an input; 0 if it is contiguous itself."""
        return self.step.copied_bytes(self.x(index), self.op.inputs[index], self.planned.ins[index])

    def copied_dy(self, index: int) -> float:
        """The same of the gradient of an output."""
        nd = self.planned.grad_outs[index]
        if nd is None:
            return 0.0
        return self.step.copied_bytes(self.dy(index), self.op.outputs[index], nd)
