"""The rules hold for OneFlow itself: shards on real processes, forward and backward."""

import pytest


@pytest.mark.parametrize(
    ("nodes", "gpus", "sample"),
    [
        (1, 2, 1),
        pytest.param(1, 2, 0, marks=pytest.mark.full),
        pytest.param(2, 2, 12, marks=pytest.mark.full),
        pytest.param(1, 3, 0, marks=pytest.mark.full),
    ],
)
def test_every_signature_on_real_processes(launch, nodes, gpus, sample):
    out = launch("rules", nodes * gpus, str(nodes), str(gpus), str(sample), timeout=280)
    assert "checked" in out
    print(out.splitlines()[-1])


@pytest.mark.full
def test_all_products_of_signatures_on_three_axes(launch):
    out = launch("rules", 8, "2", "4", "0", "products", timeout=280)
    assert "checked 432 signatures of 2 operators" in out
