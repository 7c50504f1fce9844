"""The plan: the only hand-over from planning to the runtime.

A frozen value with a versioned JSON file. It holds the graph it is for (with forks, at the size of
a micro-batch), the cluster, the placement of every operator and the steps of every redistribution;
the figures (`cost`) are computed from these by `cost.account`, so a file cannot claim others. The
same inputs and seed give the same bytes: measured times of the search are not in the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .cluster.spec import Cluster
from .cost.account import Cost, account, total
from .cost.extrapolation import Extrapolated, extrapolated_steps
from .cost.gap import relative_gap
from .cost.memory_peak import Runtime, memory_peak
from .cost.model import CostModel
from .cost.planned_step import PlannedStep
from .cost.products import ProductBytes, product_bytes
from .cost.recompute import Blocks, Recomputation
from .cost.savings import Savings, savings
from .cost.tape import Peak
from .cost.timed import Timed, timed_operators
from .explain import (
    EdgeText,
    LayerText,
    certificate_text,
    layer_text,
    plan_text,
    recomputation_text,
    storage_text,
)
from .files import write_atomically
from .graph import SOURCE_KINDS, Graph
from .planned import PlannedBaseline, PlannedEdge, PlannedLayer, PlannedOp
from .precision import in_precision
from .sbp.mesh import Mesh
from .sbp.placement import NdSbp
from .sbp.redistribute import Step

__all__ = ["Plan", "PlannedEdge", "PlannedLayer", "PlannedOp", "SearchRecord"]

PLAN_VERSION = 1
NOT_RECOMPUTED = (*SOURCE_KINDS, "stage_input", "stage_output", "loss")


@dataclass(frozen=True)
class SearchRecord:
    """How the plan was found. `seconds` is measured and stays out of the file (0 after loading).

    lower_bound_s: no plan in the searched space, with as many micro-batches and within the memory
                   limit, takes less; None if the algorithm proves nothing
    end:           "done", or what stopped the search: "budget" or "interrupted"
    """

    algorithm: str
    evaluations: int
    lower_bound_s: float | None = None
    end: str = "done"
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Plan:
    """Placements for training `graph` on `cluster`, micro-batch by micro-batch.

    recomputed: blocks of operators of which only the inputs are kept for the backward pass; their
                forward pass is run again before it
    precision:  "float16" if `graph` is in mixed precision
    """

    graph: Graph
    cluster: Cluster
    micro_batches: int
    seed: int
    optimizer: str
    comm_rule: str
    memory_limit_bytes: float
    ops: Mapping[str, PlannedOp]
    edges: Mapping[tuple[str, int], PlannedEdge]
    layers: tuple[PlannedLayer, ...]
    search: SearchRecord
    baselines: tuple[PlannedBaseline, ...] = ()
    recomputed: Blocks = ()
    precision: str = "float32"

    @property
    def mesh(self) -> Mesh:
        return self.cluster.mesh

    @property
    def batch(self) -> int:
        """Rows of the global batch of one iteration."""
        return self.graph.batch * self.micro_batches

    @cached_property
    def model(self) -> CostModel:
        assert self.comm_rule in ("shared_nic", "plain")
        return CostModel(
            self.cluster, self.optimizer, self.comm_rule, self.memory_limit_bytes, self.precision
        )

    @cached_property
    def costs(self) -> Mapping[str, Cost]:
        """Operator name -> its cost in one iteration."""
        return account(self.graph, self.model, self.micro_batches, self.ops, self.edges, self.again)

    @cached_property
    def again(self) -> Recomputation:
        return Recomputation(self.graph, self.recomputed)

    @cached_property
    def step(self) -> PlannedStep:
        """What runs on each device."""
        return PlannedStep(
            self.graph, self.mesh, self.micro_batches, self.optimizer, self.ops, self.edges,
            self.again,
        )  # fmt: skip

    @cached_property
    def cost(self) -> Cost:
        """The cost of one iteration on one device."""
        return total(self.costs.values())

    @property
    def closest_baseline(self) -> PlannedBaseline | None:
        """The fastest of the known schemes that fit, None if none was priced or none fits."""
        fitting = [(b.iteration_s, n) for n, b in enumerate(self.baselines) if b.iteration_s]
        return self.baselines[min(fitting)[1]] if fitting else None

    @property
    def gap(self) -> float | None:
        """Fraction by which a better plan of the searched space may be faster; None if unknown."""
        bound = self.search.lower_bound_s
        if bound is None or bound <= 0:
            return None
        return relative_gap(self.cost.iteration_s, bound)

    @cached_property
    def product_bytes(self) -> ProductBytes:
        """What each device receives for matrix products, and the least that it has to."""
        return product_bytes(
            self.graph, self.mesh, self.micro_batches, self.memory_limit_bytes, self.ops,
            self.edges, self.again,
        )  # fmt: skip

    @cached_property
    def extrapolated(self) -> tuple[Extrapolated, ...]:
        """Steps far outside what the cluster's calibration measured; () without a calibration."""
        return extrapolated_steps(self.graph, self.cluster, self.ops, self.edges)

    @cached_property
    def timed(self) -> Timed:
        """How many operators are priced by a measurement of their own."""
        return timed_operators(self.cluster.device, self.graph)

    @cached_property
    def savings(self) -> Savings:
        """What accumulation and split storage save and cost."""
        return savings(
            self.graph, self.model, self.micro_batches, self.ops, self.edges, self.again, self.costs
        )

    def layer_cost(self, layer: PlannedLayer) -> Cost:
        return total(self.costs[name] for name in layer.ops)

    def memory_peak(self, runtime: Runtime = "graph") -> Peak:
        """The fullest moment of a step on one device, by the lifetimes of its tensors."""
        return memory_peak(self.step, runtime)

    @cached_property
    def peak_bytes(self) -> int | None:
        """What the limit is held against: the executor's fullest moment.

        None of a stage of a pipeline, of which only the sum is known.
        """
        return None if self.graph.is_stage else self.memory_peak("executor").bytes

    def keeping_all(self) -> Plan:
        """The same plan without recomputation."""
        return dataclasses.replace(self, recomputed=())

    # ---- checks

    def check_model(self, graph: Graph) -> None:
        """ValueError unless this plan is for `graph`, a freshly traced model."""
        try:
            ours = in_precision(graph, self.precision)
            ours = ours.with_batch(self.graph.batch) if graph.batch else ours
            same = ours.with_forks().fingerprint == self.graph.fingerprint
        except ValueError:
            same = False
        if not same:
            theirs = {op.name for op in graph.with_forks().ops}
            mine = {op.name for op in self.graph.ops}
            differing = sorted(theirs ^ mine)[:3]
            hint = f" (first differences: {', '.join(differing)})" if differing else ""
            raise ValueError(
                f"the plan is for another model than the one given: it was made for "
                f"{self.graph.name!r} with {len(mine)} operators, the given model has "
                f"{len(theirs)}{hint}; the sizes or attributes may differ too. Plan this model anew"
            )

    def check_cluster(self, cluster: Cluster) -> None:
        """ValueError unless this plan is for a cluster of the same shape."""
        mine = (self.cluster.nodes, self.cluster.gpus_per_node)
        given = (cluster.nodes, cluster.gpus_per_node)
        if mine != given:
            raise ValueError(
                f"the plan is for {mine[0]} x {mine[1]} devices, the cluster has "
                f"{given[0]} x {given[1]}; plan for this cluster, or give the cluster as "
                f"cluster.with_shape(nodes={mine[0]}, gpus_per_node={mine[1]})"
            )

    # ---- JSON

    def to_json(self) -> dict[str, Any]:
        """What the file holds; `from_json` inverts it."""
        return {
            "version": PLAN_VERSION,
            "seed": self.seed,
            "optimizer": self.optimizer,
            "comm_rule": self.comm_rule,
            "memory_limit_bytes": self.memory_limit_bytes,
            "micro_batches": self.micro_batches,
            "precision": self.precision,
            "recomputed": [list(block) for block in self.recomputed],
            "search": {
                "algorithm": self.search.algorithm,
                "evaluations": self.search.evaluations,
                "lower_bound_s": self.search.lower_bound_s,
                "end": self.search.end,
            },
            "baselines": [dataclasses.asdict(baseline) for baseline in self.baselines],
            "cluster": self.cluster.to_json(),
            "layers": [
                {
                    "name": layer.name,
                    "op": layer.op,
                    "topology": layer.topology,
                    "signature": layer.signature,
                    "alternative": layer.alternative,
                    "alternative_extra_s": layer.alternative_extra_s,
                    "ops": list(layer.ops),
                }
                for layer in self.layers
            ],
            "ops": {
                op.name: {
                    "ins": _texts(op.ins),
                    "outs": _texts(op.outs),
                    "grad_outs": _texts(op.grad_outs),
                    "grad_ins": _texts(op.grad_ins),
                    **({"inner_axes": list(op.inner_axes)} if op.inner_axes else {}),
                }
                for op in self.ops.values()
            },
            "edges": [
                [
                    edge.op,
                    edge.index,
                    [str(s) for s in edge.forward],
                    [str(s) for s in edge.backward],
                    *([edge.zero_stage] if edge.zero_stage else []),
                ]
                for edge in self.edges.values()
            ],
            "graph": self.graph.to_json(),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Plan:
        """Raises ValueError on another version, and on a file that is not whole."""
        version = data.get("version")
        if version != PLAN_VERSION:
            raise ValueError(
                f"plan version {version!r} is not {PLAN_VERSION}, which this autoddl reads; "
                "plan the model again"
            )
        try:
            ops = {
                name: PlannedOp(
                    name,
                    tuple(map(NdSbp.parse, op["ins"])),
                    tuple(map(NdSbp.parse, op["outs"])),
                    tuple(None if t is None else NdSbp.parse(t) for t in op["grad_outs"]),
                    tuple(None if t is None else NdSbp.parse(t) for t in op["grad_ins"]),
                    tuple(op.get("inner_axes", ())),
                )
                for name, op in data["ops"].items()
            }
            edges = {
                (op, index): PlannedEdge(
                    op,
                    index,
                    tuple(map(Step.parse, forward)),
                    tuple(map(Step.parse, backward)),
                    *zero_stage,
                )
                for op, index, forward, backward, *zero_stage in data["edges"]
            }
            layers = tuple(
                PlannedLayer(**{**layer, "ops": tuple(layer["ops"])}) for layer in data["layers"]
            )
            plan = Plan(
                graph=Graph.from_json(data["graph"]),
                cluster=Cluster.from_json(data["cluster"]),
                micro_batches=data["micro_batches"],
                seed=data["seed"],
                optimizer=data["optimizer"],
                comm_rule=data["comm_rule"],
                memory_limit_bytes=data["memory_limit_bytes"],
                ops=ops,
                edges=edges,
                layers=layers,
                search=SearchRecord(**data["search"]),
                baselines=tuple(PlannedBaseline(**b) for b in data.get("baselines", ())),
                precision=data.get("precision", "float32"),
                recomputed=tuple(tuple(block) for block in data.get("recomputed", ())),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"not a whole plan file ({type(error).__name__}: {error}); plan the model again"
            ) from error
        missing = [op.name for op in plan.graph.ops if op.name not in plan.ops]
        if missing:
            raise ValueError(f"the plan places no operator {missing[0]!r}; plan the model again")
        plan.verify()
        return plan

    def verify(self) -> None:
        """ValueError unless every path leads from its producer's placement to its reader's.

        And unless what is recomputed are blocks of the graph's operators.
        """
        self._verify_blocks()
        for op in self.graph.ops:
            for index, name in enumerate(op.inputs):
                producer = self.graph.producers[name]
                out = producer.outputs.index(name)
                edge = self.edges.get((op.name, index), PlannedEdge(op.name, index))
                _check_path(
                    self.ops[producer.name].outs[out], edge.forward, self.ops[op.name].ins[index],
                    f"input {index} of {op.name}",
                )  # fmt: skip
                given = self.ops[op.name].grad_ins[index]
                wanted = self.ops[producer.name].grad_outs[out]
                if name in self.graph.needs_grad and given is not None and wanted is not None:
                    _check_path(
                        given, edge.backward, wanted, f"gradient of input {index} of {op.name}"
                    )

    def _verify_blocks(self) -> None:
        kinds = {op.name: op.kind for op in self.graph.ops}
        seen: set[str] = set()
        for name in (name for block in self.recomputed for name in block):
            if kinds.get(name, "param") in NOT_RECOMPUTED:
                raise ValueError(f"the plan recomputes {name!r}, which is no operator of its graph")
            if name in seen:
                raise ValueError(f"the plan recomputes {name!r} in two blocks")
            seen.add(name)

    def save(self, path: str | Path) -> None:
        """Write JSON; the file is replaced only when it is whole."""
        write_atomically(path, self.dumps())

    def dumps(self) -> str:
        """The file's text; `loads` inverts it."""
        return json.dumps(self.to_json(), indent=1)

    @staticmethod
    def loads(text: str) -> Plan:
        """Read what `dumps` wrote. Raises ValueError if it is not a whole plan of this version."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("not a plan file: the JSON is no object")
        return Plan.from_json(data)

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read what `save` wrote. ValueError names the file and what is wrong with it."""
        try:
            return Plan.loads(Path(path).read_text())
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def explain(self, layer: str | None = None) -> str:
        """The plan in words and numbers; with `layer`, that layer alone, step by step.

        ValueError if no layer has that name.
        """
        if layer is None:
            return plan_text(
                self.graph.name,
                self.cluster,
                self.batch,
                self.micro_batches,
                self.cost,
                self.memory_limit_bytes,
                self.layer_texts,
                certificate_text(
                    self.search.algorithm, self.search.end, self.gap, self.product_bytes
                ),
                self.savings,
                self.baselines,
                self.extrapolated,
                self.saved_text(),
                self.precision,
                self.timed,
                self.peak_bytes,
            )
        found = [planned for planned in self.layers if planned.name == layer]
        if not found:
            names = ", ".join(planned.name for planned in self.layers[:6])
            raise ValueError(f"the plan has no layer {layer!r}; its layers are {names}, ...")
        return "\n\n".join(
            layer_text(
                planned,
                self.layer_cost(planned),
                self.cost,
                self._edge_texts(planned),
                self._storage_text(planned),
            )
            for planned in found
        )

    def saved_text(self) -> str:
        """What recomputation saves and costs; "" without any."""
        if not self.recomputed:
            return ""
        kept = self.keeping_all()
        return recomputation_text(
            len(self.recomputed),
            self.cost,
            kept.cost,
            (self.peak_bytes, kept.peak_bytes),
        )

    @property
    def layer_texts(self) -> list[LayerText]:
        """The layers with their costs, as the tables of a plan show them."""
        return [
            LayerText(layer, self.layer_cost(layer), self._storage_text(layer))
            for layer in self.layers
        ]

    def _storage_text(self, layer: PlannedLayer) -> str:
        found = self.savings
        return storage_text(
            [found.stages[op] for op in layer.ops if op in found.stages],
            [found.by_op[op] for op in layer.ops if op in found.by_op],
        )

    def _edge_texts(self, layer: PlannedLayer) -> list[EdgeText]:
        """Every redistribution into the operators of `layer`."""
        texts = []
        for name in layer.ops:
            for index, planned in enumerate(self.ops[name].ins):
                edge = self.edges.get((name, index))
                if edge is not None and (edge.forward or edge.backward):
                    texts.append(
                        EdgeText(
                            name,
                            index,
                            str(planned),
                            [str(s) for s in edge.forward],
                            [str(s) for s in edge.backward],
                        )
                    )
        return texts


def _texts(placements: tuple[NdSbp | None, ...]) -> list[str | None]:
    return [None if nd is None else str(nd) for nd in placements]


def _known_bytes(plan: Plan) -> int:
    """The peak of a step; of a stage of a pipeline the sum, as its sweep is not known."""
    return int(plan.cost.memory_bytes) if plan.graph.is_stage else plan.memory_peak().bytes


def _check_path(source: NdSbp, steps: tuple[Step, ...], target: NdSbp, where: str) -> None:
    nd = source
    try:
        for step in steps:
            nd = step.apply(nd)
    except AssertionError as error:
        raise ValueError(f"the plan is inconsistent at {where}: {error}") from error
    if nd != target:
        raise ValueError(
            f"the plan is inconsistent at {where}: its steps lead from {source} to {nd}, "
            f"not to {target}"
        )
