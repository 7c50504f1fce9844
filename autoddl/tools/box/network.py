"""Namespaces, links and routes of a box: made, shaped and taken away.

    host 0 [eth0] ---- [host0]          A veth pair a host, each a subnet of its own; the router
    host 1 [eth0] ---- [host1] router   forwards between them. No bridge, and nothing outside of
    host 2 [eth0] ---- [host2]          these namespaces.

A token bucket on the host's end of a pair limits what the host sends, one on the router's end what
it receives. Both have long queues, so that nothing is dropped and sent again; but a host fills its
queue with few bytes and no segments larger than a packet, as a driver of a real card does. Without
that, a request of a few bytes waits behind all that the host has written to others (4 MB of it by
default, a third of a second at 100 Mbit/s), and a ring's time is no longer that of its messages.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from .commands import batch, run
from .spec import LINK, PREFIX, BoxSpec

MTU_BYTES = 9000  # jumbo frames
# the bucket holds what may pass at once: little, or short messages after a pause would be free
BURST_BYTES = MTU_BYTES + 1000
BURST_SECONDS = 0.0005  # enough for a timer that comes late
QUEUE_BYTES = 64 * 2**20  # that may wait for a link before packets are dropped
END_SECONDS = 3.0  # that processes have to end after a signal, before a stronger one is sent

_HOST_SETTINGS = {
    # no pacing and no probing: the links' rate alone decides
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_limit_output_bytes": str(MTU_BYTES),
}
# links that come up later send nothing of their own
_QUIET = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}


def build(spec: BoxSpec) -> None:
    """Make the namespaces, links and routes of a box. On an error `destroy` removes what is there.

    Raises ValueError with the message of the command that failed.
    """
    run("ip", "netns", "add", spec.router)
    _set(spec.router, {"net.ipv4.ip_forward": "1", **_QUIET})
    for index in range(spec.nodes):
        host = spec.host(index)
        run("ip", "netns", "add", host)
        _set(host, {**_HOST_SETTINGS, **_QUIET})
        run(
            *("ip", "link", "add", "name", LINK, "mtu", str(MTU_BYTES), "netns", host),
            *("type", "veth"),
            *("peer", "name", _port(index), "mtu", str(MTU_BYTES), "netns", spec.router),
        )
        batch(
            "ip",
            spec.router,
            f"address add {spec.gateway(index)}/30 dev {_port(index)}",
            f"link set {_port(index)} up",
        )
        batch(
            "ip",
            host,
            "link set lo up",
            f"address add {spec.address(index)}/30 dev {LINK}",
            f"link set {LINK} gso_max_segs 1",
            f"link set {LINK} up",
            f"route add default via {spec.gateway(index)}",
        )
    if spec.rate is not None:
        shape(spec)


def shape(spec: BoxSpec) -> None:
    """Limit every host's link to its rate each way; None lifts the limit."""
    ends = [(spec.host(i), LINK, rate) for i, rate in enumerate(spec.rates)]
    ends += [(spec.router, _port(i), rate) for i, rate in enumerate(spec.rates)]
    for namespace, device, rate in ends:
        if rate is None:
            run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)
            continue
        burst = max(BURST_BYTES, int(rate / 8 * BURST_SECONDS))
        batch(
            "tc",
            namespace,
            f"qdisc replace dev {device} root tbf rate {rate:.0f}bit burst {burst}b "
            f"limit {QUEUE_BYTES}b",
        )


def destroy(namespaces: Iterable[str]) -> None:
    """End what runs in the namespaces and remove them, with their links. Missing ones are fine."""
    present = [n for n in existing() if n in set(namespaces)]
    _end_processes(present)
    for namespace in present:
        run("ip", "netns", "del", namespace, check=False)
    left = [n for n in existing() if n in present]
    if left:
        raise ValueError(f"cannot remove the network namespaces {', '.join(left)}; try as root")


def existing() -> list[str]:
    """The namespaces of all boxes on this machine."""
    lines = run("ip", "netns", "list").splitlines()
    return [line.split()[0] for line in lines if line.startswith(PREFIX)]


def processes(namespace: str) -> list[int]:
    """The ids of the processes in a namespace, this one never among them."""
    pids = map(int, run("ip", "netns", "pids", namespace, check=False).split())
    return [pid for pid in pids if pid != os.getpid()]


def _end_processes(namespaces: Iterable[str]) -> None:
    """First politely, then for certain."""
    namespaces = list(namespaces)
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + END_SECONDS
        while running := [pid for n in namespaces for pid in processes(n)]:
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > end:
                break
            time.sleep(0.1)


def _port(index: int) -> str:
    """The router's end of a host's link."""
    return f"host{index}"


def _set(namespace: str, settings: dict[str, str]) -> None:
    """Kernel settings of a namespace; those that this kernel lacks or guards are left alone."""
    for name, value in settings.items():
        path = f"/proc/sys/{name.replace('.', '/')}"
        run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > {path}", check=False)
