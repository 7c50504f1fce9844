"""What a compiled step does after its last micro-batch.

nn.Graph adds gradients up in buffers of their own. Then each is reduced, if it is still Partial,
and its parameter updated; the mean is taken in the update (`allow_fuse_model_update_ops`).
"""

from __future__ import annotations

from .lifetime import StepTape
from .tape import Tape


def late(step: StepTape) -> Tape:
    """The tape that follows that of `step`, which has been built."""
    main, step.tape = step.tape, Tape()
    for tensor in step.accumulated:
        nd, steps = step.owed[tensor]
        whole = step.travel(f"gradient of {tensor}", tensor, f"always:{tensor}", nd, steps)
        step.tape.act(f"update of {tensor}", [whole])
    after, step.tape = step.tape, main
    return after
