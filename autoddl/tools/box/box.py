"""The box itself: up, used, down again whatever happens.

    with Box(4, 2, "200mbit") as box:
        box.run(["script.py"])
        box.links()

As a context manager it goes down at the end of the block, also after an exception, Ctrl-C, SIGTERM
or SIGHUP. What a killed process has left behind, the next box or `autoddl box down` removes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import IO, Any

from ...runtime.jobs.launch import Host, run_processes
from . import network
from .commands import check_possible
from .counters import LinkBytes, read_links
from .record import Owner, Record, all_records, find_record
from .spec import LINK, BoxSpec, parse_rate

DEFAULT_NAME = "box"
Rate = str | float | None  # as `parse_rate` takes it, or in bits per second
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_numbers = itertools.count()


class Box:
    """`nodes` hosts of `gpus_per_node` processes, with links of `rate` ("200mbit", or bit/s).

    rate: of all links, or one for each host; None leaves the links unshaped
    name: of the box on this machine; by default one that nobody else has

    Raises ValueError without root or iproute2, and if a box of this name is up.
    """

    def __init__(
        self,
        nodes: int,
        gpus_per_node: int = 1,
        rate: Rate | Sequence[str | float] = None,
        name: str | None = None,
    ) -> None:
        bits = _bits(rate)
        name = f"{os.getpid()}-{next(_numbers)}" if name is None else name
        self.spec = BoxSpec(nodes, gpus_per_node, bits, name)
        self._handlers: dict[int, Any] = {}

    # ---- up and down

    def up(self, *, keep: bool = False) -> None:
        """Make the box; `keep` leaves it up when this process ends."""
        check_possible()
        remove_stale()
        record = Record(self.spec, Owner.me())
        try:
            record.claim()
        except FileExistsError:
            there = find_record(self.spec.name)
            raise ValueError(
                f"a box is already up ({there.spec if there else self.spec.name}); "
                "'autoddl box down' takes it down"
            ) from None
        try:
            network.build(self.spec)
            if keep:
                dataclasses.replace(record, owner=None).save()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Take the box down, with all that runs in it. Nothing happens if it is down."""
        with _undisturbed():
            network.destroy(self.spec.namespaces)
            Record(self.spec, None).remove()

    def __enter__(self) -> Box:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {n: signal.signal(n, _leave) for n in _SIGNALS}
        try:
            self.up()
        except BaseException:
            self._restore_handlers()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.down()
        finally:
            self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    # ---- use

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Where the launcher puts the ranks."""
        spec = self.spec
        return tuple(
            Host(spec.address(i), ("ip", "netns", "exec", spec.host(i))) for i in range(spec.nodes)
        )

    def run(
        self,
        script_args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        output: IO[str] | None = None,
        prefix: bool = True,
        timeout: float | None = None,
        overlaps: bool = False,
    ) -> int:
        """Run `python script_args` as the box's ranks, as `launch.run_processes` does."""
        # gloo would look this machine's name up, which leads each host to itself
        own = {"GLOO_SOCKET_IFNAME": LINK, **(env or {})}
        return run_processes(
            script_args,
            self.spec.size,
            own,
            hosts=self.hosts,
            output=output,
            prefix=prefix,
            timeout=timeout,
            overlaps=overlaps,
        )

    def links(self) -> tuple[LinkBytes, ...]:
        """What has gone through each host's link since the box is up."""
        return read_links(self.spec)

    def set_rate(self, rate: Rate | Sequence[str | float]) -> None:
        """Shape the links anew; the box stays as it is otherwise."""
        self.spec = dataclasses.replace(self.spec, rate=_bits(rate))
        network.shape(self.spec)

    @staticmethod
    def find(name: str = DEFAULT_NAME) -> Box:
        """The box of this name that is up. ValueError if there is none."""
        record = find_record(name)
        if record is None or record.is_stale or not set(record.spec.namespaces) <= set(_present()):
            raise ValueError(
                "no box is up; start one with e.g. "
                "'autoddl box up 4 --gpus-per-node 2 --rate 200mbit'"
            )
        spec = record.spec
        return Box(spec.nodes, spec.gpus_per_node, spec.rate, spec.name)


def _bits(rate: Rate | Sequence[str | float]) -> float | tuple[float, ...] | None:
    if isinstance(rate, str):
        return parse_rate(rate)
    if isinstance(rate, Sequence):
        return tuple(parse_rate(r) if isinstance(r, str) else r for r in rate)
    return rate


def remove_stale() -> list[str]:
    """Take down what crashed processes have left; the names of these boxes."""
    removed = []
    for record in all_records():
        if record.is_stale:
            network.destroy(record.spec.namespaces)
            record.remove()
            removed.append(record.spec.name)
    return removed


def take_down(name: str = DEFAULT_NAME) -> list[str]:
    """Take down the box of this name and all stale ones; the names of what was up."""
    check_possible()
    with _undisturbed():
        removed = remove_stale()
        record = find_record(name)
        if record is not None:
            network.destroy(record.spec.namespaces)
            record.remove()
            removed.append(name)
        # a box has a record from before its first namespace until after its last
        known = {n for record in all_records() for n in record.spec.namespaces}
        network.destroy(set(network.existing()) - known)
    return removed


def _present() -> list[str]:
    check_possible()
    return network.existing()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off Ctrl-C and the like: a box that is half down would be worse."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
