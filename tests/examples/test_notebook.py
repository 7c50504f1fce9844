"""The notebook's cells run from top to bottom, and none has output in the repository."""

import json
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

NOTEBOOK = Path(__file__).parents[2] / "examples" / "plan.ipynb"


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell()
    results = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            results.append(shell.run_cell("".join(cell["source"])))
            results[-1].raise_error()
    printed = capsys.readouterr().out
    assert "lower bound" in printed
    assert "55 MB: a step takes" in printed
    assert "</html>" in (tmp_path / "plan.html").read_text()
    assert any("plan.html" in getattr(r.result, "src", "") for r in results)
