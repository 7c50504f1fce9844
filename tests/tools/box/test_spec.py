"""What describes a box, without one."""

import os

import pytest

from autoddl.tools.box import BoxSpec, LinkBytes, format_rate, parse_rate
from autoddl.tools.box import record as records
from autoddl.tools.box.record import Owner, Record, all_records, find_record


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 2e8), ("1gbit", 1e9), ("512 kbit", 512e3), ("2.5Gbit", 2.5e9)]
)
def test_rates(text, rate):
    assert parse_rate(text) == rate
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize("text", ["", "fast", "200", "200mb", "-1mbit", "mbit"])
def test_what_is_no_rate(text):
    with pytest.raises(ValueError, match="200mbit"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 1, None), "1 to 250 hosts, got 0"),
        ((2, 0, None), "at least one process"),
        ((2, 1, 10.0), "at least 100kbit"),
        ((2, 1, (1e8, 10.0)), "at least 100kbit"),
        ((3, 1, (1e8, 5e7)), "2 rates for 3 hosts"),
        ((2, 1, None, "a/b"), "cannot name a box"),
    ],
)
def test_a_bad_box(values, message):
    with pytest.raises(ValueError, match=message):
        BoxSpec(*values)


def test_addresses_and_namespaces_differ():
    spec = BoxSpec(250, 2, None)
    assert len(set(spec.namespaces)) == 251
    assert len({spec.address(i) for i in range(250)} | {spec.gateway(i) for i in range(250)}) == 500


def test_payload_is_what_is_left_without_headers():
    moved = LinkBytes(10_066, 2, 500, 1) - LinkBytes(66, 1, 0, 0)
    assert (moved.sent_payload, moved.received_payload) == (10_000 - 66, 500 - 66)


def test_records(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "boxes")
    record = Record(BoxSpec(2, 2, (1e8, 5e7)), Owner.me())
    assert find_record("box") is None
    record.claim()
    assert find_record("box") == record
    assert not record.is_stale
    with pytest.raises(FileExistsError):
        record.claim()
    # the same process number, started at another time: the owner is gone
    Record(record.spec, Owner(os.getpid(), Owner.me().started + 1)).save()
    (found,) = all_records()
    assert found.is_stale
    record.path.write_text("{")
    with pytest.raises(ValueError, match="does not describe a box"):
        find_record("box")
    record.remove()
    assert all_records() == []
