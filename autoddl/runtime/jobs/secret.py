"""How the processes of a job know each other on sockets that strangers may reach, too.

The launcher puts a secret into the ranks' environment. Each end of a connection sends a number that
nobody could foresee, and the other proves that it knows the secret: HMAC of that number and of what
it is, so that no end's proof serves for the other. Needs the standard library only.
"""

from __future__ import annotations

import hmac
import os
import socket

SECRET = "AUTODDL_SECRET"
STRANGERS = 64  # connections that have not proved anything; more of them, and the oldest is closed
LONGEST = 1 << 16  # bytes of a line
_PORTS = 8  # that are tried if the launcher names none, or another has taken its choice
_PORT_OF_JOB = "AUTODDL_WATCH_PORT"


def nonce() -> str:
    """What the other end is asked to prove."""
    return os.urandom(16).hex()


def proof(asked: object, who: str) -> str:
    """That this process knows the secret, and is `who`."""
    return hmac.new(_key().encode(), f"{asked} {who}".encode(), "sha256").hexdigest()


def proves(given: object, asked: object, who: str) -> bool:
    """Whether the other end has given `proof(asked, who)`."""
    return hmac.compare_digest(str(given).encode(), proof(asked, who).encode())


def _key() -> str:
    """Without a secret, what at least tells jobs apart."""
    names = "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"
    return os.environ.get(SECRET) or " ".join(os.environ.get(name, "") for name in names)


def listener(port: int) -> socket.socket:
    """On the job's address, and on no other, if it is this host's. OSError if the port is taken."""
    last = OSError("no address of this host")
    for name in (os.environ.get("MASTER_ADDR", "127.0.0.1"), socket.gethostname()):
        try:
            for family, *_, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
                return socket.create_server(address, family=family, backlog=128)
        except OSError as error:
            last = error
    raise last


def watch_ports() -> list[int]:
    """Where a job's watch listens: the launcher's choice, and ports far from the framework's."""
    chosen = [int(os.environ[_PORT_OF_JOB])] if _PORT_OF_JOB in os.environ else []
    first = int(os.environ.get("MASTER_PORT", "29500"))
    return chosen + [10000 + (first + 1000 * n) % 20000 for n in range(1, _PORTS + 1)]
