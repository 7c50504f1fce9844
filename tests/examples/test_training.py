"""The examples train, evaluate, save, and go on from what they saved on another mesh."""

import io
import re
import struct
from importlib import import_module
from importlib.util import find_spec

import pytest

from autoddl.runtime.jobs.launch import run_processes


def lines(script, mesh, *options):
    """What the example prints of its steps, by step: {name: value}."""
    nodes, gpus = map(int, mesh.split("x"))
    output = io.StringIO()
    words = ["-m", f"examples.{script}", "--mesh", mesh, *options]
    status = run_processes(words, nodes * gpus, output=output, prefix=False, timeout=250)
    assert status == 0, output.getvalue()
    told = {}
    for step, text in re.findall(r"^step (\d+): (.*)$", output.getvalue(), re.MULTILINE):
        values = re.findall(r"([a-z ]+) ([\d.e+-]+)(?:, |$)", text)
        told.setdefault(int(step), {}).update((name.strip(), float(v)) for name, v in values)
    return told


def test_gpt_goes_on_with_one_device(tmp_path):
    state = ("--checkpoints", str(tmp_path))
    first = lines("train_gpt", "2x2", "--steps", "2", "--every", "2", *state)
    later = lines("train_gpt", "1x1", "--steps", "4", "--every", "2", *state)
    assert list(first) == [2]
    assert list(later) == [4]
    assert first[2]["held out loss"] == pytest.approx(5.5, abs=0.5)  # 256 bytes: log 256 at first
    assert later[4]["held out loss"] < first[2]["held out loss"]


def test_resnet(tmp_path):
    """With TensorBoard's file where tensorboardX is installed, which nothing else needs."""
    logs = ("--logs", str(tmp_path)) if find_spec("tensorboardX") else ()
    told = lines("train_resnet", "1x1", "--steps", "2", "--every", "2", "--batch", "16", *logs)
    assert list(told) == [2]
    assert 0 <= told[2]["held out accuracy"] <= 1
    for file in tmp_path.glob("events.*"):
        logged = scalars(file.read_bytes())
        assert logged.keys() == {2}
        assert logged[2] == {name: pytest.approx(v, rel=1e-3) for name, v in told[2].items()}
    assert len([*tmp_path.iterdir()]) == len(logs) // 2


def scalars(records):
    """Of an events file, by step: each record is a length, 4 bytes, an event, and 4 bytes."""
    event_pb2 = import_module("tensorboardX.proto.event_pb2")
    told, at = {}, 0
    while at < len(records):
        (size,) = struct.unpack_from("<Q", records, at)
        event = event_pb2.Event.FromString(records[at + 12 : at + 12 + size])
        for value in event.summary.value:
            told.setdefault(event.step, {})[value.tag.replace("_", " ")] = value.simple_value
        at += size + 16
    return told
