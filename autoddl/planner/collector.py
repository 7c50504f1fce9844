"""Python's garbage collector, paused while many objects are made that stay.

It looks at all objects again each time that so many new ones were made, and so costs the more the
larger a traced model and its plan are, though reference counts free what planning leaves behind.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Without collections inside; as before after it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
