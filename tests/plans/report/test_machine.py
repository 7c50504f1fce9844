"""What is said of a machine's numbers."""

import dataclasses

from autoddl.plans.report.machine import estimates, estimates_notes
from tests.clusters import cluster


def test_estimates_are_named():
    (note,) = estimates_notes(cluster("laptop", 2, 2))
    assert note == "estimates in laptop (`autoddl calibrate` measures them): all numbers"
    found = estimates(cluster("gcp_a100", 2, 4))
    assert {"device.launch_s", "inter.alpha_s", "device.flops_per_s.float16"} <= found.keys()
    assert "device.memory_bytes" not in found
    (note,) = estimates_notes(cluster("gcp_a100", 2, 4))
    assert note.endswith(": all numbers but memory of a device")
    (note,) = estimates_notes(cluster("piz_daint", 2, 1))
    assert note.endswith(": all numbers but memory of a device and bandwidth between hosts")
    (note,) = estimates_notes(cluster("two_cores", 2, 4))
    assert note.endswith(": bandwidth between hosts, a message between hosts, a collective "
                         "between hosts starts in")  # fmt: skip


def test_what_is_measured_or_not_used_is_no_estimate():
    measured = cluster("two_cores", 1, 4)
    assert not estimates(measured) and not estimates_notes(measured)
    assert "inter.beta_s_per_byte" in estimates(measured.with_shape(nodes=2))
    unknown = dataclasses.replace(cluster("laptop", 2, 2), sources={})
    assert not estimates(unknown)
