"""`module:function` names: what is found, and what is said of what is not."""

import sys

import pytest

from autoddl.runtime.entry import call_entry

GOOD = """
from textwrap import dedent

def small(batch=4):
    return "model", ([0] * batch, "target"), lambda output, target: 0.0

def fixed():
    return small(2)

def bare():
    return "model"

def unpaired():
    return "model", ("x",), print
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current directory with a module `zoo`, and one that cannot be imported."""
    (tmp_path / "zoo.py").write_text(GOOD)
    (tmp_path / "broken.py").write_text("import not_there_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("zoo", "broken"):
        sys.modules.pop(name, None)


def test_the_current_directory_is_searched(here):
    model, example, loss = call_entry("zoo:small")
    assert model == "model"
    assert len(example[0]) == 4
    assert loss(None, None) == 0.0


def test_only_a_module_s_own_functions_are_offered(here):
    with pytest.raises(ValueError, match="it has small, fixed, bare, unpaired$"):
        call_entry("zoo:nothing")


def test_the_batch_is_passed(here):
    assert len(call_entry("zoo:small", 32)[1][0]) == 32


@pytest.mark.parametrize(
    ("name", "batch", "expected"),
    [
        ("zoo", None, "write module:function"),
        (":small", None, "write module:function"),
        ("nowhere:small", None, "there is no module 'nowhere'"),
        ("zoo.deep:small", None, "there is no module 'zoo.deep'"),
        ("zoo:smal", None, "did you mean zoo:small?"),
        ("zoo:qqq", None, "it has small, fixed, bare, unpaired"),
        ("zoo:fixed", 3, "takes no argument 'batch'"),
        ("zoo:bare", None, "but it returned str"),
        ("zoo:unpaired", None, "but it is (str)"),
        ("broken:small", None, "imports 'not_there_at_all', which is not installed"),
    ],
)
def test_mistakes_are_explained(here, name, batch, expected):
    with pytest.raises(ValueError) as error:
        call_entry(name, batch)
    assert expected in str(error.value)


def test_without_oneflow_the_way_out_is_named(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "oneflow", None)
    (here / "broken.py").write_text("import oneflow")
    with pytest.raises(ValueError, match="needs OneFlow, which is not installed here"):
        call_entry("broken:small")
