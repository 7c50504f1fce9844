"""A journal is read by another process as it was written."""

import itertools
import os

from autoddl.runtime.jobs.journal import Journal


def test_the_record_keeps_the_last_entries_in_order():
    descriptor = os.memfd_create("journal")
    writes, reads = Journal(descriptor), Journal(descriptor)
    assert reads.record() == []
    with writes.inside("step"):
        writes.collective("all_reduce of ranks 0, 1 for head")
    times, texts = zip(*reads.record(), strict=True)
    assert texts == ("step 1 begins", "all_reduce of ranks 0, 1 for head", "step 1 ends")
    assert all(a <= b for a, b in itertools.pairwise(times))
    for n in range(1000):
        writes.collective(f"all_gather {n}")
    kept = [text for _, text in reads.record()]
    assert kept == [f"all_gather {n}" for n in range(1000 - len(kept), 1000)]
    assert len(kept) > 100
    assert reads.read().collectives == 1001
    assert reads.read().collective == "all_gather 999"
