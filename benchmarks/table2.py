"""AlpaComm's Table 2: nine cross-mesh reshardings, as ends of `autoddl.plans.reshard`.

A sharding spec has a letter per tensor dim: R whole, S^0 split over the hosts, S^1 over the devices
of a host, S^01 over both. The scan of the table that this was read from shows cases 3 and 4 alike;
section 5.1.2 says that case 4 has 64 unit tasks, and so splits over both mesh dims on either side.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoddl.plans.reshard.strategies import End
from autoddl.sbp.mesh import SubMesh
from autoddl.sbp.placement import B, NdSbp, S

Spec = tuple[str, ...]  # per tensor dim: "", "0", "1" or "01", the mesh dims that split it


@dataclass(frozen=True)
class Case:
    """Specs and (hosts, devices per host) of both sides."""

    number: int
    send: Spec
    receive: Spec
    send_mesh: tuple[int, int]
    receive_mesh: tuple[int, int]

    @property
    def hosts(self) -> int:
        return self.send_mesh[0] + self.receive_mesh[0]

    @property
    def gpus(self) -> int:
        return max(self.send_mesh[1], self.receive_mesh[1])

    def ends(self) -> tuple[End, End]:
        first = SubMesh(0, self.send_mesh[0], 0, self.send_mesh[1])
        second = SubMesh(self.send_mesh[0], self.receive_mesh[0], 0, self.receive_mesh[1])
        return _end(first, self.send), _end(second, self.receive)

    def __str__(self) -> str:
        return (
            f"{_text(self.send)} {'x'.join(map(str, self.send_mesh))} -> "
            f"{_text(self.receive)} {'x'.join(map(str, self.receive_mesh))}"
        )


CASES = (
    Case(1, ("0", "", ""), ("0", "", ""), (2, 4), (2, 4)),
    Case(2, ("", "", ""), ("0", "", ""), (2, 4), (2, 4)),
    Case(3, ("", "0", ""), ("0", "", ""), (2, 4), (2, 4)),
    Case(4, ("", "01", ""), ("01", "", ""), (2, 4), (2, 4)),
    Case(5, ("1", "", ""), ("0", "", ""), (2, 4), (2, 4)),
    Case(6, ("0", "", ""), ("0", "", ""), (2, 4), (3, 4)),
    Case(7, ("1", "", ""), ("", "", ""), (1, 4), (2, 4)),
    Case(8, ("", "", ""), ("", "", ""), (2, 3), (3, 2)),
    Case(9, ("", "0", ""), ("", "", "0"), (2, 4), (2, 4)),
)


def _end(place: SubMesh, spec: Spec) -> End:
    labels = []
    for axis in place.mesh.axes:
        mesh_dim = "0" if axis.link == "inter" else "1"
        dim = next((d for d, split in enumerate(spec) if mesh_dim in split), None)
        labels.append(B if dim is None else S(dim))
    return End(place, NdSbp(tuple(labels)))


def _text(spec: Spec) -> str:
    return "".join(f"S{split}" if split else "R" for split in spec)
