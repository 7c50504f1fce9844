"""Training goes on from its checkpoints as if it had never stopped, also on another mesh."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from autoddl.runtime.checkpoint.folder import begin, checkpoints, commit
from tests.ranks import ROOT
from tests.runtime.test_trainer import trainer_of
from tests.runtime.training import arrays, build

flow = pytest.importorskip("oneflow", reason="needs OneFlow")


def adam(parameters):
    return flow.optim.Adam(parameters, lr=1e-3)


def make(name="perceptron", **options):
    model, loss, batch = build(name)
    return trainer_of(model, loss, batch(0, 8), **{"optimizer": adam, **options}), batch


EMA, STAGED = {"ema": 0.7}, {"stages": 2, "micro_batches": 4}
TWO, TIED = {"optimizer": "groups", "steps": 2, **EMA}, {"clip": 0.3, **EMA, **STAGED}
ONE_AXIS = {"nodes": 1, "gpus": 4, "seed": 4}
SAME = {"then": [{}], "uninterrupted": True}  # the same plan goes on to the bit
FROZEN = {**STAGED, **TWO, "frozen": ["first", "second"], "then": [{}]}


@pytest.mark.parametrize(
    "cases",
    [
        [
            {"model": "perceptron", "seed": 0, **TWO, "then": [ONE_AXIS, {**STAGED, "seed": None}]},
        ],
        pytest.param(
            [
                {"model": "dropout", "seed": 3, **TWO, **SAME, "alone": False},
                {"model": "transformer", **TIED, "optimizer": "sgd", "then": [ONE_AXIS]},
                {"model": "dense", "zero": "mixed", **TWO, **SAME},
                {"model": "perceptron", **FROZEN},
            ],
            marks=pytest.mark.full,
        ),
    ],
)
def test_training_goes_on_by_other_plans(launch, cases):
    """AdamW with a schedule and groups, from 2x2 to 1x4 and in stages; dropout by the same plan.

    With averaged parameters, also of a tied weight.
    """
    out = launch("loop", 4, json.dumps(cases))
    assert out.count("equal: ") == len(cases), out


def test_a_run_goes_on_to_the_bit_and_keeps_the_newest(tmp_path):
    """BatchNorm's buffers and counter, Adam's moments; written while training goes on."""
    trainer, batch = make("convnet", ema_decay=0.9)
    for step in range(3):
        trainer.save(tmp_path, {"read": step}, keep=2, wait=False)
        trainer.step(*batch(step, 8))
    trainer.save(tmp_path, {"read": 3}, keep=2, wait=False)
    trainer.step(*batch(3, 8))
    expected, averages = arrays(trainer), trainer.ema_state_dict()
    again, _ = make("convnet", ema_decay=0.9)
    trainer._checkpoints._settle()
    assert [place.name for place in checkpoints(tmp_path)] == ["step-00000003", "step-00000002"]
    assert sorted(os.listdir(tmp_path / "step-00000003")) == [
        "manifest.json", "plan.json", "rank-00000.safetensors"
    ]  # fmt: skip
    assert again.load(tmp_path) == {"read": 3} and again.steps == 3
    again.step(*batch(3, 8))
    found = arrays(again)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], value) for key, value in expected.items())
    for key, value in again.ema_state_dict().items():
        np.testing.assert_array_equal(value.numpy(), averages[key].numpy(), err_msg=key)
    assert again.load(tmp_path / "step-00000002") == {"read": 2} and again.steps == 2
    again.save(tmp_path, {"read": "again"})
    assert again.load(tmp_path) == {"read": "again"}, "step 3 is of the run before"


def test_what_is_broken_is_named_and_the_one_before_is_taken(tmp_path, caplog):
    trainer, batch = make()
    for step in range(2):
        trainer.step(*batch(step, 8))
        trainer.save(tmp_path)
    newest, older = checkpoints(tmp_path)
    shard = newest / "rank-00000.safetensors"
    whole = shard.read_bytes()

    def told() -> str:
        caplog.clear()
        assert trainer.load(tmp_path) == {} and trainer.steps == 1
        with pytest.raises(ValueError, match=re.escape(str(newest))):
            trainer.load(newest)
        (message,) = caplog.messages
        return message

    shard.write_bytes(whole[:-50] + bytes([whole[-50] ^ 4]) + whole[-49:])
    assert "rank-00000.safetensors: " in (message := told())
    assert "has changed since it was written" in message and f"goes on from {older}" in message
    shard.write_bytes(whole[:-50])
    assert "it ends before " in told()
    shard.unlink()
    assert "rank-00000.safetensors: missing, which rank 0 had written" in told()
    shard.write_bytes(whole)
    manifest = newest / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"steps": 2', '"steps": 3'))
    assert "manifest.json: it was changed after it was written" in told()
    manifest.unlink()
    assert "manifest.json: no such file" in told().replace(f"{newest}/", "")
    shutil.rmtree(older)
    with pytest.raises(ValueError, match="step-00000002/manifest.json: no such file"):
        trainer.load(tmp_path)


def test_a_job_killed_while_it_replaces_a_checkpoint_leaves_one(tmp_path):
    trainer, batch = make()
    trainer.step(*batch(0, 8))
    for both in (True, False):
        trainer.save(tmp_path, {"both": both})
        (place,) = checkpoints(tmp_path)
        interim = place.with_name(f"{place.name}.new")
        if both:
            shutil.copytree(place, interim)
        else:
            place.rename(interim)
        assert trainer.load(tmp_path) == {"both": both}
    trainer.save(tmp_path, {"both": "neither"})
    assert [one.name for one in tmp_path.iterdir()] == ["step-00000001"]
    assert trainer.load(tmp_path) == {"both": "neither"}


def test_what_does_not_fit_or_cannot_be_written_is_refused(tmp_path):
    trainer, batch = make(ema_decay=0.9)
    trainer.step(*batch(0, 8))
    with pytest.raises(ValueError, match="no checkpoint there"):
        trainer.load(tmp_path)
    assert trainer.load(tmp_path, missing_ok=True) is None
    with pytest.raises(ValueError, match="extra holds what JSON has no words for.*set"):
        trainer.save(tmp_path, {"seen": {1}})
    with pytest.raises(ValueError, match="keep is the number of checkpoints"):
        trainer.save(tmp_path, keep=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: cannot be written"):
        trainer.save(tmp_path / "file")
    trainer.save(tmp_path)
    with pytest.raises(ValueError, match="the state is that of Adam, the optimizer is SGD"):
        make(optimizer=lambda p: flow.optim.SGD(p, lr=0.1))[0].load(tmp_path)
    with pytest.raises(ValueError, match="does not fit the model: missing.*unknown"):
        make("convnet")[0].load(tmp_path)


def wide():
    """A megabyte of state."""
    model = flow.nn.Sequential(flow.nn.Linear(8, 8192), flow.nn.Linear(8192, 2))
    batch = flow.ones(8, 8), flow.ones(8, 2)
    return trainer_of(model, lambda y, t: (y * t).mean(), batch, optimizer=adam), batch


def test_a_write_that_fails_beside_training_is_raised_by_the_next_step(tmp_path):
    trainer, batch = wide()
    trainer.step(*batch)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        trainer.save(tmp_path, wait=False)
        with pytest.raises(ValueError, match="the checkpoint could not be written: .*File too"):
            for _ in range(1000):
                trainer.step(*batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoints(tmp_path) == []


def test_a_job_ends_when_its_last_write_beside_training_fails(tmp_path):
    """Also where no step comes after it to raise the error."""
    command = [sys.executable, "-m", __name__, tmp_path, "500000"]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert ended.returncode != 0 and "the checkpoint could not be written" in ended.stderr


def test_a_job_killed_while_it_saves_keeps_the_last_good_checkpoint(tmp_path):
    job = subprocess.Popen([sys.executable, "-m", __name__, tmp_path], cwd=ROOT)
    end = time.monotonic() + 60
    try:
        while not (checkpoints(tmp_path) and list(tmp_path.glob(".step-*/rank-00000.safetensors"))):
            assert job.poll() is None and time.monotonic() < end
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    trainer, batch = wide()
    assert trainer.load(tmp_path) == {} and trainer.steps == 1
    trainer.step(*batch)
    trainer.save(tmp_path)
    assert not list(tmp_path.glob(".step-*"))
    # that of step 1 twice if the job was killed while the second took the place of the first
    assert {place.stem for place in checkpoints(tmp_path)} == {"step-00000001", "step-00000002"}


def test_what_a_rank_says_of_its_shard_is_checked_before_the_checkpoint_has_its_name(tmp_path):
    partial = begin(tmp_path, 1, "token", "{}")
    (partial / "rank-00000.json").write_text('{"tensors": {}, "pieces": [{"key": 3}]}')
    with pytest.raises(ValueError, match=r"'pieces\[0\].key' must be a string"):
        commit(partial, 1, {}, None)
    assert not checkpoints(tmp_path)


def test_what_is_no_file_or_folder_is_passed_over(tmp_path):
    """A link to nothing, a pipe that nobody writes, a file where a checkpoint could be."""
    trainer, batch = wide()
    for _ in range(3):
        trainer.step(*batch)
        trainer.save(tmp_path)
    (tmp_path / "step-00000009").write_text("no checkpoint")
    for steps, make in ((3, lambda path: path.symlink_to("nothing")), (2, os.mkfifo)):
        (shard,) = (tmp_path / f"step-{steps:08d}").glob("*.safetensors")
        shard.unlink()
        make(shard)
    assert trainer.load(tmp_path) == {} and trainer.steps == 1


if __name__ == "__main__":
    trainer, batch = wide()
    trainer.step(*batch)
    if len(sys.argv) > 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        trainer.save(sys.argv[1], wait=False)
        sys.exit()
    trainer.save(sys.argv[1])
    while True:
        trainer.save(f"{sys.argv[1]}", keep=1)
