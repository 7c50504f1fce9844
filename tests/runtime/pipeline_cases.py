"""What training in stages is compared with one process on.

`workers/pipeline.py` takes a list of such cases. An interleaved schedule takes its micro-batches in
groups of one a stage, so it has fewer cases, and two stages wherever the models are too small to be
cut into more parts.
"""

from typing import Any

Case = dict[str, Any]

MODELS = ("dense", "transformer", "ladder")  # plain, tied weights, long skips
MESHES = ((2, 2), (4, 1), (4, 2))  # nodes, devices of each
# 8 rows, or 4 times as many as micro-batches
COUNTS = ((1, 2, 4, 8), (3, 5, 6, 7))
SCHEDULES: tuple[Case, ...] = (
    {"schedule": "gpipe"},
    {"schedule": "1f1b"},
    {"schedule": "eager-1f1b"},
    {"schedule": "zb-h1"},
    {"schedule": "interleaved-1f1b", "chunks": 2},
    {"schedule": "1f1b", "delay": 0},
    {"schedule": "eager-1f1b", "delay": 1},
)


def case(
    model: str,
    nodes: int,
    gpus: int,
    stages: int,
    schedule: str = "1f1b",
    micro_batches: int = 4,
    **more: Any,
) -> Case:
    return {
        "model": model, "nodes": nodes, "gpus": gpus, "stages": stages, "schedule": schedule,
        "micro_batches": micro_batches, **more,
    }  # fmt: skip


def cases_of(model: str, nodes: int, gpus: int, counts: tuple[int, ...]) -> list[Case]:
    """Every schedule with each number of micro-batches.

    Stages are single devices on 4 x 1, else two halves of the mesh with random layouts; on 4 x 2
    there are also some of four stages.
    """
    found = []
    for m in counts:
        rows = 8 if 8 % m == 0 else 4 * m
        more = {"rows": rows, "steps": 2, "overlap": m not in (4, 5)}
        for options in SCHEDULES:
            chunks = options.get("chunks", 1)
            stages = 4 if gpus == 1 and chunks == 1 else 2
            if chunks > 1 and m % stages:
                continue
            seed = None if gpus == 1 else m
            found.append(
                case(model, nodes, gpus, stages, micro_batches=m, seed=seed, **more, **options)
            )
        if (nodes, gpus) == (4, 2) and m in (3, 8) and model != "dense":
            found += [
                case(model, nodes, gpus, 4, schedule, m, **more)
                for schedule in ("eager-1f1b", "zb-h1")
            ]
    return found
