"""How far training in pipeline stages is from one process: `make bench-pipeline-exactness`.

    python -m benchmarks.pipeline_exactness [--meshes 2x2 4x1 4x2] [--models dense ...] [--missing]

Runs the matrix of tests/runtime/pipeline_cases.py, one job for each mesh, model and set of numbers
of micro-batches, and writes the largest relative differences of losses and of the trained state to
benchmarks/results/pipeline/exactness.*. A job whose differences exceed the tolerance ends the run.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import re
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from tests.runtime.conftest import run_worker
from tests.runtime.pipeline_cases import COUNTS, MESHES, MODELS, SCHEDULES, Case, cases_of

FOLDER = Path(__file__).parent / "results" / "pipeline"
JOB_SECONDS = 1700.0
WHAT = {
    "dense": "6 dense layers",
    "transformer": "a transformer with tied weights",
    "ladder": "a U-shaped model with long skips",
}
_KEY = ("nodes", "gpus", "model", "stages", "micro_batches")
_LINE = re.compile(r"stages=.* loss (\S+) state (\S+)")


def differences(nodes: int, gpus: int, cases: list[Case]) -> list[dict[str, Any]]:
    """The cases, run by one job, with what they are apart from one process."""
    status, out = run_worker("pipeline", nodes * gpus, json.dumps(cases), timeout=JOB_SECONDS)
    found = [_LINE.search(line) for line in out.splitlines()]
    apart = [(float(match[1]), float(match[2])) for match in found if match]
    if status or len(apart) != len(cases):
        raise RuntimeError(f"status {status} after {len(apart)} of {len(cases)} cases\n{out}")
    today = datetime.date.today().isoformat()
    return [
        {**case, "loss": loss, "state": state, "date": today}
        for case, (loss, state) in zip(cases, apart, strict=True)
    ]


def key_of(case: Case) -> tuple[Any, ...]:
    """What tells a case from the others."""
    return (*(case[name] for name in _KEY), title(case))


def title(options: Case) -> str:
    delay = options.get("delay")
    return options["schedule"] + (f", weights {delay} later" if delay is not None else "")


def markdown(rows: list[dict[str, Any]]) -> str:
    schedules = [title(options) for options in SCHEDULES]
    counts = sorted({row["micro_batches"] for row in rows})
    lines = [
        "# Pipelines against one process",
        "",
        "Largest relative difference of a loss, and of all parameters together, from the same "
        "model trained by one process (two steps of SGD with momentum; evaluation and state_dict "
        f"are compared too), over {', '.join(map(str, counts))} micro-batches; an interleaved "
        "pipeline takes groups of one a stage. The tolerance is 2e-5. Stages on 4x1 are single "
        "devices (two stages of two parts for the interleaved one), on 2x2 and 4x2 halves of the "
        "mesh with random layouts, and on 4x2 also four of 1x2. Models: "
        + ", ".join(f"{name} ({what})" for name, what in WHAT.items())
        + ". exactness.json has every case.",
        "",
        "| mesh | model | cases | " + " | ".join(schedules) + " |",
        "| --- | --- | ---: |" + " ---: |" * len(schedules),
    ]
    for nodes, gpus in MESHES:
        for model in MODELS:
            own = [r for r in rows if (r["nodes"], r["gpus"], r["model"]) == (nodes, gpus, model)]
            if not own:
                continue
            cells = []
            for schedule in schedules:
                of_it = [row for row in own if title(row) == schedule]
                loss = max((row["loss"] for row in of_it), default=0.0)
                state = max((row["state"] for row in of_it), default=0.0)
                cells.append(f"{loss:.0e}, {state:.0e}" if of_it else "")
            lines.append(f"| {nodes}x{gpus} | {model} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--meshes", nargs="+", default=[f"{n}x{g}" for n, g in MESHES])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--missing", action="store_true", help="only what has no result yet")
    args = parser.parse_args()
    path = FOLDER / "exactness.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    for mesh, model, counts in itertools.product(args.meshes, args.models, COUNTS):
        nodes, gpus = map(int, mesh.split("x"))
        cases = cases_of(model, nodes, gpus, counts)
        keys = {key_of(case) for case in cases}
        if args.missing and keys <= {key_of(row) for row in rows}:
            continue
        others = [row for row in rows if key_of(row) not in keys]
        rows = others + differences(nodes, gpus, cases)
        print(mesh, model, counts, len(cases), "cases", flush=True)
        write_atomically(path, "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        write_atomically(FOLDER / "exactness.md", markdown(rows))
    write_atomically(FOLDER / "exactness.md", markdown(rows))
    print(markdown(rows))


if __name__ == "__main__":
    main()
