"""Reads a job: its operators in order, with plain attributes and the tensors' specs.

Names are still the job's own, so that two jobs of one model can be compared operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import oneflow.core.common.data_type_pb2 as data_type_pb
import oneflow.core.job.job_pb2 as job_pb

from .....sbp.layout import ITEM_BYTES, TensorSpec

_DTYPES = {
    "kFloat": "float32", "kDouble": "float64", "kFloat16": "float16", "kBFloat16": "bfloat16",
    "kInt8": "int8", "kInt32": "int32", "kInt64": "int64", "kUInt8": "uint8", "kBool": "bool",
}  # fmt: skip
RANDOM = ("seed",)  # attributes that are drawn anew by each trace


@dataclass(frozen=True)
class RawOp:
    """An operator of a job.

    call:            index of the submodule call that issued it, -1 for sources
    role:            what its name scope says: "c" computes, "n" computes without gradients, "b"
                     marks the boundary of an opaque call
    inputs, outputs: argument name (`x`, `weight`, ...) -> tensor names of the job
    """

    name: str
    kind: str
    call: int
    role: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """All input tensors in order."""
        return tuple(name for names in self.inputs.values() for name in names)

    @cached_property
    def makes(self) -> tuple[str, ...]:
        """All output tensors in order."""
        return tuple(name for names in self.outputs.values() for name in names)

    def renamed(self, names: Mapping[str, str]) -> RawOp:
        """The operator that reads other tensors: old name -> new."""
        if names.keys().isdisjoint(self.reads):
            return self
        inputs = {key: tuple(names.get(n, n) for n in value) for key, value in self.inputs.items()}
        return replace(self, inputs=inputs)


@dataclass(frozen=True)
class RawJob:
    """Operators in order, sources (inputs and variables) included, and the specs of all tensors."""

    ops: tuple[RawOp, ...]
    specs: Mapping[str, TensorSpec]

    def renamed(self, names: Mapping[str, str]) -> RawJob:
        """The job with other names for results of sources: old name -> new."""
        if not names:
            return self
        ops = [
            replace(op, outputs={"out": (names[op.makes[0]],)})
            if not names.keys().isdisjoint(op.makes)
            else op.renamed(names)
            for op in self.ops
        ]
        return RawJob(tuple(ops), {names.get(name, name): x for name, x in self.specs.items()})


def role_of(ops: Iterable[RawOp]) -> str:
    """Of one operator in the place of a call's."""
    return "n" if {op.role for op in ops} - {"b"} == {"n"} else "c"


def dtype_name(code: int) -> str:
    """The name of OneFlow's dtype `code`. ValueError for one that autoddl does not know."""
    name = data_type_pb.DataType.Name(code)
    if name not in _DTYPES:
        known = ", ".join(ITEM_BYTES)
        raise ValueError(f"the model uses tensors of dtype {name}; autoddl knows {known}")
    return _DTYPES[name]


def read_job(job: job_pb.Job) -> RawJob:
    """The operators and specs of `job`."""
    ops = []
    for op in job.net.op:
        kind = op.WhichOneof("op_type")
        if kind == "user_conf":
            ops.append(_read_user_op(op))
        else:
            assert kind in ("input_conf", "variable_conf"), f"{op.name} is of the type {kind}"
            ops.append(RawOp(op.name, kind, -1, "c", {}, {"out": (f"{op.name}/out",)}))
    blobs = job.helper.lbn2logical_blob_desc
    specs = {}
    for op in ops:
        for name in op.makes:
            blob = blobs[name]
            specs[name] = TensorSpec(tuple(blob.shape.dim), dtype_name(blob.data_type))
    return RawJob(tuple(ops), specs)


def _read_user_op(op: Any) -> RawOp:
    conf = op.user_conf
    scope = op.name.split("-", 1)[0]
    return RawOp(
        op.name,
        conf.op_type_name,
        int(scope[1:]),
        scope[0],
        {key: tuple(conf.input[key].s) for key in conf.input_order},
        {key: tuple(conf.output[key].s) for key in conf.output_order},
        {key: _value(conf.attr[key]) for key in sorted(conf.attr)},
    )


def _value(attr: Any) -> Any:
    """An attribute as a bool, int, float, str or tuple."""
    kind = attr.WhichOneof("value")
    value = getattr(attr, kind)
    if kind in ("at_shape", "at_stride"):
        return tuple(value.dim)
    if kind == "at_float":
        return shortest_float32(value)
    if kind == "at_data_type":
        return dtype_name(value)
    if kind == "at_list_data_type":
        return tuple(map(dtype_name, value.val))
    if kind == "at_list_float":
        return tuple(map(shortest_float32, value.val))
    if kind in ("at_list_shape", "at_list_stride"):
        return str([tuple(item.dim) for item in value.val])
    if kind.startswith("at_list"):
        return tuple(value.val)
    return value


def shortest_float32(value: float) -> float:
    """The shortest decimal that is the same float32: 0.1 for 0.10000000149."""
    return float(str(np.float32(value)))
