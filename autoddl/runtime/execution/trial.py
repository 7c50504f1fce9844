"""Tries each kind of operator once before training, where a framework may lack kernels.

Frameworks have kernels of all operators in float32; in half precision some may be missing, which
would else be found in the middle of the first step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...sbp.layout import TensorSpec, local_shape
from ...sbp.placement import NdSbp
from ..backend import Backend, Tensor
from .program import Node, Program
from .vjp import product, run_kernel


def check_kernels(program: Program, precision: str, backend: Backend) -> None:
    """ValueError that names the first operator with tensors in `precision` that cannot run.

    Each kind runs on zeros, forward and backward, in the shapes of this rank; all ranks of the
    program's mesh call it together.
    """
    tried = set()
    for node in program.nodes:
        spec = node.context.spec
        dtypes = tuple(t.dtype for t in (*spec.inputs, *spec.outputs))
        key = node.op.kind, dtypes, any(node.takes)
        if node.kernel is None or precision not in dtypes or key in tried:
            continue
        tried.add(key)
        try:
            _run(node, backend)
        except Exception as error:
            facts = backend.facts
            raise ValueError(
                f"{facts.framework} cannot run {node.op.name} ({node.op.kind}) in {precision} on "
                f"the {facts.device.upper()} of this machine; plan with precision='float32'. "
                f"It says: {_last_line(error)}"
            ) from error


def _run(node: Node, backend: Backend) -> None:
    assert node.kernel is not None
    spec, planned = node.context.spec, node.planned
    wanted = [edge.carries_gradient for edge in node.edges]
    inputs = _zeros(node, spec.inputs, planned.ins, backend)
    record, _ = run_kernel(backend, node.kernel, node.context, node.attrs, inputs, wanted)
    if record is not None:
        given = _zeros(node, spec.outputs, planned.outs, backend)
        product(record, [x if takes else None for x, takes in zip(given, node.takes, strict=True)])
    backend.wait()


def _zeros(
    node: Node, specs: Sequence[TensorSpec], placements: Sequence[NdSbp], backend: Backend
) -> list[Tensor]:
    mesh, rank = node.context.mesh, node.context.rank
    return [
        backend.zeros(local_shape(spec.shape, nd, mesh, rank), spec.dtype)
        for spec, nd in zip(specs, placements, strict=True)
    ]


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
