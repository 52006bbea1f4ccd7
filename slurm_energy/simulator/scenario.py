"""Scenario files: cluster, workload and schedule in TOML; a file may extend another."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.config.loader import TableReader, table_label
from slurm_energy.errors import ConfigError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.cluster import NodeKind
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
from slurm_energy.simulator.site_checks import check_sites
from slurm_energy.simulator.site_schema import PlacementSection, SiteSection
from slurm_energy.simulator.step_function import StepFunction, read_steps
from slurm_energy.spelling import suggestion

_SHIPPED = Path(__file__).parent / "scenarios"
_POWER_SAVING = ("idle_off", "forecast")
_FILES = (("workload", "file"), ("power", "budget_file"), ("power", "price_file"), ("power", "carbon_file"))
"""Keys that name files relative to the scenario."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Contents of a scenario file.

    Attributes:
        name: name of the file without suffix.
        path: path of the file.
        text: text of the file and of the files that it extends. A stored result is valid only for the same
            text.
        title: title for people.
        kinds: kinds of nodes by name.
        workload: section of the workload.
        trace: selection of jobs from workload files.
        schedule: section of the schedule.
        power: section of budget, power states and prices.
        power_saving: section of power saving by forecast.
        models: neural networks that jobs train.
        sites: clusters of their own by name; empty: all nodes are one cluster.
        placement: section of the placement of jobs among the sites.
        sweep: name of a key, as `section.key`, and the values that are simulated one after the other.
        label: label of this variant if the scenario is one of a sweep; empty otherwise. See `sweeps`.
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
    models: tuple[ModelSection, ...] = field(default=())
    trace: TraceSection = field(default_factory=TraceSection)
    sites: dict[str, SiteSection] = field(default_factory=dict)
    placement: PlacementSection = field(default_factory=PlacementSection)
    sweep: tuple[str, tuple[Any, ...]] = ("", ())
    label: str = ""

    @property
    def policy_names(self) -> list[str]:
        """Names of what is compared: scheduling policies, with sites each as `POLICY@PLACEMENT`."""
        policies = self.schedule.policies
        if not self.sites:
            return policies
        return [f"{name}@{placement}" for name in policies for placement in self.placement.policies]

    @property
    def heading(self) -> str:
        """Title of the scenario, followed by the label of the sweep variant."""
        return f"{self.title}: {self.label}" if self.label else self.title

    def variant_folder(self, folder: Path) -> Path:
        """Return the folder for the results of this scenario below `folder`.

        Each variant of a sweep has its own folder.
        """
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-")
        return folder / name if name else folder

    def workload_files(self) -> list[Path]:
        """Return the paths of the workload files; empty: all jobs are generated from models."""
        names = self.workload.files or [self.workload.file]
        return [self.beside(name) for name in names if name]

    def nodes(self) -> list[NodeKind]:
        """Return the kinds of nodes of the scenario as the simulation engine takes them."""
        return [_kind(name, section) for name, section in self.kinds.items()]

    def settings(self, seed: int) -> ScheduleSettings:
        """Return the engine's settings for one seed."""
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
            power_saving=self._power_saving() if self._saves_by_forecast else None,
            half_life_s=schedule.half_life_hours * 3600 or infinite,
            shares=schedule.shares,
            options=Options(schedule.age_weight, schedule.wait_bound_hours * 3600, schedule.weights),
            seed=seed,
        )

    @property
    def _saves_by_forecast(self) -> bool:
        return self.power.power_saving == "forecast"

    def _power_saving(self) -> PowerSaving:
        section = self.power_saving
        return PowerSaving(section.rules(), section.reserve_nodes, section.reserve_percent / 100)

    def budget(self) -> StepFunction | None:
        """Return the power budget over time; None if there is none."""
        if self.power.budget_file:
            return read_steps(self.beside(self.power.budget_file), "watts")
        return StepFunction.constant(self.power.budget_watts) if self.power.budget_watts else None

    def budget_rules(self) -> BudgetRules:
        """Return the rules by which the power budget is kept."""
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
        """Return the path of a file that the scenario names, relative to the folder of the scenario file."""
        return self.path.parent / name


def shipped() -> list[str]:
    """Return the names of the scenarios that the package contains."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def read(name: str) -> Scenario:
    """Read a scenario by its name, if it is one of the package, or from a file.

    Args:
        name: name of a shipped scenario, or path of a file.

    Raises:
        ConfigError: the file is unreadable, not TOML, or invalid. The message names file, line and key.
    """
    path = _SHIPPED / f"{name}.toml" if name in shipped() else Path(name)
    return parse(_text_of(path), path)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        close = suggestion(path.name, shipped())
        raise ConfigError(
            shown(str(path), 200), reason, close or f"a file, or one of {', '.join(shipped())}"
        ) from None


def parse(text: str, path: Path) -> Scenario:
    """Parse and check the text of a scenario file.

    Args:
        text: the text.
        path: path of the file. Files that the scenario names are relative to its folder.

    Raises:
        ConfigError: the text is not TOML or invalid. The message names file, line and key.
    """
    data, texts = _with_base(text, path, depth=0)
    reader = TableReader(path, text)
    sections = (
        "title",
        "extends",
        "cluster",
        "workload",
        "trace",
        "model",
        "schedule",
        "power",
        "power_saving",
        "site",
        "placement",
        "sweep",
    )
    for name in data:
        if name not in sections:
            raise reader.fail(name, "", "unknown section", f"known: {', '.join(sections)}")
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
        models=reader.sections(ModelSection, "model", models),
        trace=reader.section(TraceSection, "trace", data.get("trace", {})),
        sites={name: reader.section(SiteSection, f"site.{name}", t) for name, t in sites.items()},
        placement=reader.section(PlacementSection, "placement", data.get("placement", {})),
        sweep=_sweep(data["sweep"], reader) if "sweep" in data else ("", ()),
    )
    _check(scenario, reader)
    check_sites(scenario.sites, scenario.placement, scenario.kinds, scenario.power, reader)
    return scenario


def _with_base(text: str, path: Path, depth: int) -> tuple[dict[str, Any], str]:
    """Merge a scenario over the one that its key `extends` names.

    Args:
        text: text of the scenario file.
        path: path of the scenario file.
        depth: number of scenarios that extend this one, to detect cycles.

    Returns:
        The merged tables, and the texts of both files.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}", f"not TOML: {error}") from None
    name = data.get("extends")
    if name is None:
        return data, text
    base_path = _SHIPPED / f"{name}.toml" if name in shipped() else path.parent / str(name)
    if depth > 8:
        raise ConfigError(
            f"{path}: extends", "more than 8 scenarios extend one another", "does one extend itself?"
        )
    base, texts = _with_base(_text_of(base_path), base_path, depth + 1)
    for section, key in _FILES:
        if isinstance(base.get(section), dict) and base[section].get(key):
            base[section][key] = str(base_path.parent.absolute() / str(base[section][key]))
    _inherit_workload_files(base.get("workload"), data.get("workload"), base_path.parent.absolute())
    for site in base["site"].values() if isinstance(base.get("site"), dict) else ():
        for key in ("price_file", "carbon_file"):
            if isinstance(site, dict) and site.get(key):
                site[key] = str(base_path.parent.absolute() / str(site[key]))
    return _over(base, data), f"{texts}\n{text}"


def _inherit_workload_files(base: Any, own: Any, folder: Path) -> None:
    """Make `files` of an extended scenario absolute, and remove its file or files if `own` names others."""
    if not isinstance(base, dict):
        return
    if isinstance(base.get("files"), list):
        base["files"] = [str(folder / str(name)) for name in base["files"]]
    if isinstance(own, dict) and ("file" in own or "files" in own):
        for name in ("file", "files"):
            base.pop(name, None)


def _over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` in which the values of `data` replace or extend those with the same keys.

    Tables are merged recursively; lists are replaced as a whole.
    """
    merged = dict(copy.deepcopy(base))
    for name, value in data.items():
        old = merged.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and name != "sweep":
            value = _over(old, value)
        merged[name] = value
    return merged


def _sweep(table: object, reader: TableReader) -> tuple[str, tuple[Any, ...]]:
    if isinstance(table, dict) and len(table) == 1:
        ((name, values),) = table.items()
        if isinstance(values, list) and values:
            return str(name), tuple(values)
    raise reader.fail("sweep", "", "needs one key with a list of values", 'e.g. "workload.hours" = [5, 10]')


def _check(scenario: Scenario, reader: TableReader) -> None:
    """Check the conditions that involve several keys of a scenario; `reader` reports a violation."""
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
    )
