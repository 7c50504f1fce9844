"""The results page."""

from __future__ import annotations

from collections.abc import Sequence

from .cases import faults
from .running import SLACK_SECONDS, Ended


def table(every: Sequence[Ended]) -> str:
    limits = sorted({one.limit_s for one in every})
    over = [one for one in every if not one.fault.goes_on]
    named = sum(one.is_right for one in every)
    seconds = sorted(one.seconds for one in over)
    lines = [
        "# Faults in training jobs",
        "",
        f"`make bench-faults`: {len(every)} jobs of two or four processes with a fault in each, "
        f"with limits of {' and '.join(f'{limit:g} s' for limit in limits)} without progress. A "
        f"fault is bad if its job hangs (goes on {SLACK_SECONDS:g} s longer than the limit; 60 s "
        "where a rank never comes), has status 0 though it had to fail or another though it had to "
        "go on, or if the first line that the job prints of its failure, its framework's lines "
        "included, does not name the rank or link and what it did. Three kinds have more than one "
        "right answer: a reset connection has two ends, of which the one that ends first is named; "
        "where the network parts any of the links that are down is; and a rank that has left with "
        'status 0 before autoddl was there "has not come". What a script raises before it '
        "imports autoddl Python tells first, and then the launcher which rank that was. All "
        "import OneFlow first, whose import waits for all ranks. A link that is down for a while "
        "is no fault: the job has to go on, as it does where one loses 5 % of its packets.",
        "",
        f"The benchmark lists {len(list(faults()))} faults; those that are not below have not been "
        "run with this code.",
        "",
        f"- hangs: {sum(one.is_hang for one in every)}",
        f"- another cause named first, or none: {len(every) - named}",
        f"- processes, namespaces or files left: {sum(bool(one.left) for one in every)}",
        f"- {len(over)} jobs had to end, after {seconds[len(seconds) // 2] if seconds else 0:g} s "
        f"in the median; {len(every) - len(over)} had to go on",
        "",
        "| fault | rank | when | mesh | seconds | status | good | first cause |",
        "| --- | --- | --- | --- | ---: | ---: | --- | --- |",
    ]
    for one in every:
        fault = one.fault
        line = one.line.replace("|", "/")[:200]
        lines.append(
            f"| {fault.kind} | {fault.rank} | {fault.when} | {fault.mesh} | {one.seconds:.1f} | "
            f"{one.status} | {'yes' if one.is_good else 'NO'} | {line} |"
        )
    return "\n".join(lines) + "\n"
