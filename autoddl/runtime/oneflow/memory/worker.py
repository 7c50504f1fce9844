"""Compiles a plan's job: `python -m autoddl.runtime.oneflow.memory.worker PLAN RESULT`.

Writes RESULT (JSON) with what was built, then lets OneFlow compile, which writes its plan below the
current folder and aborts this process where it first needs a device. `exact` reads both.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import oneflow as flow
from oneflow.framework.config_util import _set_resource_attr

from ....plans import Plan
from ....plans.stage_figures import stage_figures
from .again import run_again_late
from .as_cuda import compiled_for_cuda
from .compiled.step import compiled_peaks
from .replay import Job
from .world import pretend_world


def compile_plan(plan: Plan, result: Path) -> None:
    """Build and compile; does not return."""
    pretend_world(plan.stage.mesh.size)
    _set_resource_attr("enable_debug_mode", True, bool)  # writes the plan down
    # collectives in the order of the computation, so that their buffers are reused like any other
    flow.boxing.nccl.enable_use_compute_stream(True)
    job = Job.of(plan)
    blocks = [f"model.block{number}-" for number in range(len(plan.recomputed))]
    with compiled_for_cuda(lambda built: run_again_late(built, blocks)):
        graph = job.build()
    _set_chains(plan)
    facts = {
        "names": job.model.names,
        "differing": job.model.differing,
        "differing_backward": job.model.differing_backward,
    }
    result.write_text(json.dumps(facts, indent=1))
    graph.finish_complie_and_init_runtime()


def _set_chains(plan: Plan) -> None:
    """Choose OneFlow's order of operators that needs the least memory according to the model."""
    peaks = compiled_peaks(stage_figures(plan.stage).step)
    rule = min(peaks, key=lambda rule: peaks[rule].bytes)
    os.environ["ENABLE_LOGICAL_CHAIN"] = str(rule != "tasks").lower()
    os.environ["ENABLE_ACC_CHAIN_MERGE"] = str(rule == "operators").lower()


if __name__ == "__main__":
    compile_plan(Plan.load(sys.argv[1]), Path(sys.argv[2]))
