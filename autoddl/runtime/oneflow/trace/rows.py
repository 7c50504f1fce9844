"""Finds the opaque calls that treat each row of the batch independently, as far as rules can tell.

Many submodules are opaque only because they draw random numbers (stochastic depth) or stop a
gradient; all their other operators have a rule. If every operator has a signature that maps
batch-dependent tensors split by rows, and all others whole, to results of the same kind, then so
does the call, and devices that hold some of the rows can run it unchanged. Random numbers must be
drawn per row, or devices would disagree on them, and only sizes may depend on the batch: for any
other number, a device would use its local one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ....sbp.placement import B, Placement, S
from ....sbp.signature import OpSpec, find_rule, signatures_of
from .batch import Scaling
from .canonical import canonical_attrs, is_no_op, kept_outputs
from .job.raw import RawJob, RawOp

_DRAWS = frozenset({"uniform", "normal", "uniform_int", "exponential", "bernoulli", "dropout"})
_SIZES = frozenset({"shape", "expand_shape", "out_shape", "size", "length", "stop"})


def keeps_rows_apart(
    call: RawOp,
    ops: Sequence[RawOp],
    job: RawJob,
    scaling: Scaling,
    known: Callable[[str], bool],
    rewritten: Collection[str],
) -> bool:
    """True if the opaque `call`, which stands for `ops` of `job`, may be split along the batch.

    known:     whether an operator kind can be planned and run
    rewritten: tensors that become the new values of parameters or buffers
    """
    if not scaling.holds or any(name in rewritten for op in ops for name in op.makes):
        return False
    arguments = call.reads[: call.attrs["num_args"]]
    rows = {job.specs[name].shape[:1] for name in call.makes}
    if len(rows) != 1 or not all(_is_split(name, scaling) for name in call.makes):
        return False
    if any(_is_split(name, scaling) != (job.specs[name].shape[:1] in rows) for name in arguments):
        return False  # the operator's rule tells them by their size
    read = {name for op in ops for name in op.reads}
    return all(_by_rows(op, job, scaling, known, read) for op in ops)


def _is_split(name: str, scaling: Scaling) -> bool:
    return scaling.dims.get(name) == (0,)


def _by_rows(
    op: RawOp,
    job: RawJob,
    scaling: Scaling,
    known: Callable[[str], bool],
    read: Collection[str],
) -> bool:
    tensors = (*op.reads, *op.makes)
    if any(scaling.dims.get(name, ()) not in ((), (0,)) for name in tensors):
        return False
    if scaling.attrs.get(op.name, {}).keys() - _SIZES:
        return False
    if op.kind in _DRAWS:
        return _is_split(op.makes[0], scaling) and all(_is_split(n, scaling) for n in op.reads)
    outputs = kept_outputs(op)
    specs = [tuple(job.specs[name] for name in names) for names in (op.reads, outputs)]
    ins, outs = (_places(names, scaling) for names in (op.reads, outputs))
    if op.reads and ins[0] == outs[0] and is_no_op(op, specs[0][0], specs[1][0]):
        return True
    if not known(op.kind) or find_rule(op.kind) is None:
        return False
    if any(name in read for name in op.makes if name not in outputs):
        return False
    if not any(_is_split(name, scaling) for name in tensors):
        return True
    spec = OpSpec(op.kind, canonical_attrs(op, {})[0], *specs)
    return any(
        s.ins == ins and s.outs == outs and not s.inner and not s.limit for s in signatures_of(spec)
    )


def _places(names: Sequence[str], scaling: Scaling) -> tuple[Placement, ...]:
    return tuple(S(0) if _is_split(name, scaling) else B for name in names)
