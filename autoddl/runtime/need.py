"""The one question that everything above the back end may ask of it: can OneFlow be used here?"""

from __future__ import annotations


class BackendMissing(ImportError):
    """OneFlow is needed for this call and cannot be imported."""


def need_oneflow(call: str) -> None:
    """Raise BackendMissing, naming the call, if OneFlow cannot be imported."""
    try:
        import oneflow  # noqa: F401
    except ImportError as error:
        raise BackendMissing(
            f"{call} needs OneFlow, which cannot be imported here ({error}). Planning saved graphs "
            "works without it; 'autoddl doctor' says how to install it"
        ) from error
