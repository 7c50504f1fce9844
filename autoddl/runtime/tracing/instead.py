"""Another value in an attribute's place, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has this value."""
    own, known = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known) if own else delattr(owner, name)
