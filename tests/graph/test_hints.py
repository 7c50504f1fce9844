"""Hints: their texts, the paths that they name, and what they find in a graph."""

import pytest

from autoddl.graph.demands import find_demands
from autoddl.graph.hint_file import HINT_FILE, load_hints
from autoddl.graph.hints import Hint, HintAt, as_hints
from tests.graphs import mlp

GRAPH = mlp(16, (8, 16, 16))
TEXTS = (
    "replicate()", "replicate(4)", "split()", "split(2)", "split(2, dim=0)", "split(dim=1)",
    "stage()", "(B)", "(B, S0)", "(S1, P, B)", "least",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_hint_is_what_its_text_says(text):
    assert str(Hint.parse(text)) == text
    assert Hint.parse(str(Hint.parse(text))) == Hint.parse(text)


def test_brackets_may_be_left_out():
    assert Hint.parse("split") == Hint.parse(" split( ) ") == Hint("split")
    assert Hint.parse("stage") == Hint("stage")


@pytest.mark.parametrize(
    "text", ["", "splits(2)", "split(0)", "replicate(2, dim=1)", "(B, S)", "2"]
)
def test_what_is_no_hint_is_refused(text):
    with pytest.raises(ValueError, match="hint|number"):
        Hint.parse(text)


def test_a_star_is_one_part_of_a_path():
    def names(where: str, path: str) -> bool:
        return HintAt(where, Hint("split")).matches(path)

    assert names("blocks.*.mlp", "blocks.3.mlp") and names("*.weight", "head.weight")
    assert not names("blocks.*", "blocks.3.mlp") and not names("*", "")
    assert names(".", "") and not names(".", "head")


def test_hints_are_given_as_texts_and_lists():
    (first, second) = as_hints({"head": ["split(2)", Hint("replicate", 2)]})
    assert (first.hint, second.hint) == (Hint("split", 2), Hint("replicate", 2))
    assert as_hints((first, second)) == (first, second)
    for wrong in (["head"], {"head": 2}, {2: "split"}):
        with pytest.raises(ValueError, match="hints"):
            as_hints(wrong)


def test_least_is_for_hosts_and_nothing_else_is():
    (at,) = as_hints({"host 3": "least"})
    assert at.host == 3 and str(at) == "least for 'host 3' (hints)" and not at.matches("head")
    for given in ({"head": "least"}, {"host 3": "split(2)"}, {"host 03": "least"}, {".": "least"}):
        with pytest.raises(ValueError, match="'least', and only that, is for a host"):
            as_hints(given)
    with pytest.raises(ValueError, match="names no module"):  # which one may call so
        find_demands(GRAPH, as_hints({"host": "split(2)"}))


def test_a_file_has_hints_and_is_their_source(tmp_path):
    file = tmp_path / "my.json"
    given = {"head": "split(2)", "x": ["stage()", "replicate(2)"], "host 0": "least"}
    HINT_FILE.save(as_hints(given), file)
    assert [str(own) for own in load_hints(file)] == [
        "split(2) for 'head' (my.json)",
        "stage() for 'x' (my.json)",
        "replicate(2) for 'x' (my.json)",
        "least for 'host 0' (my.json)",
    ]


def test_a_hint_that_names_nothing_is_refused_with_what_is_near():
    module = next(op.module for op in GRAPH.ops if op.module)
    with pytest.raises(ValueError, match=f"names no module.*{module}"):
        find_demands(GRAPH, as_hints({module + "x": "split(2)"}))


def test_a_split_of_what_has_no_weights_is_refused():
    name = next(op.attrs["name"] for op in GRAPH.params if op.attrs["name"].endswith("bias"))
    with pytest.raises(ValueError, match="it is for weights"):
        find_demands(GRAPH, as_hints({name: "split(2)"}))


def test_defaults_are_for_what_no_other_hint_names():
    modules = list(dict.fromkeys(op.module for op in GRAPH.ops if op.module))
    found = find_demands(GRAPH, as_hints({modules[0]: "split(2)", "default": "replicate()"}))
    kinds = {op.module: {d.kind for d in found.get(op.name, ())} for op in GRAPH.ops}
    assert kinds[modules[0]] <= {"weight"} and kinds[modules[1]] == {"batch"}
