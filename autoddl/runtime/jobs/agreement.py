"""What the ranks of a job settle before they train: its size, one plan, and what must be equal.

Ranks that have other models, learning rates or clusters would train on, to values that differ by
rank and that nobody asked for. What is compared is text, by its hash: 8 bytes a subject travel, and
the text only where it differs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping
from numbers import Real

import numpy as np

from ...cluster.spec import Cluster
from ..backend import Backend, OptimizerFn, Tensor
from ..comm.groups import Group
from ..update.parameters import Parameters, one_number

_LONGEST = 1 << 16  # bytes of a text that travel where it differs
_NONE = -1  # no text's hash
_SHOWN = 60  # characters from where two texts part
_SAMPLED_BYTES = 1 << 20  # of a tensor: a larger one is seen by every so many elements


def check_alike(said: Mapping[str, str], backend: Backend) -> None:
    """ValueError on all ranks, with what differs where, unless all say the same of each subject.

    said: subject -> text, of one or several lines; the same subjects on every rank
    """
    if backend.size == 1:
        return
    hashes = _gather(np.array([_hash(text) for text in said.values()], np.int64), backend)
    found = [
        difference(subject, text, hashes[:, number], backend)
        for number, (subject, text) in enumerate(said.items())
        if (hashes[:, number] != hashes[0, number]).any()
    ]
    if found:
        raise ValueError(
            f"the ranks are not set up alike: {'; '.join(found)}. All ranks must run the same "
            "script with the same arguments and files"
        )


def say_unlike(subject: str, values: Mapping[str, Tensor], backend: Backend) -> None:
    """Say on rank 0, whose values are taken, which ranks have others."""
    if backend.size == 1:
        return
    sums = zlib.crc32(b"")
    for value in values.values():
        array = backend.to_numpy(backend.detached(value)).reshape(-1)
        array = array[:: 1 + array.nbytes // _SAMPLED_BYTES]
        sums = zlib.crc32(np.ascontiguousarray(array).tobytes(), sums)
    told = _gather(np.array([sums], np.int64), backend)[:, 0]
    others = np.flatnonzero(told != told[0])
    if len(others) and backend.rank == 0:
        logging.getLogger("autoddl").warning(
            "%s on rank %s are not those of rank 0, which are taken: seed all ranks alike, e.g. "
            "manual_seed(0) before the model is made",
            subject,
            ", ".join(map(str, others)),
        )


def lines_of(values: Mapping[str, object], head: str = "") -> str:
    """A line for each of `values`, each after `head`."""
    return "\n".join(f"{head}{name} {value}" for name, value in values.items())


def plain(options: Mapping[str, object]) -> dict[str, object]:
    """Those that are the same text on every rank, sorted; numbers as Python's."""
    kinds = (bool, int, float, str, tuple, list, type(None))
    found: dict[str, object] = {}
    for name, value in sorted(options.items()):
        if isinstance(value, kinds):
            found[name] = value
        elif isinstance(value, Real) or getattr(value, "ndim", None) == 0:
            found[name] = float(value)  # type: ignore[arg-type]
    return found


def unlike(subject: str, text: str, compared: bool, backend: Backend) -> str:
    """Which ranks say what of a subject, of those that are compared. All ranks call it."""
    hashes = _gather(np.array([_hash(text) if compared else _NONE], np.int64), backend)[:, 0]
    return difference(subject, text, hashes, backend)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _gather(mine: np.ndarray, backend: Backend) -> np.ndarray:
    """[n] on each rank -> [ranks, n]."""
    every = backend.channel(range(backend.size))
    said = backend.to_numpy(backend.all_gather(every, backend.from_numpy(mine)))
    return said.reshape(backend.size, -1)


def difference(subject: str, text: str, hashes: np.ndarray, backend: Backend) -> str:
    """Which ranks say what; of long texts the first line that is another. All ranks call it.

    hashes: of each rank's text; `_NONE` of one that is not compared
    """
    raw = np.frombuffer(text.encode()[:_LONGEST], np.uint8).astype(np.int32)
    size = int(_gather(np.array([len(raw)], np.int64), backend).max())
    rows = _gather(np.pad(raw, (0, size - len(raw))), backend).astype(np.uint8)
    first = {int(value): rank for rank, value in reversed(list(enumerate(hashes)))}
    first.pop(_NONE, None)
    texts = {value: _read(rows[rank]) for value, rank in first.items()}
    if len(texts) < 2:  # of numbers that differ less than their text tells
        return subject
    line, start = _parting(list(texts.values()))
    parts = [
        f"{_cut(texts[value].splitlines(), line, start)} on rank "
        f"{', '.join(map(str, np.flatnonzero(hashes == value)))}"
        for value in sorted(first, key=lambda value: first[value])
    ]
    return f"{subject}: {' but '.join(parts)}"


def _read(row: np.ndarray) -> str:
    return bytes(row).rstrip(b"\0").decode(errors="replace")


def _parting(texts: list[str]) -> tuple[int, int]:
    """The line, and the character in it, at which the first two texts part."""
    ours, theirs = (text.splitlines() for text in texts[:2])
    pairs = enumerate(zip(ours, theirs, strict=False))
    line = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    if line >= min(len(ours), len(theirs)):
        return line, 0
    ends = enumerate(zip(ours[line], theirs[line], strict=False))
    return line, next((n for n, (a, b) in ends if a != b), 0)


def _cut(lines: list[str], line: int, start: int) -> str:
    """A line of a text, or what is around character `start` of a long one."""
    if line >= len(lines):
        return "nothing more"
    text = lines[line]
    low = max(0, start - _SHOWN)
    return f"{'...' if low else ''}{text[low : start + _SHOWN]}".strip() or "nothing"


def check_world_size(cluster: Cluster, world: int) -> None:
    """ValueError unless the job has one process per device of the cluster."""
    if world != cluster.num_devices:
        raise ValueError(
            f"the cluster has {cluster.nodes} x {cluster.gpus_per_node} = {cluster.num_devices} "
            f"devices, but this job has {world} process{'' if world == 1 else 'es'}; start "
            f"{cluster.num_devices} processes (autoddl train, or torchrun or python -m "
            f"oneflow.distributed.launch --nproc_per_node {cluster.num_devices}), or plan for "
            f"cluster.with_shape(nodes=..., gpus_per_node=...) of {world} in all"
        )


def optimizer_kind(make: OptimizerFn, backend: Backend) -> str:
    """How much state the user's optimizer keeps, seen from the one that it makes for one number."""
    return backend.optimizer(make, Parameters([one_number(backend)])).kind


def share_text(make: Callable[[], str], backend: Backend) -> str:
    """`make()` of rank 0, the same text on every rank; its ValueError is raised on all ranks."""
    if backend.size == 1:
        return make()
    message = ""
    if backend.rank == 0:
        try:
            message = json.dumps({"text": make()})
        except ValueError as error:
            message = json.dumps({"error": str(error)})
    received = json.loads(broadcast_text(message, 0, backend))
    if "error" in received:
        raise ValueError(received["error"])
    return received["text"]


def share_error(error: str, world: Group) -> str:
    """The first rank's that has one, on every rank; "" if none has. Ranks call it together."""
    if world.size == 1:
        return error
    backend = world.backend
    own = backend.from_numpy(np.array([bool(error)], dtype=np.float64))
    failed = np.flatnonzero(backend.to_numpy(world.all_gather(own)))
    return broadcast_text(error, int(failed[0]), backend) if len(failed) else ""


def broadcast_text(message: str, source: int, backend: Backend) -> str:
    """Rank `source`'s message on every rank."""

    def share(array: np.ndarray) -> np.ndarray:
        return backend.to_numpy(backend.broadcast(backend.from_numpy(array), source))

    raw = np.frombuffer(message.encode(), dtype=np.uint8).astype(np.int32)
    (count,) = share(np.array([len(raw)], dtype=np.int64))
    content = share(raw if backend.rank == source else np.zeros(count, dtype=np.int32))
    return bytes(content.astype(np.uint8)).decode()
