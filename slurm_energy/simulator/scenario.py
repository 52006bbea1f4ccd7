"""A scenario file: cluster, workload and schedule in TOML, checked key by key. Runs nothing."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from slurm_energy.config.reading import TableReader
from slurm_energy.config.schema import between, key
from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.cluster import Kind
from slurm_energy.simulator.settings import Discipline, Preemption, Settings
from slurm_energy.simulator.steps import Steps, read_steps

_SHIPPED = Path(__file__).parent / "scenarios"
_positive = between(1e-9, 1e15)
_share = between(0, 1)
_not_negative = between(0, 1e15)


@dataclass(frozen=True, slots=True)
class KindSection:
    """Nodes of one kind, `[cluster.NAME]`."""

    nodes: int = key(1, "Number of nodes.", between(1, 10_000_000))
    units: int = key(1, "GPUs or cores of a node that jobs can have; 1: whole nodes.", between(1, 100_000))
    hardware: str = key("", "Name of the GPU in the oracle; needed by workloads of models.")
    idle_watts: float = key(0.0, "Power of an idle node that is on.", _not_negative)
    unit_idle_watts: float = key(
        0.0, "Part of it that is counted with a job that has the unit.", _not_negative
    )
    off_watts: float = key(0.0, "Power of a node that is off.", _not_negative)
    boot_s: float = key(0.0, "Time to boot.", _not_negative)
    boot_watts: float = key(0.0, "Power while booting.", _not_negative)
    shutdown_s: float = key(0.0, "Time to shut down.", _not_negative)
    shutdown_watts: float = key(0.0, "Power while shutting down.", _not_negative)
    mean_hours_to_failure: float = key(0.0, "Of one node; 0: nodes never fail.", _not_negative)
    repair_s: float = key(3600.0, "Time until a failed node is back.", _not_negative)


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """Where jobs come from, `[workload]`: a file, or models drawn at random (`[[model]]`)."""

    file: str = key("", "SWF, CSV or sacct output; relative to the scenario's folder.")
    format: str = key("", "swf, csv, sacct or sacct-json; empty: by the file's name.")
    columns: dict[str, str] = key({}, "Our column's name to the file's, for CSV.")
    sacct_units: str = key("nodes", "What sacct's jobs are counted in: nodes or cpus.")
    watts_per_unit: float = key(0.0, "Power of a job per unit where the file says none.", _not_negative)
    time_scale: float = key(1.0, "Factor for all times of the file.", _positive)
    arrivals_per_s: float = key(0.005, "Rate of the Poisson process.", _positive)
    hours: float = key(10.0, "Length of time in which jobs arrive.", _positive)
    urgent_share: float = key(0.0, "Share of jobs with a deadline.", _share)
    deadline_factor: float = key(
        3.5, "Deadline: so many times the least run time, after submission.", _positive
    )
    users: int = key(1, "Number of users.", between(1, 1_000_000))
    majority_share: float = key(0.0, "Share of jobs of the first user; 0: all users alike.", _share)
    rigid: bool = key(False, "Give each job its one rigid shape instead of all.")
    prediction_error: float = key(0.0, "Oracle's error: +- this share, drawn per job and shape.", _share)
    error_is_real: bool = key(True, "What happens has the error too: the oracle is the world (thesis).")


@dataclass(frozen=True, slots=True)
class ModelSection:
    """A model to train, `[[model]]`."""

    name: str = key("", "For people.")
    profile: str = key("", "Workload profile of the oracle.")
    precision: str = key("fp32", "fp32, tf32, bf16 or fp16.")
    samples: float = key(50_000.0, "Samples of an epoch.", _positive)
    epochs: float = key(1.0, "Number of epochs.", _positive)
    gpus: list[int] = key([1], "Numbers of GPUs that it can run on.")
    batches: list[int] = key([32], "Batch sizes per GPU.")
    weight: float = key(1.0, "How often it comes, relative to others.", _positive)
    rigid_gpus: int = key(1, "GPUs of the rigid shape.")
    rigid_batch: int = key(32, "Batch size of the rigid shape.")
    rigid_hardware: str = key("", "Kind of the rigid shape; empty: drawn per job.")


@dataclass(frozen=True, slots=True)
class ScheduleSection:
    """How jobs are scheduled, `[schedule]`."""

    policies: list[str] = key(["fcfs"], "Names of policies to compare.")
    discipline: str = key("easy", "strict, easy, conservative or packing.")
    interval_s: float = key(0.0, "Time between two looks at the queue; 0: at each event.", _not_negative)
    horizon_hours: float = key(0.0, "End of the simulation; 0: when all jobs are done.", _not_negative)
    seeds: int = key(1, "Number of runs with different random numbers.", between(1, 100_000))
    age_weight: float = key(0.01, "W_age of the policies, per second.", _not_negative)
    wait_bound_hours: float = key(24.0, "Jobs that waited longer go first.", _positive)
    half_life_hours: float = key(0.0, "In which usage fades for fair shares; 0: never.", _not_negative)
    preemption: bool = key(True, "Policies that preempt may.")
    checkpoint_s: float = key(-1.0, "Work is saved this often; -1: an interrupted job starts anew.")
    restart_s: float = key(0.0, "Extra time of a start after an interruption.", _not_negative)
    margin_s: float = key(60.0, "A job with less slack than this is at risk.", _not_negative)
    weights: dict[str, float] = key({}, "Of the terms of blend and multifactor.")
    shares: dict[str, float] = key({}, "Shares of users, by name.")


@dataclass(frozen=True, slots=True)
class PowerSection:
    """Budget, power states and prices, `[power]`."""

    budget_watts: float = key(0.0, "Power budget; 0: none.", _not_negative)
    budget_file: str = key("", "CSV with columns time_s, watts: a budget that varies.")
    hard_budget: bool = key(False, "Every policy keeps the budget, not only those that say so.")
    idle_off_s: float = key(-1.0, "Nodes without work for so long are switched off; -1: never.")
    price_file: str = key("", "CSV with columns time_s, price (per MWh).")
    carbon_file: str = key("", "CSV with columns time_s, gco2_per_kwh.")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole scenario file.

    Attributes:
        name: its file's name without ending.
        path: the file.
        text: its content, by which results are recognised.
    """

    name: str
    path: Path
    text: str
    title: str
    kinds: dict[str, KindSection]
    workload: WorkloadSection
    schedule: ScheduleSection
    power: PowerSection
    models: tuple[ModelSection, ...] = field(default=())

    def nodes(self) -> list[Kind]:
        """Return the kinds of nodes for the engine."""
        return [_kind(name, section) for name, section in self.kinds.items()]

    def settings(self, seed: int) -> Settings:
        """Return the engine's settings for one seed."""
        schedule, power = self.schedule, self.power
        endless = float("inf")
        checkpoint_s = endless if schedule.checkpoint_s < 0 else schedule.checkpoint_s
        return Settings(
            discipline=Discipline(schedule.discipline),
            interval_s=schedule.interval_s,
            horizon_s=schedule.horizon_hours * 3600 or None,
            budget_watts=self.budget(),
            hard_budget=power.hard_budget,
            preemption=Preemption(checkpoint_s, schedule.restart_s, schedule.margin_s)
            if schedule.preemption
            else None,
            idle_off_s=None if power.idle_off_s < 0 else power.idle_off_s,
            half_life_s=schedule.half_life_hours * 3600 or endless,
            shares=schedule.shares,
            options=Options(schedule.age_weight, schedule.wait_bound_hours * 3600, schedule.weights),
            seed=seed,
        )

    def budget(self) -> Steps | None:
        """Return the power budget over time; None for none."""
        if self.power.budget_file:
            return read_steps(self.beside(self.power.budget_file), "watts")
        return Steps.constant(self.power.budget_watts) if self.power.budget_watts else None

    def beside(self, name: str) -> Path:
        """Return the path of a file named in the scenario."""
        return self.path.parent / name


def shipped() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def read(name: str) -> Scenario:
    """Read a scenario: a shipped one by name, else a file.

    Raises:
        ConfigError: not readable, not TOML, or wrong; names file, line and key.
    """
    path = _SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            shown(str(path), 200), reason, f"a file, or one of {', '.join(shipped())}"
        ) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Scenario:
    """Check a scenario's text; files that it names are beside `path`.

    Raises:
        ConfigError: names file, line and key.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}", f"not TOML: {error}") from None
    reader = TableReader(path, text)
    known = ("title", "cluster", "workload", "model", "schedule", "power")
    for name in data:
        if name not in known:
            raise reader.fail(name, "", "unknown section", f"known: {', '.join(known)}")
    clusters, models = data.get("cluster", {}), data.get("model", [])
    if not isinstance(clusters, dict) or not clusters:
        raise reader.fail(
            "cluster", "", "at least one kind of nodes is needed", "write a table [cluster.NAME]"
        )
    if not isinstance(models, list):
        raise reader.fail("model", "", "must be a list of tables: [[model]]")
    scenario = Scenario(
        name=path.stem,
        path=path,
        text=text,
        title=str(data.get("title", path.stem)),
        kinds={name: reader.section(KindSection, f"cluster.{name}", t) for name, t in clusters.items()},
        workload=reader.section(WorkloadSection, "workload", data.get("workload", {})),
        schedule=reader.section(ScheduleSection, "schedule", data.get("schedule", {})),
        power=reader.section(PowerSection, "power", data.get("power", {})),
        models=tuple(reader.section(ModelSection, "model", table) for table in models),
    )
    _check(scenario, reader)
    return scenario


def _check(scenario: Scenario, reader: TableReader) -> None:
    """Check what concerns several keys."""
    discipline = scenario.schedule.discipline
    if discipline not in set(Discipline):
        raise reader.fail(
            "schedule", "discipline", f"one of {', '.join(Discipline)}, not '{shown(discipline)}'"
        )
    if bool(scenario.workload.file) == bool(scenario.models):
        raise reader.fail("workload", "", "jobs come either from a file or from [[model]] tables", "give one")
    for model in scenario.models:
        if not model.profile:
            raise reader.fail("model", "profile", "is needed")
        if not model.gpus or not model.batches or min(*model.gpus, *model.batches) < 1:
            raise reader.fail("model", "gpus", "and batches must be lists of positive numbers")
        if model.rigid_hardware and model.rigid_hardware not in scenario.kinds:
            raise reader.fail("model", "rigid_hardware", f"there is no [cluster.{model.rigid_hardware}]")


def _kind(name: str, section: KindSection) -> Kind:
    hours = section.mean_hours_to_failure
    return Kind(
        name=name,
        nodes=section.nodes,
        units=section.units,
        idle_watts=section.idle_watts,
        unit_idle_watts=section.unit_idle_watts,
        off_watts=section.off_watts,
        boot_s=section.boot_s,
        boot_watts=section.boot_watts,
        shutdown_s=section.shutdown_s,
        shutdown_watts=section.shutdown_watts,
        failures_per_s=1 / (3600 * hours) if hours else 0.0,
        repair_s=section.repair_s,
    )
