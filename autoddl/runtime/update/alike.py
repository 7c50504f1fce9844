"""What ranks must have alike while they train: settings, copies of parameters, and the batch.

They have compared what they were set up with (`jobs/agreement.py`), but a scheduler, a hook or the
user's own code may change something later, on one rank alone. Each rank tells a few numbers of what
it has with a roll call: settings with each step, as text that costs some microseconds; batches,
those of evaluations too, and copies of parameters every so many steps; and the gradients that hooks
have seen after each of them.

Of the copies of a tensor on several ranks the sizes are compared. With n the squares of a tensor's
elements, summed up, and N the sum of n over all tensors that are copied along a mesh axis, a rank
says

    sum over these tensors of  log(n + 1e-6 N)

so that another value counts in a small tensor as in a large one, but not in what is nothing beside
the others, such as a gradient that is zero but for rounding. Devices may round differently, so that
no bits are compared.
"""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple

import numpy as np

from ...plans import Plan
from ...sbp.placement import B
from ..backend import Backend, Tensor, dtype_of
from ..feed import checksums
from ..jobs.agreement import lines_of, plain
from ..jobs.roll_call import Said, Saying
from ..part import Job
from .update import Update

SETTINGS, OPTIONS = "settings", "options of the optimizer"
# of 2 log of a norm, which every step changes less: kernels that round by chance differ by 1e-4
_GRADIENTS, _PARAMETERS = 0.01, 0.1
_SMALL = 1e-6
_STEPS_BETWEEN = 50  # checksums take about 1 ms a megabyte of batch, copies a tenth of an update


def subjects(plan: Plan, arguments: int) -> dict[str, float]:
    """What is compared, and by how much the numbers may differ; the same on all ranks.

    arguments: tensors that a step takes at most
    """
    axes = range(max(stage.mesh.num_axes for stage in plan.stages))
    exact = SETTINGS, OPTIONS, *map(_argument, range(arguments))
    return {
        **dict.fromkeys(exact, 0.0),
        **{_copies("gradients", axis): _GRADIENTS for axis in axes},
        **{_copies("parameters", axis): _PARAMETERS for axis in axes},
    }


def _argument(number: int) -> str:
    return f"tensor {number} of the batch"


def _copies(what: str, axis: int) -> str:
    return f"copies of {what} along mesh axis {axis}"


class Alike:
    """What this rank says; nothing on one device.

    looks: at values, which mean nothing if they are emulated
    """

    def __init__(self, job: Job, update: Update, world: int, looks: bool) -> None:
        self._job = job
        self._update = update
        self._is_alone = world == 1
        self._looks = looks
        self._evaluated = 0  # batches
        self._backend: Backend = job.groups.backend
        self.restart()

    def restart(self) -> None:
        """The optimizer's options are new.

        Stages have other parameters, perhaps in other groups. Those whose groups have the same
        options now must keep them alike.
        """
        self._groups = _sum(self._options())

    def as_made(self) -> str:
        """The optimizer's class and options; of groups only where all ranks have the same."""
        made = self._update.optimizer
        name = type(made.own).__name__
        texts = [f"class {name}", lines_of(plain(made.defaults), f"{name} with ")]
        if self._job.plan.num_stages == 1:
            for number, group in enumerate(self._options()):
                texts.append(lines_of(group, f"{name}'s group {number} with "))
        return "\n".join(texts)

    def in_step(self, batch: Sequence[Tensor], rows: slice | np.ndarray) -> Said:
        """With a step on `batch`, of which the rank reads `rows`."""
        if self._is_alone:
            return {}
        settings, options = self._settings(), self._options()
        found: dict[str, Saying] = {
            SETTINGS: Saying(0, _sum(settings), lambda: lines_of(settings)),
            OPTIONS: Saying(self._groups, _sum(options), lambda: _lines(options)),
        }
        if self._job.run_state.step % _STEPS_BETWEEN == 0:
            found |= self._of_batch(batch, rows)
            found |= self.parameters()
        return found

    def in_evaluation(self, batch: Sequence[Tensor]) -> Said:
        """With an evaluation of `batch`, which every rank is given whole."""
        self._evaluated += 1
        if self._is_alone or self._evaluated % _STEPS_BETWEEN != 1:
            return {}
        return self._of_batch(batch, slice(0, 0))

    def _of_batch(self, batch: Sequence[Tensor], rows: slice | np.ndarray) -> Said:
        plan = self._job.plan
        sums = checksums(batch, plan.graph, plan.batch, rows, self._backend)
        return {_argument(n): Saying(key, one) for n, (key, one) in sums.items()}

    def parameters(self) -> Said:
        """Of the copies of parameters."""
        states = self._update.states.values()
        held = (
            (name, one.nd.axes_of(B), one.local)
            for state in states
            for name, one in state.stored.items()
            if one.parameter is not None
        )
        return self._of_copies("parameters", held)()

    def gradients(self) -> Callable[[], Said]:
        """Of the copies of gradients; what it gives is waited for when it is called."""
        states = self._update.states.values()
        held = (
            (name, state.stored[name].nd.axes_of(B), gradient)
            for state in states
            for name, gradient in sorted(state.gradients.items())
        )
        return self._of_copies("gradients", held)

    def _settings(self) -> dict[str, object]:
        update = self._update
        hooks = [getattr(hook, "__qualname__", type(hook).__name__) for hook in update.hooks]
        return {
            "steps": self._job.run_state.step,
            "loss scale": update.scaler and astuple(update.scaler),
            "clip_grad_norm": update.limit,
            "ema_decay": update.average and update.average.decay,
            "hooks": hooks,
        }

    def _options(self) -> list[dict[str, object]]:
        return [plain(group) for group in self._update.optimizer.groups]

    def _of_copies(
        self, what: str, held: Iterable[tuple[str, tuple[int, ...], Tensor]]
    ) -> Callable[[], Said]:
        """held: names, mesh axes along which ranks have copies, and this rank's part."""
        if self._is_alone or not self._looks:
            return dict
        copied = [(name, axes, _squares(x, self._backend)) for name, axes, x in held if axes]
        if not copied:
            return dict
        sums = self._backend.cat([squares for *_, squares in copied], 0)

        def told() -> Said:
            by_axis: defaultdict[int, dict[str, float]] = defaultdict(dict)
            values = self._backend.to_numpy(sums).tolist()
            for (name, axes, _), value in zip(copied, values, strict=True):
                for axis in axes:
                    by_axis[axis][name] = value
            return {_copies(what, axis): self._size(axis, own) for axis, own in by_axis.items()}

        return told

    def _size(self, axis: int, squares: Mapping[str, float]) -> Saying:
        coords = list(self._job.groups.mesh.coords(self._job.groups.rank))
        coords[axis] = -1
        least = _SMALL * sum(squares.values())
        logs = {name: math.log(x + least) for name, x in squares.items() if 0 < least < math.inf}
        norms = {f"norm of {name}": f"{math.sqrt(x):.3e}" for name, x in squares.items()}
        return Saying(_sum([self._job.stage, coords]), sum(logs.values()), lambda: lines_of(norms))


def _squares(x: Tensor, backend: Backend) -> Tensor:
    """Float64 [1], their sum."""
    with backend.no_grad():
        x = backend.detached(x)
        if dtype_of(x) not in ("float32", "float64"):  # a square overflows early
            x = backend.cast(x, "float32")
        return backend.cast((x * x).sum().reshape((1,)), "float64")


def _sum(value: object) -> int:
    return zlib.crc32(repr(value).encode())


def _lines(groups: Sequence[Mapping[str, object]]) -> str:
    return "\n".join(lines_of(own, f"group {n} with ") for n, own in enumerate(groups))
