"""Where OneFlow can compute in float16: on CUDA devices."""

from __future__ import annotations

import oneflow as flow


def check_device(precision: str) -> None:
    """ValueError unless this machine's devices can run plans in `precision`."""
    if precision == "float32" or flow.cuda.is_available():
        return
    raise ValueError(
        f"the plan computes in {precision}, for which OneFlow {flow.__version__} has no kernels on "
        "the CPU (matmul among them), and this machine has no CUDA device; run the plan where "
        "there is one, or plan with precision='float32'"
    )
