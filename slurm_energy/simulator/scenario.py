"""Scenario files in TOML: cluster, workload and schedule. A scenario file may extend another one."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.config.loader import TableReader, table_label
from slurm_energy.quantities import shown
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.campaigns.sweep_axes import SweepAxis, axes_of_table
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraint_schema import (
    TABLES,
    ConstraintTables,
    check_tables,
    constraints_of,
    read_tables,
)
from slurm_energy.simulator.deferral.deferral_schema import (
    SIGNAL_FILES,
    DeferralSection,
    SignalsSection,
    check_signals,
    deferral_of,
    missing_file,
    signal_feed,
)
from slurm_energy.simulator.power.step_function import StepFunction, read_steps
from slurm_energy.simulator.scenario_files import locate, text_of, with_base
from slurm_energy.simulator.scenario_schema import (
    OUTLIERS,
    KindSection,
    ModelSection,
    PowerSavingSection,
    PowerSection,
    ScheduleSection,
    TraceSection,
    WorkloadSection,
)
from slurm_energy.simulator.schedule_settings import BudgetRules, PowerSaving, Preemption, ScheduleSettings
from slurm_energy.simulator.sites.site_checks import check_sites
from slurm_energy.simulator.sites.site_schema import PlacementSection, SiteSection

_SECTIONS = (
    *("title", "extends", "cluster", "workload", "trace", "model", "schedule", "power", "power_saving"),
    *("signals", "deferral", *TABLES, "site", "placement", "sweep"),
)
_POWER_SAVING = ("idle_off", "forecast")


@dataclass(frozen=True, slots=True)
class Scenario:
    """Contents of a scenario file.

    Attributes:
        name: name of the file without suffix.
        path: path of the file.
        text: text of the scenario file and of all files that this file extends. A stored result is valid only
            for an identical text.
        title: title in reports and plots.
        kinds: kinds of nodes by name.
        workload: section of the workload.
        trace: selection of jobs from workload files.
        schedule: section of the schedule.
        power: section of budget, power states and prices.
        power_saving: section of power saving by forecast.
        signals: section of price, carbon intensity and other signals.
        deferral: section of the deferral of jobs with slack.
        models: neural networks that jobs train.
        constraints: tables of partitions, QOS, reservations and licenses.
        sites: sites by name, each of which is a separate cluster. If empty, all nodes form one cluster.
        placement: section of the placement of jobs among the sites.
        sweep: axes of a sweep; every combination of their points is simulated.
        label: label of the scenario if it is a variant of a sweep; empty otherwise. See `sweeps`.
        point: values of the sweep's keys in this variant; empty if the scenario is no variant of a sweep.
    """

    name: str
    path: Path
    text: str
    title: str
    kinds: dict[str, KindSection]
    workload: WorkloadSection
    schedule: ScheduleSection
    power: PowerSection
    power_saving: PowerSavingSection
    signals: SignalsSection = field(default_factory=SignalsSection)
    deferral: DeferralSection = field(default_factory=DeferralSection)
    models: tuple[ModelSection, ...] = field(default=())
    trace: TraceSection = field(default_factory=TraceSection)
    constraints: ConstraintTables = field(default_factory=ConstraintTables)
    sites: dict[str, SiteSection] = field(default_factory=dict)
    placement: PlacementSection = field(default_factory=PlacementSection)
    sweep: tuple[SweepAxis, ...] = ()
    label: str = ""
    point: tuple[tuple[str, Any], ...] = ()

    @property
    def policy_names(self) -> list[str]:
        """Return the names of the compared scheduling policies.

        With several sites, the names have the form `POLICY@PLACEMENT`.
        """
        policies = self.schedule.policies
        if not self.sites:
            return policies
        return [f"{name}@{placement}" for name in policies for placement in self.placement.policies]

    @property
    def heading(self) -> str:
        """Return the title of the scenario, followed by the label of the sweep variant."""
        return f"{self.title}: {self.label}" if self.label else self.title

    def variant_folder(self, folder: Path) -> Path:
        """Return the folder for the results of this scenario below `folder`.

        Each variant of a sweep has its own folder.
        """
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-")
        if len(name) > 100 or re.search(r"[^A-Za-z0-9._ =,\"]", self.label):
            # Labels that differ only in other characters, such as a sign, must not share a folder.
            name = f"{name[:100]}-{hashlib.sha256(self.label.encode()).hexdigest()[:8]}"
        return folder / name if name else folder

    def workload_files(self) -> list[Path]:
        """Return the paths of the workload files; empty if all jobs are generated from models."""
        names = self.workload.files or [self.workload.file]
        return [self.beside(name) for name in names if name]

    def input_files(self) -> list[Path]:
        """Return the paths of all files that the scenario names."""
        names = [self.power.budget_file, self.power.price_file, self.power.carbon_file]
        names += [getattr(self.signals, key) for key in SIGNAL_FILES.values()]
        for site in self.sites.values():
            names += [site.price_file, site.carbon_file]
        return [*self.workload_files(), *(self.beside(name) for name in names if name)]

    def nodes(self) -> list[NodeKind]:
        """Return the kinds of nodes of the scenario, as arguments of the simulation engine."""
        return [_kind(name, section) for name, section in self.kinds.items()]

    def settings(self, seed: int, deferral_policy: str = "") -> ScheduleSettings:
        """Return the settings of the simulation engine for one seed of random numbers.

        Args:
            seed: seed of the random numbers.
            deferral_policy: deferral policy; an empty text means the policy of the scenario.
        """
        schedule, power = self.schedule, self.power
        infinite = float("inf")
        checkpoint_s = infinite if schedule.checkpoint_s < 0 else schedule.checkpoint_s
        return ScheduleSettings(
            discipline=Discipline(schedule.discipline),
            interval_s=schedule.interval_s,
            horizon_s=schedule.horizon_hours * 3600 or None,
            budget_watts=self.budget(),
            hard_budget=power.hard_budget,
            budget_rules=self.budget_rules(),
            preemption=Preemption(checkpoint_s, schedule.restart_s, schedule.margin_s)
            if schedule.preemption
            else None,
            idle_off_s=None if power.idle_off_s < 0 or self._saves_by_forecast else power.idle_off_s,
            deferral=deferral_of(self.deferral, deferral_policy),
            signals=signal_feed(self.signals, str(self.path), self.beside),
            power_saving=self._power_saving() if self._saves_by_forecast else None,
            half_life_s=schedule.half_life_hours * 3600 or infinite,
            shares=schedule.shares,
            options=Options(schedule.age_weight, schedule.wait_bound_hours * 3600, schedule.weights),
            kill_at_limit=schedule.kill_at_limit,
            constraints=constraints_of(self.constraints, self.nodes(), TableReader(self.path, self.text)),
            seed=seed,
        )

    @property
    def powers_nodes_down(self) -> bool:
        """Return whether idle nodes are powered down."""
        return self._saves_by_forecast or self.power.idle_off_s >= 0

    @property
    def _saves_by_forecast(self) -> bool:
        return self.power.power_saving == "forecast"

    def _power_saving(self) -> PowerSaving:
        section = self.power_saving
        return PowerSaving(section.rules(), section.reserve_nodes, section.reserve_percent / 100)

    def budget(self) -> StepFunction | None:
        """Return the power budget over time; None if the scenario has no budget."""
        if self.power.budget_file:
            return read_steps(self.beside(self.power.budget_file), "watts")
        return StepFunction.constant(self.power.budget_watts) if self.power.budget_watts else None

    def budget_rules(self) -> BudgetRules:
        """Return the rules by which the simulated controller keeps the power budget."""
        power = self.power
        return BudgetRules(
            distribution=power.distribution,
            period_s=power.control_period_s,
            floor_share=power.floor_percent / 100,
            slowdown_limit=power.slowdown_percent / 100 if power.slowdown_percent >= 0 else math.nan,
            announced=power.announced,
            interrupts=power.interrupt,
        )

    def beside(self, name: str) -> Path:
        """Return the path of a file that the scenario names.

        A relative name starts at the folder of the scenario file.
        """
        return self.path.parent / name


def read(name: str) -> Scenario:
    """Read a scenario: a shipped scenario of the given name, or else a file.

    Args:
        name: name of a shipped scenario, or path of a file.

    Raises:
        ConfigError: the file is unreadable, not TOML, or invalid. The message names file, line and key.
    """
    path = locate(name)
    return parse(text_of(path), path)


def parse(text: str, path: Path) -> Scenario:
    """Parse and check the text of a scenario file.

    Args:
        text: the text.
        path: path of the file. Paths in the scenario are relative to the folder of this file.

    Raises:
        ConfigError: the text is not TOML or invalid. The message names file, line and key.
    """
    data, texts = with_base(text, path, depth=0)
    reader = TableReader(path, text)
    for name in data:
        if name not in _SECTIONS:
            raise reader.fail(name, "", "unknown section", f"known: {', '.join(_SECTIONS)}")
    clusters, models = data.get("cluster", {}), data.get("model", [])
    if not isinstance(clusters, dict) or not clusters:
        raise reader.fail(
            "cluster", "", "at least one kind of nodes is needed", "write a table [cluster.NAME]"
        )
    if not isinstance(models, list):
        raise reader.fail("model", "", "must be a list of tables: [[model]]")
    sites = data.get("site", {})
    if not isinstance(sites, dict):
        raise reader.fail("site", "", "must be tables: [site.NAME]")
    scenario = Scenario(
        name=path.stem,
        path=path,
        text=texts,
        title=str(data.get("title", path.stem)),
        kinds={name: reader.section(KindSection, f"cluster.{name}", t) for name, t in clusters.items()},
        workload=reader.section(WorkloadSection, "workload", data.get("workload", {})),
        schedule=reader.section(ScheduleSection, "schedule", data.get("schedule", {})),
        power=reader.section(PowerSection, "power", data.get("power", {})),
        power_saving=reader.section(PowerSavingSection, "power_saving", data.get("power_saving", {})),
        signals=reader.section(SignalsSection, "signals", data.get("signals", {})),
        deferral=reader.section(DeferralSection, "deferral", data.get("deferral", {})),
        models=reader.sections(ModelSection, "model", models),
        trace=reader.section(TraceSection, "trace", data.get("trace", {})),
        constraints=read_tables(data, reader),
        sites={name: reader.section(SiteSection, f"site.{name}", t) for name, t in sites.items()},
        placement=reader.section(PlacementSection, "placement", data.get("placement", {})),
        sweep=_sweep(data["sweep"], reader) if "sweep" in data else (),
    )
    check(scenario, reader)
    return scenario


def _sweep(table: object, reader: TableReader) -> tuple[SweepAxis, ...]:
    try:
        if not isinstance(table, dict) or not table:
            raise ValueError("needs keys with a list of values each")
        return axes_of_table(table)
    except ValueError as error:
        raise reader.fail("sweep", "", str(error), 'e.g. "workload.hours" = [5, 10]') from None


def check(scenario: Scenario, reader: TableReader) -> None:
    """Check the conditions that involve several keys of a scenario. Violations are reported by `reader`."""
    check_sites(scenario.sites, scenario.placement, scenario.kinds, scenario.power, scenario.signals, reader)
    for name, kind in scenario.kinds.items():
        if kind.unit_idle_watts * kind.units > kind.idle_watts * (1 + 1e-9):
            why = f"times {kind.units} units must not be above idle_watts, {kind.idle_watts:g}"
            raise reader.fail(f"cluster.{name}", "unit_idle_watts", why)
    check_tables(scenario.constraints, scenario.nodes(), reader)
    if scenario.sites and scenario.constraints:
        table = next(name for name in TABLES if getattr(scenario.constraints, name))
        raise reader.fail(table, "", "is not possible with several sites", "remove the tables [site.NAME]")
    if not scenario.schedule.policies:
        raise reader.fail("schedule", "policies", "is empty", 'e.g. ["fcfs", "zeus"]')
    discipline = scenario.schedule.discipline
    if discipline not in set(Discipline):
        raise reader.fail(
            "schedule", "discipline", f"one of {', '.join(Discipline)}, not '{shown(discipline)}'"
        )
    distribution = scenario.power.distribution
    if distribution not in set(DistributionPolicy):
        raise reader.fail(
            "power", "distribution", f"one of {', '.join(DistributionPolicy)}, not '{shown(distribution)}'"
        )
    if scenario.power.power_saving not in _POWER_SAVING:
        raise reader.fail(
            *("power", "power_saving"),
            f"one of {', '.join(_POWER_SAVING)}, not '{shown(scenario.power.power_saving)}'",
        )
    saving = scenario.power_saving
    if saving.risk > saving.wake_probability:
        raise reader.fail("power_saving", "risk", "must not be above wake_probability: nodes would flap")
    check_signals(scenario.signals, str(scenario.path))
    deferral_of(scenario.deferral, "")
    if lacking := missing_file(scenario.deferral.policy, scenario.signals):
        raise reader.fail("deferral", "policy", f"'{scenario.deferral.policy}' needs {lacking} in [signals]")
    if scenario.workload.file and scenario.workload.files:
        raise reader.fail("workload", "files", "is not possible together with file", "remove one of them")
    if scenario.trace.outliers not in OUTLIERS:
        raise reader.fail("trace", "outliers", f"one of {', '.join(OUTLIERS)}")
    if not scenario.workload_files() and not scenario.models:
        raise reader.fail("workload", "", "jobs come from a file or from [[model]] tables", "give one")
    for index, model in enumerate(scenario.models):
        table = table_label("model", index)
        if not model.profile:
            raise reader.fail(table, "profile", "is needed")
        if not model.gpus or not model.batches or min(*model.gpus, *model.batches) < 1:
            raise reader.fail(table, "gpus", "and batches must be lists of positive numbers")
        if model.caps_watts and not min(model.caps_watts) > 0:
            raise reader.fail(table, "caps_watts", "must be positive")
        if model.rigid_hardware and model.rigid_hardware not in scenario.kinds:
            raise reader.fail(table, "rigid_hardware", f"there is no [cluster.{model.rigid_hardware}]")


def _kind(name: str, section: KindSection) -> NodeKind:
    hours = section.mean_hours_to_failure
    return NodeKind(
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
        unit_min_watts=section.unit_min_watts,
        memory_gib=section.memory_gib or math.inf,
    )
