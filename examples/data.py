"""Real data that needs no download, and the batches of it that a rank reads.

Handwritten digits come with scikit-learn; the text is the source of Python's own library.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import oneflow as flow
from numpy.typing import NDArray
from oneflow.utils.data import DataLoader, Dataset, Sampler

from .library import library_text


class Digits(Dataset):
    """scikit-learn's 1797 digits: image [channels, 32, 32], standardised, and label from 0 to 9.

    The originals are 8 x 8; each pixel becomes a 4 x 4 square.
    part: of the digits, such as slice(1500, None)
    """

    def __init__(self, part: slice = slice(None), channels: int = 1) -> None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        squares = np.kron(images.reshape(-1, 8, 8), np.ones((4, 4)))
        standard = ((squares - squares.mean()) / squares.std()).astype(np.float32)
        self.images = np.repeat(standard[part, None], channels, axis=1)
        self.labels = labels[part].astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[flow.Tensor, flow.Tensor]:
        return flow.tensor(self.images[index]), flow.tensor(self.labels[index])


class Text(Dataset):
    """Windows of Python's library: bytes [length], and those that follow each, as int64.

    part: of the text's 2,000,000 bytes
    """

    def __init__(self, length: int, part: slice = slice(None)) -> None:
        self.length = length
        self.text = library_text()[part].astype(np.int64)

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> tuple[flow.Tensor, flow.Tensor]:
        start = index * self.length
        window = flow.tensor(self.text[start : start + self.length + 1])
        return window[:-1], window[1:]


class Batches(Sampler):
    """The items of each step's batch: of the global batch, in a new order every epoch, `rows`.

    A step's batch depends on nothing but the step and the seed, so that training that goes on at
    step 1000 reads what it would have read, whatever mesh it is on.
    """

    def __init__(
        self, count: int, batch: int, steps: range, rows: slice | NDArray[np.intp], seed: int
    ) -> None:
        self.count, self.batch, self.steps = count, batch, steps
        self.rows, self.seed = rows, seed

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[int]]:
        for step in self.steps:
            epoch, place = divmod(step, self.count // self.batch)
            order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
            yield order[place * self.batch :][: self.batch][self.rows].tolist()


def loader(
    data: Dataset,
    batch: int,
    steps: range | None = None,
    rows: slice | NDArray[np.intp] = slice(None),
    seed: int = 0,
) -> DataLoader:
    """A DataLoader of batches of `batch` rows: of one epoch, or of `steps`.

    rows: that this rank reads of each; `trainer.rows` in training, all in evaluation
    """
    count = len(data)  # type: ignore[arg-type]
    steps = range(count // batch) if steps is None else steps
    return DataLoader(data, batch_sampler=Batches(count, batch, steps, rows, seed))
