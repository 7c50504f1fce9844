"""Mixed precision where OneFlow has it, and what of it runs on a CPU."""

import oneflow as flow
import pytest

import autoddl
from autoddl.graph.precision import PRECISIONS
from autoddl.runtime.comm.groups import Groups
from autoddl.runtime.oneflow import backend
from autoddl.runtime.oneflow.backend import OneFlow
from autoddl.runtime.update.loss_scale import LossScaler
from tests.clusters import cluster
from tests.runtime.conftest import run_worker
from tests.runtime.small_models import OPTIMIZERS
from tests.runtime.training import build


@pytest.mark.full
@pytest.mark.timeout(600)
def test_four_processes():
    """On processes of their own, as it changes autoddl in them."""
    status, out = run_worker("half", 4, "sgd,adam", timeout=500)
    assert status == 0 and out.count("holds: ") == 4, out


@pytest.mark.skipif(flow.cuda.is_available(), reason="says what a host without a GPU says")
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_cpu_refuses_and_says_why(precision):
    model, loss, batch = build("stack")
    with pytest.raises(ValueError, match="no kernels on the CPU .* matmul; .* precision='float32'"):
        autoddl.parallelize(
            model, cluster("gcp_a100", 1, 1), example=batch(0, 8), loss=loss,
            optimizer=OPTIMIZERS["adam"], precision=precision,
        )  # fmt: skip


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_an_operator_without_a_kernel_is_named(monkeypatch, precision):
    """As on a device that multiplies in half precision and cannot do all else."""
    monkeypatch.setattr(backend, "precisions_of", lambda *asked: PRECISIONS)
    model, loss, batch = build("stack")
    with pytest.raises(ValueError, match=rf"cannot run .* \(\w+\) in {precision} on the CPU"):
        autoddl.parallelize(
            model, cluster("gcp_a100", 1, 1), example=batch(0, 8), loss=loss,
            optimizer=OPTIMIZERS["adam"], precision=precision,
        )  # fmt: skip


def test_the_scale_falls_at_once_and_grows_slowly():
    world = Groups(cluster("gcp_a100", 1, 1).mesh, 0, OneFlow("cpu")).along(())
    scaler = LossScaler(8.0, growth_interval=2)
    shared = flow.tensor([16.0, -4.0])  # of two parameters
    gradients = {"a": shared, "b": shared}
    assert scaler.unscale([gradients], world)
    assert all(x.numpy().tolist() == [2.0, -0.5] for x in gradients.values())
    assert not scaler.unscale([{"a": flow.tensor([float("nan")])}], world)
    assert (scaler.scale, scaler.good_steps, scaler.skipped) == (4.0, 0, 1)
    for _ in range(2):
        assert scaler.unscale([{"a": flow.zeros(1)}], world)
    assert scaler.scale == 8.0


def test_wrong_scales():
    with pytest.raises(ValueError, match="must be positive"):
        LossScaler(0.0)
