"""Sessions: the state of each job on this node, with its settings and its energy so far.

A session is plain data that can be written to disk at any time. The job manager changes the sessions.
"""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from slurm_energy.agent.jobs.job_step import EXTERN, JobStep, flat_fields, is_container
from slurm_energy.agent.metering.attribution import BY_CPU_TIME, OTHER
from slurm_energy.agent.metering.components import JobComponent
from slurm_energy.agent.metering.cpu_time_meter import MeteredJob
from slurm_energy.agent.metering.job_meter import Charge, JobMeter, PowerMonitor
from slurm_energy.agent.metering.occupancy import Occupant
from slurm_energy.agent.metering.trace import TraceBuilder
from slurm_energy.agent.signals.recording import SignalRecording
from slurm_energy.agent.signals.step_reports import StepReports
from slurm_energy.control.restore import RestoreResult
from slurm_energy.control.transaction import SettingOutcome
from slurm_energy.devices.cpu.cpu_time import JobProcesses
from slurm_energy.devices.settings import Setting
from slurm_energy.diagnosis.live_finding import LiveFinding
from slurm_energy.errors import NotFoundError
from slurm_energy.known_fields import build_from
from slurm_energy.records import JobDevice

STARTING, OPEN, CLOSING = "starting", "open", "closing"
MAX_OPEN_STEPS = 1000
MAX_NOTES = 100
_WHOLE = Fraction(1)


@dataclass(slots=True)
class Session:
    """The state of a job on this node.

    Attributes:
        job_id, restart_count, uid, user, partition, cluster, node, sluid, cpus: see `JobContext`.
        boot_id: identifier of the boot in which the job started.
        late: whether the job started before the agent received the message about it.
        start_unix: Unix time of the job's start in seconds. Later Unix times of the job are this time plus
            the seconds that the boot clock has advanced since.
        whole_node: whether the job has the whole node.
        gpus: indices of the job's GPUs.
        gpu_job: whether the job requested GPUs from Slurm.
        gpus_assumed: whether Slurm does not name the job's GPUs, so that all or none are assumed.
        node_count: number of the job's nodes; None if unknown.
        cpu_list: the job's logical CPUs; None until a step reports them, and for a job with the whole node.
        policy: energy policy in force.
        requested: the job's energy flags, for its record.
        model, tag: values of the flags `--energy-model` and `--energy-tag`. They are recorded and change no
            setting. A value is None if the job lacks the flag.
        fingerprint: digest of the batch script and its arguments; None if not reported.
        plan: planned settings, without the settings of tuning.
        tuning: the key `tuning` of the job's record so far; None for a policy without an objective.
        outcomes: results of applying the planned settings.
        restored: results of restoring the original settings.
        notes: notes for the record.
        job_components: hardware components whose energy is recorded for the job.
        meter: energy meter of the job, with the energy so far.
        power_monitor: peak power and time above caps.
        devices: product names and power limits of processor and GPUs, for the record.
        steps: running Slurm steps by name.
        divided_uj: the part of the job's energy that is already divided among its Slurm steps, in microjoules
            by component.
        phase: phase of the session: `starting`, `open` or `closing`.
        end_unix: Unix time of the job's end in seconds; None before phase `closing`.
        steps_ended_at: time in seconds since boot at which the agent noticed the end of the job's batch or
            extern step, after which the epilog should follow; None before.
        record_id: id of the job's energy record.
        trace: power trace, which is written to its own file; None if the job has no trace.
        recording: recorded signals, which are written to their own file; None if no signal was recorded.
        step_reports: steps (iterations) of the program that the job's processes reported. They are written to
            their own file.
        findings: causes of lost time or energy that the diagnosis has found so far. They are not saved to
            disk.
    """

    job_id: int
    restart_count: int
    uid: int
    user: str | None
    partition: str | None
    cluster: str
    node: str
    sluid: str | None
    cpus: int | None
    boot_id: str
    start_unix: float
    whole_node: bool
    gpus: tuple[int, ...]
    job_components: tuple[JobComponent, ...]
    meter: JobMeter
    power_monitor: PowerMonitor
    policy: str = "monitor"
    requested: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    tag: str | None = None
    fingerprint: str | None = None
    devices: tuple[JobDevice, ...] = ()
    plan: tuple[Setting, ...] = ()
    outcomes: list[SettingOutcome] = field(default_factory=list)
    restored: list[RestoreResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: dict[str, JobStep] = field(default_factory=dict)
    divided_uj: dict[str, int] = field(default_factory=dict)
    gpu_job: bool = False
    gpus_assumed: bool = False
    cpu_list: tuple[int, ...] | None = None
    late: bool = False
    tuning: dict[str, Any] | None = None
    node_count: int | None = None
    phase: str = STARTING
    end_unix: float | None = None
    steps_ended_at: float | None = None
    record_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    trace: TraceBuilder | None = None
    recording: SignalRecording | None = None
    step_reports: StepReports = field(default_factory=StepReports)
    findings: tuple[LiveFinding, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        """Job id and restart count, which identify the job."""
        return self.job_id, self.restart_count

    @property
    def owner(self) -> str:
        """Unique name of the job in the settings journal and the energy ledger, for example `123.0`."""
        return f"{self.job_id}.{self.restart_count}"

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the recorded components that the job is known to use."""
        return tuple(component.component for component in self.job_components if component.known)

    @property
    def partial_components(self) -> tuple[str, ...]:
        """Components whose energy in the job's record has the quality `partial`.

        A job with the whole node has no such components. For other jobs, the components that are divided by
        CPU time and `other` are partial if Slurm has not reported the job's CPUs. GPUs that Slurm has not
        named are partial, because several jobs are assumed to use them.
        """
        if self.whole_node:
            return ()
        shared = () if self.cpus is not None else (*BY_CPU_TIME, OTHER)
        return (*shared, *(f"gpu[{index}]" for index in self.gpus if self.gpus_assumed))

    @property
    def occupant(self) -> Occupant:
        """Resources that are allocated to the job, in the form that the energy ledger needs."""
        gpus = dict.fromkeys(self.gpus, _WHOLE)
        return Occupant(self.owner, self.cpus, gpus, self.whole_node)

    @property
    def metered_job(self) -> MeteredJob:
        """The job's processes, as input of the CPU time meter."""
        pids = tuple(step.pid for step in self.steps.values() if step.pid is not None)
        start = None if self.late else self.meter.start
        return MeteredJob(self.owner, start, JobProcesses(self.job_id, self.sluid, pids))

    def resume_trace(self, sampled_s: float, interval_s: float) -> None:
        """Begin a power trace at the last sample if the job has no trace yet.

        `sampled_s` is the time of that sample in seconds since boot.
        """
        if self.trace is None:
            self.trace = TraceBuilder(sampled_s, interval_s, self.components)

    def unix_at(self, boottime: float) -> float:
        """Convert a time in seconds since boot to Unix time in seconds.

        The result is the Unix time of the job's start plus the seconds that the boot clock has advanced
        since the start. Jumps of the wall clock therefore have no effect. For a time before the job's start,
        the result is the job's start.
        """
        return self.start_unix + max(0.0, boottime - self.meter.start)

    def start_metering(self, boottime: float, interval_s: float) -> None:
        """Start the measurement of the job's energy and the recording of its power trace.

        Args:
            boottime: time in seconds since boot from which energy is counted.
            interval_s: seconds per interval of the trace.
        """
        self.meter = JobMeter(boottime)
        self.power_monitor.reset()
        self.trace = TraceBuilder(boottime, interval_s, self.components)

    def add_charge(self, charge: Charge) -> None:
        """Add the energy of a charge to the job's meter, power monitor and trace."""
        components = self.components
        self.meter.add(charge, components)
        used = {name: charge.energy_uj[name] / 1e6 for name in components if name in charge.energy_uj}
        waiting = [name for name in components if name in charge.waiting]
        if not charge.since:
            self.power_monitor.add(
                charge.length_s, used, waiting=waiting, timing_uncertainty_s=charge.timing_uncertainty_s
            )
            self._add_to_trace(charge.start, charge.end, used)
            return
        since = {name: charge.since.get(name, charge.start) for name in used}
        lengths_s = {name: charge.end - start for name, start in since.items()}
        self.power_monitor.add(charge.length_s, used, lengths_s, waiting, charge.timing_uncertainty_s)
        for start in set(since.values()):
            together = {name: joules for name, joules in used.items() if since[name] == start}
            self._add_to_trace(start, charge.end, together)

    def _add_to_trace(self, start: float, end: float, joules: dict[str, float]) -> None:
        if self.trace is not None:
            self.trace.add(start, end, joules)

    def begin_step(self, name: str, boottime: float, pid: int | None = None) -> None:
        """Start a Slurm step of the job.

        If the step is already running, nothing changes.

        Args:
            name: Slurm's name of the step.
            boottime: time of the step's start, in seconds since boot.
            pid: process id of the step's slurmstepd; None if not reported.
        """
        if name in self.steps or len(self.steps) >= MAX_OPEN_STEPS:
            return
        step = JobStep(name, self.unix_at(boottime), self.meter.copy(), pid)
        for other in self.steps.values():
            if not (step.is_container or other.is_container):
                step.shared = other.shared = True
        self.steps[name] = step

    def begin_with_job(self, name: str, pid: int | None = None) -> bool:
        """Start a step (batch, extern or interactive) that begins together with the job.

        Slurm's accounting starts these steps at the start of the job, too.

        Args:
            name: Slurm's name of the step.
            pid: process id of the step's slurmstepd; None if not reported.

        Returns:
            Whether the step has started. It does not start if energy of the job already belongs to another
            step.
        """
        is_first = not self.divided_uj and all(other.name == EXTERN for other in self.steps.values())
        if name in self.steps or not (is_first and is_container(name)):
            return False
        self.steps[name] = JobStep(name, self.start_unix, JobMeter(self.meter.start), pid)
        return True

    def is_last_step(self, name: str) -> bool:
        """Return whether a Slurm step is the only running step of a job and ends only with the job.

        Such a step is a container step, which exists for the whole job.
        """
        return list(self.steps) == [name] and self.steps[name].is_container

    def note(self, text: str) -> None:
        """Add a note to the job's record, unless the record already contains the same note.

        The number of notes is limited, because caps may change every few seconds.
        """
        if text not in self.notes and len(self.notes) <= MAX_NOTES:
            self.notes.append(text if len(self.notes) < MAX_NOTES else "further remarks are left out")

    def merge_outcomes(self, outcomes: Iterable[SettingOutcome]) -> None:
        """Add outcomes of settings to the outcomes that the session stores.

        A new outcome replaces the earlier outcome of the same knob (the file or call that changes one
        setting). No original value is lost, because both outcomes contain the value of the knob before the
        first change.
        """
        merged = {outcome.key: outcome for outcome in self.outcomes}
        merged |= {outcome.key: outcome for outcome in outcomes}
        self.outcomes = list(merged.values())

    def dump(self) -> dict[str, Any]:
        """Return the session (the agent's state of a job) as a dict that JSON can hold.

        The trace, the recording of signals, the reports about steps and the findings are left out. `load`
        derives whether the GPUs are assumed.
        """
        data = flat_fields(self)
        del data["trace"], data["recording"], data["step_reports"], data["findings"]
        del data["gpus_assumed"]  # release 0.1 reads no further keys
        for name in ("job_components", "devices", "plan", "outcomes", "restored"):
            data[name] = [flat_fields(item) for item in data[name]]
        data["meter"], data["power_monitor"] = self.meter.dump(), self.power_monitor.dump()
        data["steps"] = {name: step.dump() for name, step in self.steps.items()}
        return data

    @classmethod
    def load(cls, data: dict[str, Any]) -> Session:
        """Return the session (the agent's state of a job) that `dump` turned into `data`.

        Raises:
            KeyError, TypeError, AttributeError: malformed data.
        """
        if "divided_uj" not in data:
            data = _with_step_energy(data)
        return build_from(
            cls,
            {
                **data,
                "job_id": operator.index(data["job_id"]),
                "restart_count": operator.index(data["restart_count"]),
                "notes": list(data["notes"]),
                "gpus": tuple(data["gpus"]),
                "gpus_assumed": not data.get("gpu_job"),
                "cpu_list": None if (cpus := data.get("cpu_list")) is None else tuple(cpus),
                "job_components": tuple(build_from(JobComponent, item) for item in data["job_components"]),
                "meter": build_from(JobMeter, data["meter"]),
                "power_monitor": build_from(PowerMonitor, data["power_monitor"]),
                "devices": tuple(build_from(JobDevice, item) for item in data.get("devices", ())),
                "plan": tuple(build_from(Setting, item) for item in data["plan"]),
                "outcomes": [build_from(SettingOutcome, item) for item in data["outcomes"]],
                "restored": [build_from(RestoreResult, item) for item in data["restored"]],
                "steps": {name: JobStep.load(step) for name, step in data["steps"].items()},
            },
        )


class SessionTable(dict[tuple[int, int], Session]):
    """Sessions of the running jobs by job id and restart count.

    Attributes:
        announced: number of jobs whose begin was reported since the agent started.
    """

    announced = 0

    def announce(self, session: Session) -> None:
        """Add a job whose start was reported to the agent."""
        self[session.key] = session
        self.announced += 1

    def latest_run(self, job_id: int) -> Session | None:
        """Return the agent's state (session) of the latest run of a job on this node.

        The latest run is the one with the highest restart count. The result is None if the job does not run
        on this node.
        """
        runs = [session for session in self.values() if session.job_id == job_id]
        return max(runs, key=lambda session: session.restart_count, default=None)

    def require_run(self, job_id: int) -> Session:
        """Return the session with the highest restart count of a job, which must exist.

        Raises:
            NotFoundError: the job does not run here.
        """
        session = self.latest_run(job_id)
        if session is None:
            raise NotFoundError(f"job {job_id} does not run on this node")
        return session

    def sole_run(self, job_id: int) -> Session | None:
        """Return the only session of a job; None if the job has none or several.

        An epilog may state no restart count, or that of the next run if the job is requeued. This lookup
        ignores the restart count.
        """
        runs = [session for session in self.values() if session.job_id == job_id]
        return runs[0] if len(runs) == 1 else None


def _with_step_energy(data: dict[str, Any]) -> dict[str, Any]:
    """Convert stored data about a job from an older release of the agent.

    The older release did not divide energy among steps. Each step now gets the energy that the job used
    while the step ran.
    """
    meter = build_from(JobMeter, data["meter"])
    steps = {
        name: {**step, "energy_uj": meter.since(build_from(JobMeter, step["meter_at_start"])).energy_uj}
        for name, step in data["steps"].items()
    }
    return {**data, "steps": steps, "divided_uj": dict(meter.energy_uj)}
