"""The examples' data: real, the same on every rank, and shaped as the models take it."""

import numpy as np

from examples import data, library


def test_digits_keep_their_pixels():
    digits = data.Digits()
    assert digits.images.shape == (1797, 1, 32, 32)
    assert digits.images.dtype == np.float32
    assert abs(digits.images.mean()) < 1e-5
    assert abs(digits.images.std() - 1) < 1e-5
    assert set(digits.labels) == set(range(10))
    # Every 4 x 4 square is one pixel.
    assert np.array_equal(digits.images[..., ::4, ::4], digits.images[..., 3::4, 3::4])
    part = data.Digits(slice(100, 110), channels=3)
    assert np.array_equal(part.images, np.repeat(digits.images[100:110], 3, axis=1))


def test_text_is_the_library():
    text = bytes(library.library_text())
    assert len(text) == library.TEXT_BYTES
    assert b"def " in text
    assert b"import" in text


def test_text_targets_are_the_next_bytes():
    tokens, targets = (t.numpy() for t in next(iter(data.loader(data.Text(16), 4))))
    assert tokens.shape == targets.shape == (4, 16)
    assert np.array_equal(tokens[:, 1:], targets[:, :-1])


def test_an_epoch_has_every_item_once():
    batches = list(data.Batches(20, 4, range(10), slice(None), seed=0))
    assert [len(b) for b in batches] == [4] * 10
    assert sorted(sum(batches[:5], [])) == sorted(sum(batches[5:], [])) == list(range(20))
    assert batches[:5] != batches[5:]


def test_later_steps_and_some_rows_are_those_of_the_whole():
    whole = list(data.Batches(20, 4, range(8), slice(None), seed=3))
    assert list(data.Batches(20, 4, range(6, 8), slice(None), seed=3)) == whole[6:]
    for rows in (slice(1, 3), np.array([0, 2])):
        own = list(data.Batches(20, 4, range(8), rows, seed=3))
        assert own == [np.array(b)[rows].tolist() for b in whole]
    assert list(data.Batches(20, 4, range(8), slice(None), seed=4)) != whole
