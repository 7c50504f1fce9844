"""The fit finds the numbers behind noisy medians, and says when it does not describe them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoddl.cost.collectives import CommModel
from autoddl.runtime.measure.schedule import SENDING, Shape
from autoddl.tools.calibration.fit import fit_links
from tests.clusters import cluster
from tests.runtime.measure.synthetic import INTER, INTRA, SHUFFLE, medians

FIELDS = ("alpha_s", "beta_s_per_byte", "call_s", "transfer_s")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 2)])
def test_known_numbers_are_found_in_spite_of_noise_and_outliers(shape, seed):
    fit = fit_links(medians(*shape, seed=seed))
    assert fit.intra is not None and fit.inter is not None
    for link, true, name in ((fit.intra, INTRA, "intra"), (fit.inter, INTER, "inter")):
        assert link.beta_s_per_byte == pytest.approx(true.beta_s_per_byte, rel=0.15)
        # four messages beside the start: one alone is known less well than both
        known = true.call_s + 3 * true.alpha_s
        assert link.call_s + 3 * link.alpha_s == pytest.approx(known, rel=0.15)
        for field in FIELDS:
            low, high = fit.intervals[f"{name}.{field}"]
            assert low <= getattr(link, field) <= high
            assert low <= 1.1 * getattr(true, field) and high >= 0.9 * getattr(true, field)
    assert fit.shuffle_s_per_byte == pytest.approx(SHUFFLE, rel=0.3)
    assert set(fit.errors) == {*SENDING, "send"} and max(fit.errors.values()) < 0.1


def test_without_noise_the_numbers_are_exact():
    fit = fit_links(medians(4, 2, noise=0.0, outliers=0.0))
    assert fit.inter is not None and fit.intra is not None
    for field in FIELDS:
        assert getattr(fit.inter, field) == pytest.approx(getattr(INTER, field), rel=1e-3)
        assert getattr(fit.intra, field) == pytest.approx(getattr(INTRA, field), rel=1e-3)
    assert fit.r2 == pytest.approx(1.0, abs=1e-6) and fit.warnings == ()


def test_a_link_that_nothing_used_is_not_invented():
    one_host = fit_links(medians(1, 4))
    assert one_host.inter is None and one_host.intra is not None
    single = fit_links(medians(4, 1))
    assert single.intra is None and single.inter is not None


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_no_number_is_negative_and_prices_grow_with_the_bytes(seed):
    """Whatever was measured: here seconds that have nothing to do with the model."""
    rng = np.random.default_rng(seed)
    fit = fit_links({p: float(10 ** rng.uniform(-6, 0)) for p in medians(2, 2)})
    assert fit.intra is not None and fit.inter is not None
    for link in (fit.intra, fit.inter):
        assert all(getattr(link, field) >= 0 for field in FIELDS) and link.beta_s_per_byte > 0
    where = dataclasses.replace(cluster("laptop", 2, 2), intra=fit.intra, inter=fit.inter)
    for kind in SENDING:
        for axes in ((0,), (1,), (0, 1)):
            latency, per_byte = CommModel(where).price(kind, axes)
            assert latency >= 0 and per_byte > 0


def test_one_collective_that_is_off_is_named():
    found = medians(4, 2, outliers=0.0)
    slow = {p: s * (4 if p.kind == "all_to_all" else 1) for p, s in found.items()}
    named = [w for w in fit_links(slow).warnings if " is off by " in w]
    assert named and all(w.startswith("all_to_all") for w in named)


def test_one_group_shape_that_is_off_is_named():
    shape = Shape(2, 2, 1)
    found = {
        p: s * (3 if p.kind == "all_gather" and p.shape == shape else 1)
        for p, s in medians(4, 2, outliers=0.0).items()
    }
    (warning,) = fit_links(found).warnings
    assert warning.startswith("all_gather in groups of 2x2, 1 at once is off by")


def test_a_fit_of_noise_says_so():
    rng = np.random.default_rng(1)
    warnings = fit_links({p: float(10 ** rng.uniform(-6, 0)) for p in medians(2, 2)}).warnings
    assert "explains only R2" in warnings[0]


def test_one_message_size_is_too_few():
    found = medians(2, 2)
    size = min(p.bytes for p in found)
    with pytest.raises(ValueError, match="at least two message sizes inside a host"):
        fit_links({p: s for p, s in found.items() if p.bytes == size})
    with pytest.raises(ValueError, match="no finished measurement"):
        fit_links({})


def test_messages_too_small_to_tell_the_bandwidth_are_said_to_be():
    small = {p: s for p, s in medians(2, 2, outliers=0.0).items() if p.bytes < 10_000}
    warnings = fit_links(small).warnings
    assert any("do not tell the bandwidth of intra" in w for w in warnings)
    enough = fit_links(medians(2, 2, outliers=0.0)).warnings
    assert not any("bandwidth" in w for w in enough)
