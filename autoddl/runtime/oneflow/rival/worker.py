"""Lets OneFlow plan a graph: `python -m autoddl.runtime.oneflow.rival.worker GRAPH NODES GPUS`.

Builds the training job with `enable_auto_parallel` for NODES x GPUS CUDA devices that do not exist,
and compiles it. OneFlow writes the job with its choice below GLOG_log_dir, then aborts the process
where it first needs a device; `choice` reads the file.
"""

from __future__ import annotations

import sys

import oneflow as flow
import oneflow.nn as nn
from oneflow.framework.config_util import _set_resource_attr

from ....graph.graph import Graph
from ....sbp.mesh import Mesh
from ..memory.as_cuda import compiled_for_cuda
from ..memory.world import pretend_world
from ..trace.entries import optimizer_maker
from .model import Whole


def plan_graph(graph: Graph, mesh: Mesh, optimizer: str) -> None:
    """Build and compile the job; does not return on a machine without a GPU."""
    pretend_world(mesh.size)
    _set_resource_attr("enable_debug_mode", True, bool)  # writes the optimised job down
    model = Whole(graph, mesh)
    trained = [p for p in model.parameters() if p.requires_grad]
    make = optimizer_maker(optimizer, 1e-3)(trained)

    class Training(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(make)
            self.config.enable_auto_parallel(True)
            self.config.enable_auto_parallel_ignore_user_sbp_config(True)

        def build(self, *inputs: flow.Tensor) -> flow.Tensor:
            loss = self.model(*inputs)
            loss.backward()
            return loss

    with compiled_for_cuda():
        training = Training()
        training.build_graph(*(model.empty(op) for op in model.inputs()))
    training.finish_complie_and_init_runtime()


if __name__ == "__main__":
    file, nodes, gpus, optimizer = sys.argv[1:]
    plan_graph(Graph.load(file), Mesh(int(nodes), int(gpus)), optimizer)
