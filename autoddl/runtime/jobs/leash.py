"""Ends a rank when the process that started it ends, however that happens.

    python leash.py PARENT COMMAND ...

becomes COMMAND, tied to its parent, which must be process PARENT. A launcher that is killed cannot
end its ranks; the kernel can (prctl(2), PR_SET_PDEATHSIG), also across an exec. Needs the standard
library only, and no `site`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to_parent() -> None:
    """From now on this process is killed when its parent ends. Has an effect on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def leashed(command: list[str]) -> list[str]:
    """`command`, to be started by this process and to end with it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, *command = sys.argv[1:]
    tie_to_parent()
    if os.getppid() != int(parent):  # it has ended already
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
