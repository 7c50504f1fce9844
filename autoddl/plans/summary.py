"""The figures of a plan as one JSON object (`autoddl plan --json`).

bounds: bytes that each device receives in one iteration, see `cost.bounds`
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .._files import json_number
from ..cost.account import Cost
from ..plans.figures import figures
from ..plans.stage_figures import stage_figures
from . import Plan
from .stage import StagePlan


def summary_json(plan: Plan) -> dict[str, Any]:
    """Of several stages, the figures of each are in `stages`; of one they are the plan's own."""
    predicted = figures(plan)
    cluster = plan.cluster
    single = len(plan.stages) == 1
    return {
        "model": plan.graph.name,
        "cluster": {
            "name": cluster.name,
            "nodes": cluster.nodes,
            "gpus_per_node": cluster.gpus_per_node,
        },
        "seed": plan.seed,
        "batch": plan.batch,
        "micro_batches": plan.micro_batches,
        "precision": plan.precision,
        "batch_norm": plan.batch_norm,
        "optimizer": plan.optimizer,
        "memory_limit_bytes": json_number(plan.memory_limit_bytes),
        "schedule": plan.schedule_name,
        "delay": plan.delay,
        "chunks": plan.chunks,
        "iteration_s": predicted.iteration_s,
        "bubble": predicted.timeline.bubble,
        **(_figures(plan.stage) if single else {}),
        "baselines": [
            {**dataclasses.asdict(baseline), "fits": baseline.fits} for baseline in plan.baselines
        ],
        "stages": [
            {
                "first_layer": stage.first,
                "last_layer": stage.last - 1,
                "place": str(stage.place),
                "forward_s": predicted.prices[part].forward_s,
                "backward_s": predicted.prices[part].backward_s,
                "once_s": predicted.prices[part].once_s,
                "in_flight": predicted.schedule.stash[part % plan.num_stages],
                "memory_bytes": predicted.memory_bytes[part % plan.num_stages],
                **({} if single else {"plan": _figures(stage)}),
            }
            for part, stage in enumerate(plan.stages)
        ],
        "transfers": [
            {
                "tensor": link.tensor,
                "source": link.source,
                "target": link.target,
                "bytes": forward.spec.bytes,
                "strategy": forward.strategy,
                "forward_s": forward.seconds,
                "forward_bound_s": forward.bound_s,
                "backward_s": backward.seconds if backward else 0.0,
            }
            for link, (forward, backward) in predicted.travel.reshards.items()
        ],
    }


def _figures(plan: StagePlan) -> dict[str, Any]:
    predicted = stage_figures(plan)
    cost, products = predicted.cost, predicted.product_bytes
    return {
        "recomputed_blocks": len(plan.recomputed),
        "cost": {
            "iteration_s": cost.iteration_s,
            "compute_s": cost.compute_s,
            "communication_s": cost.communication_s,
        },
        "link_bytes": {
            "per_nic": _traffic(cost, "nic_bytes"),
            "per_device_intra": _traffic(cost, "intra_bytes"),
        },
        "memory_bytes": cost.memory_bytes,
        "peak_bytes": predicted.peak_bytes,
        "savings": predicted.savings.to_json(),
        "timed_operators": dataclasses.asdict(predicted.timed),
        "extrapolated": [dataclasses.asdict(steps) for steps in predicted.extrapolated],
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "topology": layer.topology,
                "signature": layer.signature,
                "compute_s": layer_cost.compute_s,
                "communication_s": layer_cost.communication_s,
                "nic_bytes": layer_cost.nic_bytes.total,
                "intra_bytes": layer_cost.intra_bytes.total,
                "memory_bytes": layer_cost.memory_bytes,
                "next_best": layer.alternative,
                "next_best_extra_s": layer.alternative_extra_s,
            }
            for layer in plan.layers
            for layer_cost in (predicted.layer_cost(layer),)
        ],
        "search": {
            "algorithm": plan.search.algorithm,
            "evaluations": plan.search.evaluations,
            "seconds": plan.search.seconds or None,  # of a file nobody knows
            "end": plan.search.end,
            "lower_bound_s": plan.search.lower_bound_s,
            "gap": predicted.gap,
            "proven": predicted.gap == 0.0,
        },
        "bounds": {
            "matmul_bytes": products.least,
            "memory_independent_bytes": products.memory_independent,
            "memory_dependent_bytes": products.memory_dependent,
            "moved_bytes": products.moved,
            "moved_over_bound": products.ratio,
            "products": products.products,
            "products_divided": products.divided,
        },
    }


def _traffic(cost: Cost, kind: str) -> dict[str, float]:
    traffic = getattr(cost, kind)
    return {
        "forward": traffic.forward,
        "backward": traffic.backward,
        "gradient_sync": traffic.gradient_sync,
        "total": traffic.total,
    }
