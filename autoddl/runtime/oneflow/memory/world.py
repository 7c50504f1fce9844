"""Lets a single process act as rank 0 of a job of many ranks.

OneFlow counts the ranks in a message that it fills when it starts (`ProcessCtx`, one address per
rank). With more addresses in it, placements on all ranks are valid, and jobs on them are built and
compiled as in a real job. Nothing may be communicated.
"""

from __future__ import annotations

import ctypes
from typing import Any

import oneflow as flow
import oneflow._oneflow_internal as internal
from oneflow.core.control import ctrl_bootstrap_pb2

_CONTEXT = "_ZZN7oneflow9SingletonINS_10ProcessCtxEvE7GetPPtrEvE3ptr"
_PARSE = "_ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi"


def pretend_world(size: int) -> None:
    """Make this process rank 0 of `size` ranks on one host; the others do not exist."""
    context: Any = ctrl_bootstrap_pb2.ProcessCtx()
    context.rank, context.node_size = 0, 1
    for _ in range(size):
        context.ctrl_addr.add(host="localhost", port=1)
    data = context.SerializeToString()
    library = ctypes.CDLL(internal.__file__)
    parse = getattr(library, _PARSE)
    parse.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    parse.restype = ctypes.c_bool
    assert parse(ctypes.c_void_p.in_dll(library, _CONTEXT), data, len(data))
    assert flow.env.get_world_size() == size
