"""torch's recurrent networks, which are written step by step."""

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import autoddl  # noqa: E402
from tests.pytorch.models import same_gradients  # noqa: E402


class Reads(nn.Module):
    """The steps' outputs, and the last states where it `reads` them."""

    def __init__(self, kind, reads, **options):
        super().__init__()
        self.net, self.reads = getattr(nn, kind)(6, 4, **options), reads

    def forward(self, x):
        steps, state = self.net(x)
        found = (steps if self.net.batch_first else steps.transpose(0, 1)).mean(1)
        for last in state if isinstance(state, tuple) else (state,):
            found = found + last.mean((0, 2)).unsqueeze(1) if self.reads else found
        return found


WAYS = [
    {"batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 2, "bias": False, "batch_first": True},
]
CASES = [("LSTM", {"proj_size": 3, "bidirectional": True}), ("RNN", {"nonlinearity": "relu"})]
CASES += list(zip(("RNN", "LSTM", "GRU"), WAYS, strict=True))
OTHERS = [(k, way) for k in ("LSTM", "GRU", "RNN") for way in WAYS if (k, way) not in CASES]
CASES += [pytest.param(*other, marks=pytest.mark.full) for other in OTHERS]


@pytest.mark.parametrize(("kind", "options"), CASES, ids=str)
def test_each_gives_what_torch_gives(kind, options):
    model = Reads(kind, True, **options)
    x = torch.randn((3, 5, 6) if model.net.batch_first else (5, 3, 6))
    same_gradients(model, x, torch.randn(model(x).shape))


def test_states_that_nobody_reads_are_not_made():
    x, target = torch.zeros(4, 5, 6), torch.zeros(4, 4)
    for reads, count in (False, 1), (True, 3):
        model = Reads("LSTM", reads, batch_first=True)
        graph = autoddl.trace(model, x, target, loss=nn.functional.mse_loss)
        assert sum(op.kind == "stack" for op in graph.ops) == count


class Cells(nn.Module):
    """Takes the steps itself."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LSTMCell(6, 4), nn.GRUCell(4, 4, bias=False)
        self.three, self.four = nn.RNNCell(4, 4), nn.RNNCell(4, 4, nonlinearity="relu")

    def forward(self, x):
        h = c = g = r = q = x.new_zeros(x.shape[0], 4)
        for t in range(3):
            h, c = self.one(x[:, t], (h, c))
            g = self.two(h, g)
            r = self.three(g, r)
            q = self.four(r, q)
        return q + c


def test_cells_give_what_torchs_give():
    same_gradients(Cells(), torch.randn(4, 3, 6), torch.randn(4, 4))
