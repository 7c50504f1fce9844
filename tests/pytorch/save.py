"""Saves or loads a model by torch's own tools, on any mesh; prints what it went on to.

Arguments: FOLDER MODEL NODES GPUS, then save|load|load-hf SCHEME once or several times, the schemes
as in `tests/exactness/schemes.py`.
"""

import sys
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor

from autoddl.cluster.spec import Cluster
from autoddl.plans import Plan
from autoddl.runtime.jobs.agreement import share_text
from autoddl.runtime.jobs.guard import rank
from autoddl.runtime.torch.backend import Torch
from autoddl.runtime.torch.framework import build_trainer
from autoddl.runtime.torch.trace.trace import trace_with_state
from tests.exactness.schemes import plan_of
from tests.pytorch.models import build


def main() -> None:
    folder, name, nodes, gpus, *asked = sys.argv[1:]
    torch.set_num_threads(1)
    cluster = Cluster.load("laptop").with_shape(nodes=int(nodes), gpus_per_node=int(gpus))
    model, loss, batch = build(name, seed=0 if "save" in asked else 1)
    traced = trace_with_state(model, *batch(0), loss=loss)
    for call, scheme in zip(asked[::2], asked[1::2], strict=True):
        run(call, scheme, folder, cluster, traced, batch)


def run(call: str, scheme: str, folder: str, cluster: Cluster, traced, batch) -> None:
    plan = plan_of(scheme, traced.graph, cluster, "momentum", 1)
    plan = Plan.loads(share_text(plan.dumps, Torch()))
    trainer: Any = build_trainer(traced, plan, lambda p: torch.optim.SGD(p, lr=0.1))
    if call == "save":
        trainer.step(*batch(0))
    state = trainer.module().state_dict()
    split = sum(isinstance(x, DTensor) and x.to_local().shape != x.shape for x in state.values())
    untied = {key: x for key, x in state.items() if traced.keys[key] == key}
    hugging_face, whole = f"{folder}/hf", f"{folder}/whole.pt"
    if call == "save":
        dcp.save(state, checkpoint_id=f"{folder}/dcp")
        writer = HuggingFaceStorageWriter(
            hugging_face, save_distributed=True, enable_consolidation=True
        )
        dcp.save(untied, storage_writer=writer)
        found = trainer.state_dict()
        if rank() == 0:
            torch.save(found, whole)
    elif call == "load":
        dcp.load(state, checkpoint_id=f"{folder}/dcp")
    else:
        dcp.load(untied, storage_reader=HuggingFaceStorageReader(hugging_face))
    found = trainer.state_dict()
    if rank() == 0:
        for key, expected in torch.load(whole).items():
            torch.testing.assert_close(found[key], expected, rtol=0, atol=0)
    value = float(trainer.step(*batch(1)))
    if rank() == 0:
        print(f"split {split}, next loss {value:.7f}")


main()
