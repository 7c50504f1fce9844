"""Models of torchvision and transformers, in small forms, by several plans on 2x2; `full`."""

import json
import os
import subprocess
import sys

import pytest

from tests.pytorch import zoo
from tests.ranks import ROOT


@pytest.mark.full
@pytest.mark.timeout(7500)
@pytest.mark.parametrize("kind", ["traced", "opaque"])
def test_models_nobody_here_wrote_train_as_in_one_process(kind):
    pytest.importorskip("torchvision", reason="needs torchvision")
    pytest.importorskip("transformers", reason="needs transformers")
    names = {"traced": zoo.TRAINED, "opaque": zoo.OPAQUE}[kind]
    words = ["-m", "benchmarks.torch_models", *names]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=7200, check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert not [row for row in rows if "error" in row]
    assert all(bool(row["opaque"]) == (kind == "opaque") for row in rows if "opaque" in row)
    trained = [row for row in rows if "scheme" in row]
    assert all(row["ok"] for row in trained), [row for row in trained if not row["ok"]]
    assert {row["model"] for row in trained} == set(names)
