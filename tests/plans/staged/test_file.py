import json

import pytest

from autoddl.plans.staged import StagedPlan
from tests.plans.staged.example import STAGED, planned


def test_file_is_whole_and_the_same_again(tmp_path):
    STAGED.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    again = StagedPlan.from_json(data)
    assert again.to_json() == STAGED.to_json()
    assert again.iteration_s == STAGED.iteration_s
    assert planned().to_json() == STAGED.to_json()
    for change, message in (
        ({"version": 9}, "not a plan with stages of version 1"),
        ({"layers": data["layers"][1:]}, "are not the 3 layers in order"),
        ({"cluster": {**data["cluster"], "nodes": 3}}, "every device of laptop 3x2"),
    ):
        with pytest.raises(ValueError, match=message):
            StagedPlan.from_json({**data, **change})
    del data["graph"]
    with pytest.raises(ValueError, match="not a whole plan file"):
        StagedPlan.from_json(data)
