"""Joins the trace of a model in training with the one in evaluation where they differ.

A draw of numbers is often for training only (stochastic depth, noise, a sampled code), and no rule
can tell what takes its place in evaluation; the model's own code can. Operators that both traces
have stand once in the joined job. Where one reads another tensor in evaluation than in training,
it reads the result of an operator `by_mode` of the two. So the joined job computes in each mode
what the model does, however well the traces were aligned; that only decides its length.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from ....sbp.layout import TensorSpec
from .canonical import is_no_op, kept_outputs
from .job.raw import RawJob, RawOp
from .unknown import SOURCES

_OF_MODE = frozenset({"training", "seed"})  # attributes that differ, as kernels know
_PREFIX = "evaluation/"


@dataclass(frozen=True)
class Side:
    """One of the traces: its job, the path of each call, and the job's results, the loss last."""

    job: RawJob
    paths: Sequence[str]
    roots: Sequence[str]

    @property
    def computing(self) -> list[RawOp]:
        return [op for op in self.job.ops if op.kind not in SOURCES]

    def key(self, op: RawOp) -> Hashable:
        """Equal for operators that may be one: what they do, and where they come from."""
        attrs = tuple((k, v) for k, v in op.attrs.items() if k not in _OF_MODE)
        made = tuple(self.job.specs[name] for name in kept_outputs(op))
        return self.paths[op.call], op.kind, attrs, made, len(op.reads)


@dataclass
class Joined:
    """The joined job, with the training's names where it has any.

    roots: of the job
    names: tensors of the evaluation's job -> those of the joined one
    alone: operators that the evaluation's job alone has -> their names in the joined one
    like:  results of `by_mode` -> what they are in training
    """

    specs: dict[str, TensorSpec]
    names: dict[str, str]
    ops: list[RawOp] = field(default_factory=list)
    roots: tuple[str, ...] = ()
    alone: dict[str, str] = field(default_factory=dict)
    like: dict[str, str] = field(default_factory=dict)
    _chosen: dict[tuple[str, str], str] = field(default_factory=dict)
    _passed: dict[str, str] = field(default_factory=dict)  # tensor -> its equal in evaluation
    _calls: dict[str, int] = field(default_factory=dict)

    @property
    def job(self) -> RawJob:
        return RawJob(tuple(self.ops), self.specs)

    def add(self, op: RawOp) -> None:
        """An operator that training alone has."""
        self._append(op)
        same = op.kind == "dropout" or bool(op.reads and op.makes) and self._is_no_op(op)
        if same:
            self._passed[op.makes[0]] = op.reads[0]

    def add_alone(self, op: RawOp, specs: Mapping[str, TensorSpec], call: int) -> None:
        """An operator that evaluation alone has, in a call of the training's."""
        op = op.renamed(self.names)
        self.specs |= {_PREFIX + name: specs[name] for name in op.makes}
        outputs = {k: tuple(_PREFIX + n for n in names) for k, names in op.outputs.items()}
        new = replace(op, name=_PREFIX + op.name, call=call, outputs=outputs)
        if new.reads and new.makes and self._is_no_op(new):
            self.names[op.makes[0]] = new.reads[0]
            return
        self.names.update(zip(op.makes, new.makes, strict=True))
        self.alone[op.name] = new.name
        self._append(new)

    def add_both(self, op: RawOp, evaluation: RawOp) -> None:
        """An operator of both, the same but for what it reads."""
        reads = iter([self.by_mode(*pair) for pair in zip(op.reads, evaluation.reads, strict=True)])
        inputs = {key: tuple(next(reads) for _ in names) for key, names in op.inputs.items()}
        self._append(replace(op, inputs=inputs))
        self.names.update(zip(kept_outputs(evaluation), kept_outputs(op), strict=True))

    def by_mode(self, training: str, evaluation: str) -> str:
        """The tensor that is the one in training and the other in evaluation."""
        evaluation = self.names.get(evaluation, evaluation)
        same = training
        while same in self._passed:
            same = self._passed[same]
        if evaluation in (training, same):
            return training
        if (training, evaluation) not in self._chosen:
            if self.specs[training] != self.specs[evaluation]:
                raise ValueError(f"{training} has another shape in evaluation")
            new = self._chosen[training, evaluation] = f"{training}/by_mode{len(self._chosen)}"
            self.specs[new], self.like[new] = self.specs[training], training
            call = self._calls.get(training, 0)
            both, out = {"in": (training, evaluation)}, {"out": (new,)}
            self._append(RawOp(new, "by_mode", call, "c", both, out))
        return self._chosen[training, evaluation]

    def _append(self, op: RawOp) -> None:
        self.ops.append(op)
        self._calls.update(dict.fromkeys(op.makes, op.call))

    def _is_no_op(self, op: RawOp) -> bool:
        return is_no_op(op, self.specs[op.reads[0]], self.specs[op.makes[0]])


def join(training: Side, evaluation: Side, names: Mapping[str, str]) -> Joined | None:
    """The job of both modes; None if something has another shape in evaluation.

    names: of evaluation's sources, where training's are others
    """
    ours, theirs = training.computing, evaluation.computing
    specs = {**{new: evaluation.job.specs[old] for old, new in names.items()}, **training.job.specs}
    joined = Joined(specs, dict(names))
    calls = {path: call for call, path in reversed([*enumerate(training.paths)])}
    keys = [[side.key(op) for op in side.computing] for side in (training, evaluation)]
    i = j = 0
    try:
        for block in SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
            for op in ours[i : block.a]:
                joined.add(op)
            for op in theirs[j : block.b]:
                call = calls.get(evaluation.paths[op.call], 0)
                joined.add_alone(op, evaluation.job.specs, call)
            i, j = block.a + block.size, block.b + block.size
            for op, same in zip(ours[block.a : i], theirs[block.b : j], strict=True):
                joined.add_both(op, same)
        pairs = zip(training.roots, evaluation.roots, strict=True)
        joined.roots = tuple(joined.by_mode(*pair) for pair in pairs)
    except ValueError:
        return None
    return joined
