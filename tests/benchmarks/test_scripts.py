"""Every script of the benchmarks can still be imported, and says what it takes."""

import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("oneflow", reason="benchmarks run models")
ROOT = Path(__file__).parents[2]
SCRIPTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
    if 'if __name__ == "__main__"' in path.read_text()
    and not path.stem.startswith("torch_")  # `tests/pytorch/test_scripts.py` has these
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.delitem(sys.modules, script, raising=False)  # runpy warns of a second import
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(script, run_name="__main__")
    assert ended.value.code == 0 and "usage:" in capsys.readouterr().out
