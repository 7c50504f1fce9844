"""`autoddl calibrate`: measures this machine, fits its links and writes the machine file.

    schedule -> measure on all ranks -> record -> fit -> Cluster

Each rank runs `calibrate_rank`; rank 0 writes NAME.measurements.json after every measurement, and
NAME.json and a plot at the end.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster.spec import Cluster
from ...runtime.framework import Framework, framework, framework_of_entry
from ...runtime.jobs.guard import install_guard, rank, world_size
from ...runtime.jobs.launch import run_processes
from ...runtime.measure.measured import BUDGET_S, Limits
from ...runtime.measure.record import Machine, Record, record_path
from ...runtime.measure.schedule import KINDS, MAX_BYTES, SENDING, message_sizes, schedule
from ...sbp.mesh import Mesh
from ..at_work import at_work
from .machine import check_kinds, fit_record, machine_of, with_kinds
from .progress import Reporter, relayed

if TYPE_CHECKING:
    from ...runtime.jobs.meeting import Meeting
    from .fit import Fit

# Of the cores, chosen: an idle machine of 2 had a load of 0.02, with one program at work 1 to 1.3.
_BUSY = 0.5
QUICK = {"max_bytes": 1 << 22, "factor": 16, "budget_s": 45.0, "call_s": 0.25, "precision": 0.2}


@dataclass(frozen=True)
class CalibrateJob:
    """What to measure, and how well; None for nodes or gpus_per_node takes the launcher's.

    factor:  from one message size to the next
    repeats, confidence, precision, budget_s, call_s: see runtime.measure.measured.Limits
    model:   time this model's operators, too; batch: of the whole job, as in training
    back_end: "oneflow" or "torch"; None for the model's, or OneFlow
    device_from: a machine file with the device; of several, each has the hosts of one kind
    timeout_s: how long a host may be silent
    """

    output: str
    name: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    device_kind: str = "cpu"
    max_bytes: int = MAX_BYTES
    factor: int = 4
    confidence: float = 0.95
    precision: float = 0.05
    repeats: int | None = None
    budget_s: float = BUDGET_S
    call_s: float = 2.0
    timeout_s: float = 60.0
    device_from: tuple[str, ...] = ()
    point_to_point: bool = True
    model: str | None = None
    batch: int | None = None
    back_end: str | None = None

    @property
    def framework(self) -> Framework:
        """Whose collectives and operators are measured: as asked for, or the model's."""
        if self.back_end is None and self.model is not None:
            return framework_of_entry(self.model, "autoddl calibrate")
        return framework(self.back_end or "oneflow", "autoddl calibrate")

    def __post_init__(self) -> None:
        message_sizes(self.max_bytes, self.factor)
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"--confidence must be from 0.5 to below 1, got {self.confidence}")
        if not self.precision > 0:
            raise ValueError(f"--precision must be more than zero, got {self.precision}")
        if not 0 < self.budget_s < math.inf:
            raise ValueError(f"--budget must be a number of seconds, got {self.budget_s}")
        if not Path(self.output).resolve().parent.is_dir():
            raise ValueError(f"--output {self.output}: the folder does not exist; make it first")
        if self.batch is not None and self.model is None:
            raise ValueError("--batch is of a model; give --model, too")
        if len(self.kinds) > 1 and self.model is not None:
            raise ValueError(
                "--model times operators on all hosts at once; where these are of several kinds, "
                "give it where each kind is calibrated by itself"
            )

    @property
    def kinds(self) -> tuple[Cluster, ...]:
        """The machine files of `device_from`."""
        return tuple(map(Cluster.load, self.device_from))

    def checked(self, mesh: Mesh) -> Mesh:
        """The mesh that is measured; ValueError unless the kinds of hosts make it."""
        if len(self.kinds) > 1:
            check_kinds(self.kinds, mesh.nodes, mesh.gpus_per_node)
        return mesh

    @property
    def limits(self) -> Limits:
        names = (field.name for field in fields(Limits))
        return Limits(**{name: getattr(self, name) for name in names if hasattr(self, name)})

    def words(self) -> list[str]:
        """The command line of a rank."""
        words = ["-m", "autoddl", "calibrate"]
        for field in fields(self):
            value = getattr(self, field.name)
            option = OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}")
            if field.name == "point_to_point":
                words += [] if value else ["--no-point-to-point"]
            elif isinstance(value, tuple):
                words += [word for one in value for word in (option, one)]
            elif value is not None and value != field.default:
                words += [option, str(value)]
        return words


OPTIONS = {"budget_s": "--budget", "call_s": "--max-call", "timeout_s": "--timeout",
           "device_kind": "--device"}  # fmt: skip


def calibrate(job: CalibrateJob) -> int:
    """Measure, fit, write; the exit status of the job.

    A process that a launcher has started as a rank is that rank. Any other starts all processes on
    this machine.
    """
    # Asked before OneFlow is imported, which waits for all ranks of a job there.
    if world_size() > 1:
        calibrate_rank(job)
        return 0
    mesh = job.checked(Mesh(job.nodes or 1, job.gpus_per_node or 1))
    schedule(mesh, message_sizes(job.max_bytes, job.factor))
    path = record_path(job.output)
    if path.exists():
        # before any process starts
        Record.load(path).check_same(
            this_machine((platform.node(),) * mesh.nodes), mesh.nodes, mesh.gpus_per_node
        )
    with at_work("importing the framework", first_s=0):
        _ = job.framework  # that it is here is known before any process starts
    print(
        f"{busy_text()}starting {mesh.size} processes, which measure for at most "
        f"{job.budget_s:g} s (--budget)"
        f"{', and as long a model' if job.model else ''}; "
        "if interrupted, the same command goes on from there",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    with relayed(sys.stdout) as output:
        return run_processes(job.words(), mesh.size, output=output, prefix=False)


def busy_text() -> str:
    """A line that warns where other programs keep this machine's cores at work; "" elsewhere."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < _BUSY * cores:
        return ""
    return (
        f"other programs are at work here (a load of {load:.1f} on {cores} cores): the times will "
        "be too long; end them, wait a minute and start again\n"
    )


def calibrate_rank(job: CalibrateJob) -> None:
    """The part of one rank."""
    install_guard()
    from ...runtime.jobs.meeting import meet

    with meet(job.timeout_s) as meeting:
        own = job.framework
        mesh = mesh_of(job, meeting)
        record = measured_record(job, own, mesh, meeting)
    if rank() == 0:
        write_machine(record, job)


def mesh_of(job: CalibrateJob, meeting: Meeting) -> Mesh:
    """nodes x gpus_per_node as given, or as launched; ValueError if that is not the job's size."""
    gpus = job.gpus_per_node or (world_size() // job.nodes if job.nodes else meeting.gpus_per_node)
    nodes = job.nodes or world_size() // max(1, gpus)
    if nodes * gpus != world_size():
        raise ValueError(
            f"{nodes} nodes x {gpus} processes are not the {world_size()} processes of this job; "
            "give --nodes and --gpus-per-node as they were started"
        )
    return job.checked(Mesh(nodes, gpus))


def measured_record(job: CalibrateJob, own: Framework, mesh: Mesh, meeting: Meeting) -> Record:
    """Measure what the record beside the output does not have yet; the same on all ranks."""
    points = schedule(
        mesh,
        message_sizes(job.max_bytes, job.factor),
        KINDS if job.point_to_point else SENDING,
    )
    from ...runtime.measure.rank import run

    path = record_path(job.output)
    machine = this_machine(
        tuple(meeting.places[n * mesh.gpus_per_node].host for n in range(mesh.nodes))
    )

    def start() -> Record:
        if path.exists():
            record = Record.load(path)
            record.check_same(machine, mesh.nodes, mesh.gpus_per_node)
            record.skipped.clear()  # other limits may be given now
            return record
        name = job.name or Path(job.output).name.removesuffix(".json")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Record(
            name, now, machine, mesh.nodes, mesh.gpus_per_node, job.confidence,
            command=" ".join(["autoddl", *job.words()[2:]]), software=software(),
        )  # fmt: skip

    with Reporter(sys.stdout, quiet=rank() != 0) as reporter:
        return run(
            own.new_backend(job.device_kind),
            mesh,
            points,
            start,
            path,
            job.limits,
            not job.device_from,
            None if job.model is None else own.trace_entry(job.model, job.batch),
            reporter,
            meeting.task,
        )


def this_machine(hosts: tuple[str, ...]) -> Machine:
    """What a record must agree with to be continued."""
    return Machine(hosts, _processor(), os.cpu_count() or 1)


def software() -> str:
    """Names and versions of what measures; nothing of a package that is not installed."""
    found: list[str] = []
    for name in ("autoddl", "oneflow", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)


def write_machine(record: Record, job: CalibrateJob) -> Cluster:
    """Fit, write NAME.json and NAME.png, print the report."""
    from ..report.calibration import calibration_report
    from ..show import show

    # as a later --refit reads it; after an interruption that takes what each point has
    record = Record.loads(record.dumps())
    for timing in record.timings.values():
        if not timing.is_done:
            timing.finish(record.confidence)
    fit = fit_record(record)
    kinds = job.kinds
    cluster = machine_of(record, fit, kinds[0].device if kinds else None)
    if len(kinds) > 1:
        check_kinds(kinds, record.nodes, record.gpus_per_node)
        cluster = with_kinds(cluster, kinds)
    cluster.save(job.output)
    plotted = plot_beside(job.output, fit, cluster)
    missing = [] if plotted else ["no plot: that needs matplotlib"]
    show(calibration_report(record, fit, cluster, [str(job.output), *plotted, *missing]))
    return cluster


def plot_path(output: str) -> Path:
    """NAME.json -> NAME.png."""
    return Path(output).with_suffix(".png")


def plot_beside(output: str, fit: Fit, cluster: Cluster) -> list[str]:
    """NAME.png, if matplotlib is there."""
    try:
        from .plot import save_plot
    except ImportError:
        return []
    path = plot_path(output)
    save_plot(fit, cluster, path)
    return [str(path)]


def refit(job: CalibrateJob) -> Cluster:
    """The machine file again, from the record alone."""
    return write_machine(Record.load(record_path(job.output)), job)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
