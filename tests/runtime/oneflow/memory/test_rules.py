from autoddl.planner.options import PlanOptions
from autoddl.planner.planner import find_plan
from autoddl.plans.stage_figures import stage_figures
from autoddl.runtime.oneflow.memory.compiled.step import CompiledTape, compiled_peaks
from autoddl.runtime.oneflow.memory.rules import compiled_bytes
from tests.clusters import cluster
from tests.graphs import attention


def test_one_way_to_chain_is_enough_where_it_needs_less_than_the_executor(monkeypatch):
    """Both were half of the time in which GPT-0.35B is planned within a second."""
    options = PlanOptions(baselines=False, micro_batches=4, overlap=False)
    plan = find_plan(attention(2, 32, 16, 64, 4), cluster("laptop", 2, 2), options)
    built: list[str] = []

    def build(self, of=CompiledTape.build):
        built.append(self.chains)
        return of(self)

    monkeypatch.setattr(CompiledTape, "build", build)
    step = stage_figures(plan.stage).step
    assert compiled_bytes(step, enough=2**62) >= compiled_bytes(step)
    assert built == ["tasks", "operators"]
    assert compiled_bytes(step) == min(peak.bytes for peak in compiled_peaks(step).values())
    assert len(built) == 2  # each is kept with the step
