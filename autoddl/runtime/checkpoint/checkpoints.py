"""Saving and loading the state of a run, by all ranks together."""

from __future__ import annotations

import atexit
import json
import logging
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import check_path, expect
from ...plans import Plan
from ..comm.groups import Group
from ..jobs.agreement import share_error, share_text
from ..jobs.guard import leave, patient
from .folder import Manifest, begin, checkpoints, commit, load_manifest, missing_ranks, save_written
from .pieces import Reader, write_parts
from .shards import Shards

_SLOWEST = 1e7  # bytes a second: a disk that is slower counts as one that hangs
NoneType = type(None)
_LOOK_S = 0.02  # between two looks at whether all have written: one takes microseconds


@dataclass(frozen=True)
class _Writing:
    """A checkpoint on its way to the disk: this rank's shard, and on rank 0 the whole.

    abandoned: some rank cannot write its shard
    bytes:     of the shard
    """

    shard: Future[None]
    whole: Future[None] | None
    abandoned: threading.Event
    bytes: int

    def error(self, wait: bool = False) -> str:
        """Why a part that has ended has failed; "" if none has."""
        for future in (self.shard, self.whole):
            if future is not None and (wait or future.done()) and (bad := _error(future)):
                return bad
        return ""

    def at_exit(self) -> None:
        """End the job if it was not written."""
        if error := self.error(wait=True):
            leave(error)


def _error(future: Future[None]) -> str:
    """Waits for it."""
    bad = future.exception()
    if bad is not None and not isinstance(bad, OSError | ValueError):
        raise bad
    return f"the checkpoint could not be written: {bad}" if bad is not None else ""


class Checkpoints:
    """Of a trainer with this plan; `world`: all ranks of the job."""

    def __init__(self, plan: Plan, shards: Shards, world: Group) -> None:
        self._plan = plan
        self._shards = shards
        self._world = world
        self._backend = world.backend
        self._writing: _Writing | None = None

    def save(
        self, folder: str | Path, extra: Mapping[str, Any] | None, keep: int | None, wait: bool
    ) -> None:
        """See `Trainer.save`."""
        check_path(folder)
        expect(extra, (Mapping, NoneType), "extra is a dict, or None")
        expect(keep, (int, NoneType), "keep is a number of checkpoints, or None")
        expect(wait, bool, "wait is True or False")
        if keep is not None and keep < 1:
            raise ValueError(f"keep is the number of checkpoints that stay, at least 1, got {keep}")
        self._settle()
        facts = {**self._shards.facts(), "extra": dict(extra or {})}
        partial = Path(share_text(lambda: self._begin(folder, facts), self._backend))
        parts = list(self._shards.own())
        options, rank, ranks = self._shards.options(), self._backend.rank, self._world.size
        abandoned, size = threading.Event(), sum(part.array.nbytes for part in parts)

        def write() -> None:
            pieces = write_parts(partial, rank, parts)
            save_written(partial, rank, parts, pieces, options)

        def finish() -> None:
            if shard.exception() is not None:  # it ran before, in the same thread
                return
            while missing_ranks(partial, ranks):
                if abandoned.wait(_LOOK_S):
                    return
            commit(partial, ranks, facts, keep)

        pool = ThreadPoolExecutor(1, "autoddl checkpoint")  # Python waits for it at its end
        shard = pool.submit(write)
        whole = pool.submit(finish) if rank == 0 else None
        pool.shutdown(wait=False)
        self._writing = _Writing(shard, whole, abandoned, size)
        if wait:
            self._settle()
        else:
            atexit.register(self._writing.at_exit)

    def _begin(self, folder: str | Path, facts: Mapping[str, Any]) -> str:
        """On rank 0: the folder to write into."""
        try:
            json.dumps(facts["extra"], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra holds what JSON has no words for: {error}") from error
        token = secrets.token_hex(4)  # else what a killed job has left would count as written
        try:
            return str(begin(folder, facts["steps"], token, self._plan.dumps()))
        except OSError as error:
            raise ValueError(f"{folder}: cannot be written: {error.strerror}") from error

    def check(self) -> None:
        """ValueError if what is written beside training has failed on this rank."""
        writing = self._writing
        if writing is not None and (error := writing.error()):
            self._writing = None
            writing.abandoned.set()
            atexit.unregister(writing.at_exit)
            raise ValueError(error)

    def _settle(self) -> None:
        """Until what is being written is there. ValueError on every rank if that fails on one."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        atexit.unregister(writing.at_exit)
        with patient(writing.bytes / _SLOWEST):
            for future in (writing.shard, writing.whole):
                own = _error(future) if future is not None else ""
                if error := share_error(own, self._world):
                    writing.abandoned.set()
                    raise ValueError(error)

    def load(self, folder: str | Path, missing_ok: bool) -> dict[str, Any] | None:
        """See `Trainer.load`."""
        check_path(folder)
        self._settle()
        text = share_text(lambda: json.dumps([str(p) for p in checkpoints(folder)]), self._backend)
        places = [Path(place) for place in json.loads(text)]
        if not places:
            if missing_ok:
                return None
            raise ValueError(
                f"{folder}: no checkpoint there, which is a folder step-N that trainer.save writes"
            )
        broken: list[str] = []
        for place in places:
            dropped = False
            with patient(_bytes(place) / _SLOWEST):
                found, error = self._verified(place)
                if found is not None:
                    self._shards.check(found[0])
                    dropped = self._shards.take(*found)
            if found is not None:
                if self._backend.rank == 0:
                    _say(broken, place, dropped)
                return dict(found[0].extra)
            broken.append(error)
        raise ValueError("; ".join(broken))

    def _verified(self, place: Path) -> tuple[tuple[Manifest, Reader] | None, str]:
        """A checkpoint of which the ranks together have read every byte, or what is wrong."""
        made, error = None, ""
        try:
            found = load_manifest(place)
            dtypes = {key: tensor.dtype for key, tensor in found.tensors.items()}
            made = found, Reader(place, found.pieces, dtypes)
            made[1].verify(self._backend.rank, self._world.size)
        except ValueError as bad:
            error = str(bad)
        error = share_error(error, self._world)
        return None if error else made, error


def _bytes(place: Path) -> int:
    """Of a checkpoint's files, as far as they are there."""
    return sum(path.stat().st_size for path in place.glob("*") if path.is_file())


def _say(broken: list[str], place: Path, dropped: bool) -> None:
    log = logging.getLogger("autoddl")
    if broken:
        log.warning("%s; training goes on from %s", "; ".join(broken), place)
    if dropped:
        log.warning("%s has averaged parameters; without ema_decay they are left out", place)
