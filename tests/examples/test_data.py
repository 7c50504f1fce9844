"""The demo's data: real, the same on every rank, and shaped as the models take it."""

import numpy as np

from examples import data


def test_digits_keep_their_pixels():
    images, labels = data.digits()
    assert images.shape == (1797, 1, 32, 32)
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-5
    assert abs(images.std() - 1) < 1e-5
    assert set(labels) == set(range(10))
    # Every 4 x 4 square is one pixel.
    assert np.array_equal(images[..., ::4, ::4], images[..., 3::4, 3::4])


def test_text_is_the_library():
    text = bytes(data.library_text())
    assert len(text) == data.TEXT_BYTES
    assert b"def " in text
    assert b"import" in text


def test_batches_are_the_same_for_the_same_seed():
    for make in (lambda s: data.digit_batches(8, 3, s), lambda s: data.text_batches(4, 16, 3, s)):
        first, again, other = list(make(5)), list(make(5)), list(make(6))
        assert len(first) == 3
        for (x, y), (x2, y2) in zip(first, again, strict=True):
            assert np.array_equal(x, x2)
            assert np.array_equal(y, y2)
        assert not np.array_equal(first[0][0], other[0][0])


def test_text_targets_are_the_next_bytes():
    x, y = next(data.text_batches(4, 16, 1))
    assert x.shape == y.shape == (4, 16)
    assert np.array_equal(x[:, 1:], y[:, :-1])
