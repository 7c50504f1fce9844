"""Models by Hugging Face's configuration files: planned without weights, and trained."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner

import autoddl
from autoddl.graph.graph import Graph
from autoddl.plans import Plan
from autoddl.runtime.entry import call_entry
from autoddl.tools.cli import main
from tests.runtime.random_plans import cluster_of

VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 99, "tie_word_embeddings": True,
}  # fmt: skip
MIXTRAL = {
    **LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4, "tie_word_embeddings": False,
}  # fmt: skip
MISTRAL = {
    **LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_kv": 8,
    "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99, "decoder_start_token_id": 0,
}  # fmt: skip

GPT_NEO = {
    "model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "hidden_size": 32,
    "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
    "window_size": 8, "vocab_size": 99,
}  # fmt: skip


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes a config.json into the current folder."""
    monkeypatch.chdir(tmp_path)
    return lambda fields: (tmp_path / "config.json").write_text(json.dumps(fields))


def run(*words):
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        pytest.param(BERT, 12, marks=pytest.mark.full),
        *(
            pytest.param(fields, 4, marks=pytest.mark.full)
            for fields in (MIXTRAL, LLAMA, MISTRAL, T5)
        ),
        pytest.param(VIT, 8, marks=pytest.mark.full),  # trained below
    ],
)
def test_a_graph_has_the_files_model_in_the_batch_asked_for(config, fields, rows):
    pytest.importorskip("transformers", reason="needs transformers")
    config(fields)
    done = run("trace", "hf:config.json:24", "--batch", str(rows), "-o", "graph.json")
    assert done.exit_code == 0, done.output
    graph, (model, *_) = Graph.load("graph.json"), call_entry("hf:config.json")
    assert graph.batch == rows
    known = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert {op.attrs["name"]: graph.spec(op).outputs[0].shape for op in graph.params} == known
    words = graph.tensors["input.0"].spec.shape
    assert words == ((rows, 24) if fields is not VIT else (rows, 3, 32, 32))


def test_it_computes_what_transformers_own_model_does(config):
    """Losses of a causal model, in steps of one process."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config({**LLAMA, "num_hidden_layers": 1})
    model, example, loss = call_entry("hf:config.json:24")
    own = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained("config.json"))
    own.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    trainer = autoddl.parallelize(
        model, cluster_of(1, 1), example=example, loss=loss,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    for seed in range(3):
        words = torch.randint(0, 99, (8, 24), generator=torch.Generator().manual_seed(seed))
        batch = {"input_ids": words, "labels": words}
        optimizer.zero_grad()
        value = own(**batch).loss
        value.backward()
        optimizer.step()
        assert float(trainer.step(batch)) == pytest.approx(value.item(), rel=1e-5)


def test_it_is_planned_and_trained(config):
    pytest.importorskip("transformers", reason="needs transformers")
    config({**VIT, "num_hidden_layers": 1})
    for asked, back_end in ((), "torch"), (("--back-end", "oneflow"), "oneflow"):
        done = run("plan", "hf:config.json", "--cluster", "laptop", "-o", "plan.json", *asked)
        assert done.exit_code == 0 and "ViTForImageClassification on laptop 2x2" in done.output
        assert Plan.load("plan.json").back_end == back_end
    one = ("--cluster", "laptop", "--nodes", "1", "--gpus-per-node", "1")
    done = run("train", "hf:config.json", *one, "--steps", "2")
    assert done.exit_code == 0 and "step   2  loss" in done.output, done.output


@pytest.mark.full
def test_a_number_made_on_the_models_device_is_known_where_the_model_has_memory(config):
    """GPT-Neo hides by `torch.tensor(least, device=...)`, and looks attention up among its own."""
    pytest.importorskip("transformers", reason="needs transformers")
    config(GPT_NEO)
    done = run("plan", "hf:config.json:16", "--cluster", "laptop", "--back-end", "torch")
    assert done.exit_code != 0 and "only known where the model has memory" in done.output
    assert "transformer.h.0" in done.output and "Traceback" not in done.output
    model, example, loss = call_entry("hf:config.json:16")
    assert autoddl.trace(model, example, loss=loss).params


def test_what_cannot_be_made_is_refused(config, monkeypatch):
    def error(name="hf:config.json"):
        done = run("plan", name, "--cluster", "laptop")
        assert done.exit_code != 0
        return done.output

    assert "no-such.json: no such file" in error("hf:no-such.json")
    config({**BERT, "architectures": ["BertModel"]})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        assert "pip install transformers" in error()
    pytest.importorskip("transformers", reason="needs transformers")
    assert "what a BertModel learns is not known here" in error()
    config({"model_type": "no such"})
    assert "config.json: " in error()
    assert torch.get_default_device().type == "cpu"
