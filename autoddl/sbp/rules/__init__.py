"""The built-in operator rules, one file per family. Importing this package fills `RULES`."""

from __future__ import annotations

from ..signature import RULES, OpSpec, Rule, Signature
from . import conv as conv
from . import elementwise as elementwise
from . import gather as gather
from . import loss as loss
from . import matmul as matmul
from . import normalize as normalize
from . import pooling as pooling
from . import reduce as reduce
from . import shape as shape
from . import softmax as softmax
from . import source as source


def find_rule(kind: str) -> Rule | None:
    """The rule of an operator kind, None if it has none."""
    return RULES.get(kind)


def is_matmul(kind: str) -> bool:
    """True for a product of two matrices, or of many at once."""
    rule = RULES.get(kind)
    return rule is not None and rule.product == "matmul"


def signatures_of(op: OpSpec) -> tuple[Signature, ...]:
    """The operator's one-axis signatures, best known first, without splits of dims of size 1.

    Raises ValueError if the kind has no rule.
    """
    rule = find_rule(op.kind)
    if rule is None:
        raise ValueError(
            f"operator kind {op.kind!r} has no rule; write one with @autoddl.sbp.signature.rule, "
            "or let its submodule run as one opaque operator"
        )
    return tuple(dict.fromkeys(s for s in rule.signatures(op) if _splittable(op, s)))


def _splittable(op: OpSpec, signature: Signature) -> bool:
    pairs = zip((*op.inputs, *op.outputs), (*signature.ins, *signature.outs), strict=True)
    return all(tensor.shape[p.dim] > 1 for tensor, p in pairs if p.is_split)
