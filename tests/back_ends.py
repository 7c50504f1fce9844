"""The back ends, for workers and tests that run with any of them."""

from autoddl.runtime.backend import Backend


def back_end(name: str) -> Backend:
    """This rank's, by its framework's name."""
    if name == "torch":
        from autoddl.runtime.torch.backend import Torch

        return Torch()
    from autoddl.runtime.oneflow.backend import OneFlow

    return OneFlow()
