"""Models of Hugging Face at their real size, planned without weights: `make bench-planning-hf`.

    python -m benchmarks.hf_planning [--only Llama-3-8B,...]

Each config is written to a file and planned as a user would, by `autoddl plan hf:FILE` in a process
of its own: seconds and CPU seconds of the whole command (start, trace, plan, known schemes), its
memory, the predicted step and the gap to the lower bound. Writes results/hf_planning.md; what is
not run keeps its row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autoddl._files import write_atomically
from autoddl.plans import Plan
from autoddl.plans.figures import figures
from benchmarks.box.results import machine, where_and_when

RESULTS = Path(__file__).parent / "results"
WHERE = "--cluster", "gcp_a100", "--nodes", "128", "--gpus-per-node", "8", "--batch", "1024"
MOST_S, MOST_GB = 30.0, 6.0
_LLAMA_3 = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
# As published; what is not named is the default of the model's type.
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        **_LLAMA_3, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32,
    },
    "Llama-3-70B": {
        **_LLAMA_3, "hidden_size": 8192, "intermediate_size": 28672,
        "num_hidden_layers": 80, "num_attention_heads": 64,
    },
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    },
}  # fmt: skip


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """One command, as a user types it."""
    with tempfile.TemporaryDirectory() as folder:
        file, output = Path(folder, "config.json"), Path(folder, "plan.json")
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "autoddl", "plan", f"hf:{file}", *WHERE]
        started = time.perf_counter()
        child = subprocess.Popen([*command, "--output", str(output)], stdout=subprocess.DEVNULL)
        _, status, spent = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with status {child.returncode}")
        plan = Plan.load(output)
    step_s, bound_s = figures(plan).iteration_s, plan.stage.search.lower_bound_s
    return {
        "operators": len(plan.stage.graph.ops),
        "wall_s": wall_s,
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "peak_gb": spent.ru_maxrss * 1024 / 1e9,
        "step_s": step_s,
        "gap": None if bound_s is None else step_s / bound_s - 1,
        "about": machine(),
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        "# Models of Hugging Face, planned without weights",
        "",
        "`autoddl plan hf:config.json`, the whole command, on 128 hosts of 8 `gcp_a100` devices,",
        f"a batch of 1024. Asked: at most {MOST_S:.0f} s and {MOST_GB:.0f} GB.",
        "",
        "| model | operators | s | CPU s | peak GB | holds | a step s | gap |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for name, row in rows.items():
        holds = row["wall_s"] <= MOST_S and row["peak_gb"] <= MOST_GB
        gap = "" if row["gap"] is None else f"{row['gap']:.1%}"
        lines.append(
            f"| {name} | {row['operators']} | {row['wall_s']:.1f} | {row['cpu_s']:.1f} "
            f"| {row['peak_gb']:.1f} | {'yes' if holds else '**no**'} | {row['step_s']:.2f} "
            f"| {gap} |"
        )
    told = dict.fromkeys(where_and_when(row["about"]) for row in rows.values())
    return "\n".join([*lines, "", *told])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(CONFIGS), help="names of models")
    only = parser.parse_args().only.split(",")
    if unknown := set(only) - CONFIGS.keys():
        parser.error(f"no model {', '.join(sorted(unknown))}: there are {', '.join(CONFIGS)}")
    file = RESULTS / "hf_planning.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for name in only:
        found[name] = measure(CONFIGS[name])
        print(name, found[name], flush=True)
        rows = {name: found[name] for name in CONFIGS if name in found}
        write_atomically(file, json.dumps(rows, indent=1) + "\n")
        write_atomically(RESULTS / "hf_planning.md", table(rows) + "\n")


if __name__ == "__main__":
    main()
