"""Reads the memory of one device from a compiled plan that OneFlow wrote as text.

A plan lists blocks of memory. Blocks of a variable (a parameter or optimizer state) are live all
the time. Blocks in a chunk hold registers, the outputs and temporaries of tasks; each is live from
its producer (`alloc_before_actor`) to its last consumer (`free_after_actor`) in the order of its
chain, at an offset that OneFlow chose; the size of the chunk is their peak. All other blocks are
separate buffers: inputs, and outputs of tasks outside the chains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# a message's fields: name -> values in order, texts or messages
Message = dict[str, list[Any]]
_NO_RANK = -1


@dataclass(frozen=True)
class Register:
    """A tensor in a reused block: the task that produces it, its offset, and its lifetime."""

    task: str
    name: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass
class DeviceMemory:
    """Bytes on one device: `variables` and `buffers` by name, `registers` of each reused block."""

    variables: dict[str, int] = field(default_factory=dict)
    chunks: list[int] = field(default_factory=list)
    buffers: dict[str, int] = field(default_factory=dict)
    registers: dict[int, list[Register]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.variables.values()) + sum(self.chunks) + sum(self.buffers.values())


def read_fullest(path: Path) -> DeviceMemory:
    """The memory of the device that needs most, from the plan in the file `path`."""
    with open(path) as lines:
        (memory,) = (m for name, m in _top_level(lines, _NO_RANK) if name == "block_chunk_list")
    sizes: dict[int, int] = defaultdict(int)
    for key in ("mem_block", "chunk"):
        for block in memory.get(key, ()):
            in_chunk = key == "mem_block" and "chunk_id" in block
            if _kind(block) == "kCUDA" and not in_chunk:
                sizes[int(block["machine_id"][0])] += int(block["mem_size"][0])
    fullest = max(sorted(sizes), key=lambda rank: sizes[rank], default=0)
    with open(path) as lines:
        return read_plan(lines, fullest)


def read_plan(lines: Iterable[str], rank: int) -> DeviceMemory:
    """The memory of `rank`'s CUDA device, from the text of a plan."""
    found = DeviceMemory()
    tasks: list[Message] = []
    blocks: list[Message] = []
    for name, message in _top_level(lines, rank):
        if name == "task":
            tasks.append(message)
        elif name == "block_chunk_list":
            blocks = [b for b in message.get("mem_block", ()) if _is_here(b, rank)]
            chunks = [c for c in message.get("chunk", ()) if _is_here(c, rank)]
            found.chunks = [int(c["mem_size"][0]) for c in chunks]
    owner = {
        int(regst["mem_block_id"][0]): (_task_name(task), name)
        for task in tasks
        for name, regst in _registers(task)
        if "mem_block_id" in regst
    }
    sizes = {int(b["mem_block_id"][0]): int(b["mem_size"][0]) for b in blocks}
    for block in blocks:
        number = int(block["mem_block_id"][0])
        if not sizes[number]:
            continue
        if "variable_op_name" in block:
            found.variables[_text(block["variable_op_name"][0])] = sizes[number]
        elif "chunk_id" in block:
            found.registers[number] = []
        else:
            task, name = owner.get(number, ("", ""))
            found.buffers[f"{task}/{name}#{number}"] = sizes[number]
    for task in tasks:
        for name, regst in _registers(task):
            number = int(regst.get("mem_block_id", ["-1"])[0])
            # without a lifetime of its own it shares the place of the register that it overwrites
            if number in found.registers and int(regst.get("alloc_before_actor", ["-1"])[0]) >= 0:
                found.registers[number].append(_register(task, name, regst))
    return found


def _is_here(message: Message, rank: int) -> bool:
    """True if a block or chunk is on the CUDA device of `rank`."""
    return int(message["machine_id"][0]) == rank and _kind(message) == "kCUDA"


def _kind(message: Message) -> str:
    return message["mem_case"][0]["device_type"][0]


def _registers(task: Message) -> Iterator[tuple[str, Message]]:
    for entry in task.get("produced_regst_desc", ()):
        yield _text(entry["key"][0]), entry["value"][0]


def _task_name(task: Message) -> str:
    for node in task.get("exec_sequence", [{}])[0].get("exec_node", ()):
        kernel = node["kernel_conf"][0]
        if "op_attribute_ref" in kernel:
            return _text(kernel["op_attribute_ref"][0])
        if "op_attribute" in kernel:
            return _text(kernel["op_attribute"][0]["op_conf"][0]["name"][0])
    return ""


def _register(task: Message, name: str, regst: Message) -> Register:
    count = 0
    kind = regst["regst_desc_type"][0].get("data_regst_desc", [{}])[0]
    for entry in kind.get("lbi2blob_desc", ()):
        blob = entry["blob_desc"][0]
        items = 1
        for dim in blob.get("shape", [{}])[0].get("dim", ()):
            items *= int(dim)
        count += items * _ITEM_BYTES.get(blob["data_type"][0], 4)
    return Register(
        _task_name(task),
        name,
        int(regst["mem_block_offset"][0]),
        count,
        int(regst["alloc_before_actor"][0]),
        int(regst["free_after_actor"][0]),
    )


_ITEM_BYTES = {
    "kChar": 1, "kFloat": 4, "kDouble": 8, "kInt8": 1, "kInt32": 4, "kInt64": 8, "kUInt8": 1,
    "kFloat16": 2, "kBFloat16": 2, "kBool": 1,
}  # fmt: skip


def _text(value: str) -> str:
    return value.strip('"')


def _top_level(lines: Iterable[str], rank: int) -> Iterator[tuple[str, Message]]:
    """The outermost messages of protobuf's text format; tasks of other ranks are skipped."""
    stack: list[Message] = []
    name = ""
    skip = False
    for line in lines:
        if skip:
            skip = not line.startswith("}")
            if not skip:
                stack.clear()
            continue
        word = line.strip()
        if word.endswith("{"):
            key = word[:-1].rstrip()
            message: Message = {}
            if stack:
                stack[-1].setdefault(key, []).append(message)
            else:
                name = key
            stack.append(message)
        elif word == "}":
            message = stack.pop()
            if not stack:
                yield name, message
        elif stack and word:
            key, _, value = word.partition(":")
            value = value.strip()
            stack[-1].setdefault(key, []).append(value)
            skip = name == "task" and len(stack) == 1 and key == "machine_id" and value != str(rank)
