"""What passes between the parts of a pipeline: tensors forward, their gradients back.

To a part of another stage a tensor travels (`transfers.py`); between two parts of one stage, which
an interleaved pipeline has, it is redistributed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...plans.figures import Link, figures
from ...plans.schedule.orders import Action
from ..execution.executor import sent_key
from ..part import Job, Outgoing, Part
from .redistribute import LocalFn, prepare
from .transfers import Resharding


class Passing:
    """Hands on what the `parts` of this rank make, and brings what they need.

    reshards: this rank's part of each link's transfer, forward ("F") and back ("B")
    blocks:   a transfer is waited for before anything else is asked for
    signal:   of `Resharding`
    """

    def __init__(
        self, job: Job, parts: Mapping[int, Part], *, blocks: bool = False, signal: bool = False
    ) -> None:
        self._job, self._parts, self._blocks = job, parts, blocks
        self._known = figures(job.plan)
        backend, gpus = job.groups.backend, job.plan.cluster.gpus_per_node
        at = divmod(backend.rank, gpus)
        self.reshards: dict[tuple[Link, str], Resharding] = {}
        for link, plans in self._known.travel.reshards.items():
            for direction, reshard in zip("FB", plans, strict=True):
                is_mine = {link.source, link.target} & parts.keys() and link not in job.aside
                if reshard is not None and is_mine:
                    self.reshards[link, direction] = Resharding(
                        reshard, at, gpus, backend, beside=job.beside, signal=signal
                    )
        self._locals = self._local_links()
        self._count_links()

    def _local_links(self) -> dict[Link, tuple[LocalFn, LocalFn | None]]:
        """What redistributes each tensor that goes from one part of this stage to another."""
        travel, graph = self._known.travel, self._job.plan.graph
        found, groups = {}, self._job.groups
        for link, (forward, backward) in travel.local_paths.items():
            if link.source in self._parts and link not in self._job.aside:
                shape = graph.tensors[link.tensor].spec.shape
                out, into = travel.ends(link)
                back = None
                if backward is not None:
                    assert into.grad_outs[0] is not None
                    why = f"the gradient of {link.tensor}"
                    back = prepare(backward, shape, into.grad_outs[0], groups, why)
                found[link] = prepare(forward, shape, out.ins[0], groups, link.tensor), back
        return found

    def _count_links(self) -> None:
        """Tell the parts how many links take each tensor that goes out of them."""
        forward: dict[int, Counter[str]] = {v: Counter() for v in self._parts}
        backward: dict[int, Counter[str]] = {v: Counter() for v in self._parts}
        taken = list(self.reshards)
        for link, (_, back) in self._locals.items():
            taken += [(link, "F")] if back is None else [(link, "F"), (link, "B")]
        for link, direction in taken:
            if direction == "F" and link.source in self._parts:
                forward[link.source][sent_key(link.tensor)] += 1
            elif direction == "B" and link.target in self._parts:
                backward[link.target][link.tensor] += 1
        for v, part in self._parts.items():
            part.sent, part.gradients = Outgoing(forward[v]), Outgoing(backward[v])

    def transfer(self, action: Action, number: int) -> None:
        """The tensors between the action's two parts, as far as they travel at all.

        number: of this rank's part
        """
        m, part = action.micro_batch, self._parts[number]
        peer = self._known.schedule.part(action.peer, action.peer_chunk)
        ends = min(number, peer), max(number, peer)
        direction = action.kind[1]
        for link in self._known.travel.links:
            run = self.reshards.get((link, direction))
            if (link.source, link.target) != ends or run is None:
                continue
            if action.kind == "SF":
                run.send(part.sent.take(m, sent_key(link.tensor)))
            elif action.kind == "RF":
                part.inputs[m][link.tensor] = part.receive("F", m, run)
            elif action.kind == "SB":
                run.send(part.gradients.take(m, link.tensor))
            else:
                part.give_back(m, link.tensor, part.receive("B", m, run))
        if self._blocks:
            part.wait_for_transfers()

    def forward(self, number: int, m: int) -> None:
        """Give this stage's other parts what part `number` has made of micro-batch `m`."""
        for link, (forward, _) in self._locals.items():
            if link.source == number:
                value = forward(self._parts[number].sent.take(m, sent_key(link.tensor)))
                self._parts[link.target].inputs[m][link.tensor] = value

    def backward(self, number: int, m: int) -> None:
        """Likewise the gradients of what part `number` got from them."""
        for link, (_, backward) in self._locals.items():
            if link.target == number and backward is not None:
                value = backward(self._parts[number].gradients.take(m, link.tensor))
                self._parts[link.source].give_back(m, link.tensor, value)
