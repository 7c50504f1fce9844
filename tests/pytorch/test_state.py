"""The model as torch's own tools save and load it: DTensors, DCP, safetensors."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import autoddl
from autoddl.runtime.state import Stored
from autoddl.sbp.layout import is_chunk
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.placement import NdSbp
from tests.pytorch.models import build
from tests.runtime.random_plans import cluster_of

WORKER = Path(__file__).parent / "save.py"


def check_plain(folder: Path, name: str) -> None:
    """The files hold what training had, for who knows nothing of autoddl."""
    safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")
    whole = torch.load(folder / "whole.pt")
    model = build(name, seed=1)[0]
    dcp.load(model.state_dict(), checkpoint_id=folder / "dcp", no_dist=True)
    assert all(torch.equal(x, whole[key]) for key, x in model.state_dict().items())
    found = safetensors.load_file(folder / "hf" / "model-00001-of-00001.safetensors")
    assert found and all(torch.equal(x, whole[key]) for key, x in found.items())


def test_saved_on_2x2_and_loaded_elsewhere(launch, tmp_path: Path):
    saved = launch(WORKER, 4, str(tmp_path), "gpt", "2", "2", "save", "B-S1")
    check_plain(tmp_path, "gpt")
    loads = "load", "random:1", "load-hf", "random:2"
    told = saved + launch(WORKER, 4, str(tmp_path), "gpt", "1", "4", *loads)
    assert "split 0" not in told
    first, *others = map(float, re.findall(r"next loss (\S+)", told))
    assert others == pytest.approx([first] * 2, rel=1e-6)


@pytest.mark.full
def test_saved_in_two_stages(launch, tmp_path: Path):
    launch(WORKER, 4, str(tmp_path), "llama", "2", "2", "save", "stages:2")
    check_plain(tmp_path, "llama")
    launch(WORKER, 4, str(tmp_path), "llama", "2", "2", "load", "stages:2")


def test_one_device_trains_on_what_its_module_loads(tmp_path: Path):
    """Plain tensors, in the trainer's own memory; the user's model keeps its own."""
    model, loss, batch = build("resnet")
    before = {key: x.clone() for key, x in model.state_dict().items()}
    trainer: Any = autoddl.parallelize(
        model, cluster_of(1, 1), example=batch(0), loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    trainer.step(*batch(0))
    dcp.save(trainer.module().state_dict(), checkpoint_id=tmp_path, no_dist=True)
    saved, value = trainer.state_dict(), trainer.step(*batch(1))
    assert saved["1.num_batches_tracked"] == 1
    dcp.load(trainer.module().state_dict(), checkpoint_id=tmp_path, no_dist=True)
    torch.testing.assert_close(trainer.state_dict(), saved, rtol=0, atol=0)
    assert float(trainer.step(*batch(1))) == float(value)
    assert all(torch.equal(x, before[key]) for key, x in model.state_dict().items())
    module = trainer.module()
    assert type(module) is type(model) and module.training == model.training
    module.eval()(batch(0)[0])


@pytest.mark.full
def test_a_parameter_of_two_stages_is_in_no_module(torch_jobs, tmp_path: Path):
    words = (str(tmp_path), "gpt", "2", "1", "save", "stages:2")
    status, out = torch_jobs.run(WORKER, 2, *words, timeout=240)
    assert status != 0 and "two stages have words.weight, which a module has once" in out


@pytest.mark.parametrize(
    ("rows", "placed", "mesh", "expected"),
    [
        (10, "(S0, S0)", Mesh(2, 2), True),
        (7, "(S0, B)", Mesh(2, 2), True),
        (5, "(S0)", Mesh(1, 3), True),  # 2, 2, 1
        (4, "(S0)", Mesh(1, 3), False),  # 2, 1, 1, and not 2, 2, 0
        (8, "(S0)", Mesh(2, 1, (3, 1)), False),
    ],
)
def test_parts_that_a_dtensor_has(rows, placed, mesh, expected):
    stored = Stored((rows, 2), "float32", NdSbp.parse(placed), torch.zeros(()))
    assert (
        all(is_chunk(stored.shape, stored.nd, mesh, rank) for rank in range(mesh.size)) == expected
    )
