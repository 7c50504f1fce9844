"""Where OneFlow can compute in float16: on CUDA devices."""

from __future__ import annotations

import oneflow as flow


def check_device(precision: str, in_stages: bool = False) -> None:
    """ValueError unless this machine's devices can run plans in `precision`."""
    if in_stages:
        check_stages(precision)
    if precision == "float32" or flow.cuda.is_available():
        return
    raise ValueError(
        f"the plan computes in {precision}, for which OneFlow {flow.__version__} has no kernels on "
        "the CPU (matmul among them), and this machine has no CUDA device; run the plan where "
        "there is one, or plan with precision='float32'"
    )


def check_stages(precision: str) -> None:
    """ValueError unless plans with stages run in `precision`: losses are not scaled there."""
    if precision != "float32":
        raise ValueError(
            f"the plan computes in {precision} and has stages, whose losses autoddl does not scale "
            "yet; plan with precision='float32', or without stages"
        )
