"""Another value in an attribute's place, for a while."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

_ANSWERS = {"isfinite": True, "isinf": False, "isnan": False}  # of numbers that are finite


@contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has this value."""
    own, known = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, known) if own else delattr(owner, name)


@contextmanager
def made_instead(
    owners: Sequence[Any], makers: Mapping[str, Callable[[Any], Any]]
) -> Iterator[None]:
    """Inside, functions of these names, in whichever owner, are those that are made of them."""
    with ExitStack() as stack:
        for name, make in makers.items():
            for owner in (one for one in owners if hasattr(one, name)):
                stack.enter_context(instead(owner, name, make(getattr(owner, name))))
        yield


@contextmanager
def as_finite(framework: Any) -> Iterator[None]:
    """Inside, `if not isfinite(x).all()` and its like decide as for finite numbers.

    Layers so keep a training from infinity, as DETR's; a step with other numbers has a loss that
    is none. What is computed of such questions, as a mask, stays as it is.
    """
    kind = framework.Tensor

    def asking(own: Callable[..., Any], answer: bool) -> Callable[..., Any]:
        def ask(*given: Any, **options: Any) -> Any:
            found = own(*given, **options)
            found._if_finite = answer
            return found

        return ask

    def reducing(own: Callable[..., Any], answer: bool) -> Callable[..., Any]:
        def reduce(x: Any, *dims: Any, **options: Any) -> Any:
            found = own(x, *dims, **options)
            if getattr(x, "_if_finite", None) is answer and not dims and not options:
                found._if_finite = answer
            return found

        return reduce

    def deciding(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def decide(x: Any) -> Any:
            answer = None if x.ndim else getattr(x, "_if_finite", None)
            return own(x) if answer is None else answer

        return decide

    with ExitStack() as stack:
        for owner in (framework, kind):
            for name, answer in _ANSWERS.items():
                ask = asking(getattr(owner, name), answer)
                stack.enter_context(instead(owner, name, ask))
            for name, answer in (("all", True), ("any", False)):
                stack.enter_context(instead(owner, name, reducing(getattr(owner, name), answer)))
        for name in ("__bool__", "item"):
            stack.enter_context(instead(kind, name, deciding(getattr(kind, name))))
        yield
