"""Declaration of all configuration keys: type, default, limits and meaning.

The default, documentation and check of a key are the metadata of a dataclass field. `loader.py` uses them to
validate a file. `schema_document.py` generates the example file and the reference page from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurm_energy.config.budget_tables import BudgetConfig, BudgetTable
from slurm_energy.config.cluster_tables import OtherCluster, PlacementConfig
from slurm_energy.config.daemon_sections import AgentConfig, ClusterConfig, ControllerConfig
from slurm_energy.config.deferral_section import DeferralConfig, SignalsConfig
from slurm_energy.config.diagnosis_section import DiagnosisConfig
from slurm_energy.config.grid_tables import CarbonConfig, PriceConfig
from slurm_energy.config.metrics_section import MetricsConfig
from slurm_energy.config.node_types import NodeType, merged_values, this_node, types_of
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy
from slurm_energy.config.power_saving_section import PowerSavingConfig
from slurm_energy.config.quota_section import QuotaConfig
from slurm_energy.config.value_checks import (
    ascending,
    between,
    bmc_address,
    key,
    keyed_words,
    node_parts,
    one_of,
    values_of,
)


@dataclass(frozen=True, slots=True)
class DefaultsConfig:
    """Energy policy of jobs that do not request one with --energy-policy.

    If both the user and the partition have an entry, the entry of the user applies.
    """

    policy: str = key("monitor", "Policy of jobs without an entry below.")
    partition: dict[str, str] = key({}, "Policy by partition.", keyed_words, show={"gpu": "edp"})
    user: dict[str, str] = key({}, "Policy by user.", keyed_words, show={"alice": "performance"})


@dataclass(frozen=True, slots=True)
class BoundsConfig:
    """Bounds on the values that users may request. The limits of the hardware apply in addition.

    Tuning keeps to the lower bounds of GPU caps, CPU frequency and GPU clock.
    """

    cap_watts: tuple[float, float] = key((100.0, 10000.0), "Bounds of --energy-cap, per node.", ascending)
    gpu_cap_watts: tuple[float, float] = key((100.0, 1000.0), "Bounds of --energy-gpu-cap.", ascending)
    slowdown_percent: tuple[float, float] = key((0.0, 100.0), "Bounds of --energy-slowdown.", ascending)
    cpu_freq_mhz: tuple[float, float] = key((100.0, 10000.0), "Bounds of --energy-cpu-freq.", ascending)
    gpu_clock_mhz: tuple[float, float] = key((100.0, 10000.0), "Bounds of --energy-gpu-clock.", ascending)


TUNING_MODES = ("off", "advise", "on")
"""Tuning modes in ascending order of what they permit."""


@dataclass(frozen=True, slots=True)
class TuningConfig:
    """Section `[tuning]` of the configuration: tuning of jobs whose policy names an objective.

    The objectives are `edp`, `ed2p` and `energy`. See docs/tuning.md.
    """

    mode: str = key(
        "on",
        "off: no measurement and no search; advise: report in the record what would be set, change nothing; "
        "on: tune. A job may choose a lower mode with --energy-tuning, not a higher one.",
        one_of(*TUNING_MODES),
    )
    partition: dict[str, str] = key(
        {}, "Mode by partition, instead of `mode`.", values_of(*TUNING_MODES), show={"debug": "off"}
    )
    slowdown_limit_percent: float = key(
        5.0,
        "Slowdown limit of jobs with the objective `energy` and without --energy-slowdown, in percent of the "
        "time of the untuned job.",
        between(0, 100),
    )
    max_probes: int = key(
        9, "Maximum number of settings that a search tries, per phase of a job.", between(1, 50)
    )


NODE_POWER_SOURCES = ("auto", "none", "pm_counters", "power_meter", "ipmi", "redfish", "psys", "grace-module")


@dataclass(frozen=True, slots=True)
class NodePowerConfig:
    """Where senergyd reads the power of the whole node: a meter inside the node or its BMC.

    See docs/power-sources.md.
    """

    source: str = key(
        "auto", "Source of the node's power; auto: the best available source.", one_of(*NODE_POWER_SOURCES)
    )
    excludes: list[str] = key(
        [], "Parts that the source does not measure: cpu, dram, gpu, rest.", node_parts, show=["gpu"]
    )
    bmc: str = key(
        "",
        "Address of the BMC: ipmi://HOST[:PORT] or https://HOST[:PORT]; {node} is replaced by the name of "
        "the node. Empty: /dev/ipmi0 of the node, if it exists.",
        bmc_address,
        show="https://{node}-bmc",
    )
    bmc_user: str = key("", "Account on the BMC with read permission.", show="monitor")
    bmc_password_file: Path | None = key(
        None,
        "File with the password of the account in its first line, readable by root only.",
        show="/etc/slurm/bmc.password",
    )
    bmc_certificates: Path | None = key(
        None, "CA certificates for https. Default: those of the system.", show="/etc/slurm/bmc-ca.pem"
    )
    bmc_chassis: str = key(
        "", "Redfish path of the node's chassis, if it is ambiguous.", show="/redfish/v1/Chassis/1"
    )
    interval_s: float = key(5.0, "Seconds between readings of a BMC.", between(1, 60))


PRIORITY_MODES = ("off", "shadow", "plugin", "portable")


@dataclass(frozen=True, slots=True)
class PriorityConfig:
    """Section `[priority]`: ranking of the job queue. See docs/priority.md."""

    mode: str = key(
        "off",
        "off; shadow: rank and compare, but change nothing; plugin: apply the ranking through "
        "site_factor/energy; portable: apply it through scontrol.",
        one_of(*PRIORITY_MODES),
        show="shadow",
    )
    policy: str = key("blend", "Scheduling policy, see `senergy simulate --list`.")
    policy_file: Path | None = key(
        None, "Python file with scheduling policies of the site.", show="/etc/slurm/my_policy.py"
    )
    weights: dict[str, float] = key(
        {}, "Weights of the terms of the scheduling policy.", show={"edp": 1.0, "fair": 0.5}
    )
    age_weight: float = key(
        0.01, "Weight of a second of waiting time, for scheduling policies without weights.", between(0, 1e6)
    )
    wait_bound_s: float = key(
        86400.0, "Seconds; jobs that wait longer are ranked before all others, oldest first.", between(1, 1e9)
    )
    aged_jobs_per_user: int = key(
        10,
        "Maximum number of jobs per user that are ranked first because of wait_bound_s, per wait_bound_s.",
        between(0, 1e6),
    )
    interval_s: float = key(15.0, "Seconds between two rankings.", between(1, 3600))
    stale_s: float = key(
        300.0,
        "Maximum age of the table in seconds. slurmctld's plugin ignores an older one.",
        between(10, 86400),
    )
    half_life_s: float = key(604800.0, "Half-life of energy in fair shares, in seconds.", between(60, 1e9))
    partitions: list[str] = key([], "Partitions to rank; empty: all.", show=["gpu"])
    table: Path = key(
        Path("/run/senergyctld/priority.table"), "Table of site factors for slurmctld's plugin."
    )
    queue_table: Path = key(
        Path("/run/senergyctld/queue/queue.table"),
        "Table of the queue, written by slurmctld's plugin; its directory belongs to SlurmUser.",
    )
    refresh_new_jobs: bool = key(
        True,
        "plugin: make slurmctld rank new jobs at once with one scontrol, not at its pass each minute.",
    )
    shape_selection_delay_s: float = key(
        0.0,
        "Delay in seconds before a job with --energy-alternatives may start, so that its shape is chosen "
        "first; a little more than interval_s. 0: it may start at once with the requested shape.",
        between(0, 300),
        show=20,
    )
    fingerprints: bool = key(
        True,
        "plugin, portable: the job_submit module writes the fingerprint of a batch script to AdminComment. "
        "Pending jobs are then predicted by their script, otherwise by their name.",
    )
    updates_per_s: float = key(
        50.0, "Maximum number of changes per second that are requested from slurmctld.", between(0.1, 10000)
    )
    shadow_flags: bool = key(
        False,
        "shadow without the plugin's queue_table: the job_submit module writes the energy flags to "
        "AdminComment, where squeue shows them. false: predictions do not know the flags.",
    )
    preempt: bool = key(False, "Allow scheduling policies to requeue running jobs for jobs with a deadline.")


@dataclass(frozen=True, slots=True)
class OracleConfig:
    """The site's files for predictions with the training model. See docs/oracle.md."""

    calibrations: list[Path] = key(
        [],
        "Files from `senergy calibrate`, at most one per kind of GPU; they take precedence over the files of "
        "the package. senergyctld reads them at start and reload, `senergy predict` at each call.",
        show=["/etc/slurm/energy/a100.toml"],
    )
    hardware: list[Path] = key(
        [],
        "Hardware files for devices that the package does not know, in the format of the package's files.",
        show=["/etc/slurm/energy/b200.toml"],
    )


@dataclass(frozen=True, slots=True)
class TemplatesConfig:
    """The site's templates for `senergy template`."""

    folder: Path = key(
        Path("/etc/slurm/energy-templates"),
        "Directory with templates NAME.sh.j2; they replace shipped templates of the same name.",
    )


@dataclass(frozen=True, slots=True)
class Config:
    """A validated configuration.

    Attributes:
        clusters: clusters among which `senergy where` chooses, by Slurm's name (`[clusters.NAME]`).
        node_types: types of nodes by name (`[node_types.NAME]`).
        file_bounds: section `bounds` of the file, if `for_node` made this configuration; else None.
        policies: energy policies of the site by name (`[policies.NAME]`).
        edp: entries of the site for the energy policy `edp` (`[[edp]]`).
        budgets: power budgets (`[[budgets]]`).
        path: path of the configuration file; None: the defaults.
    """

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    defaults: DefaultsConfig = field(default_factory=DefaultsConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    node_power: NodePowerConfig = field(default_factory=NodePowerConfig)
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    power_saving: PowerSavingConfig = field(default_factory=PowerSavingConfig)
    carbon: CarbonConfig = field(default_factory=CarbonConfig)
    price: PriceConfig = field(default_factory=PriceConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    deferral: DeferralConfig = field(default_factory=DeferralConfig)
    signals: SignalsConfig = field(default_factory=SignalsConfig)
    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)
    oracle: OracleConfig = field(default_factory=OracleConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    clusters: dict[str, OtherCluster] = field(default_factory=dict)
    node_types: dict[str, NodeType] = field(default_factory=dict)
    file_bounds: BoundsConfig | None = None
    policies: dict[str, SitePolicy] = field(default_factory=dict)
    edp: tuple[EdpEntry, ...] = ()
    budgets: tuple[BudgetTable, ...] = ()
    path: Path | None = None

    def for_node(self, node: str) -> Config:
        """Return the configuration that is in force on a node.

        The configuration file can set values for types of nodes. These values replace the general values if
        the node belongs to the type.

        Args:
            node: Slurm's name of the node.
        """
        sections: dict[str, dict[str, Any]] = {}
        for (section, name), (_, value) in merged_values(types_of(self.node_types, node)).items():
            sections.setdefault(section, {})[name] = value
        changed = {section: replace(getattr(self, section), **keys) for section, keys in sections.items()}
        return replace(self, file_bounds=self.file_bounds or self.bounds, **changed) if changed else self

    def for_this_node(self) -> Config:
        """Return the configuration of the node on which this process runs."""
        return self.for_node(this_node()) if self.node_types else self

    @property
    def accepted_bounds(self) -> BoundsConfig:
        """Widest bounds of settings over all nodes, for the check of energy flags at submission.

        At submission, the nodes of a job are not known yet. Therefore a flag is accepted if its value lies
        within these bounds.
        """
        widest = self.file_bounds or self.bounds
        for node_type in self.node_types.values():
            for name, (low, high) in node_type.bounds.items():
                lowest, highest = getattr(widest, name)
                widest = replace(widest, **{name: (min(low, lowest), max(high, highest))})
        return widest


SECTIONS: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "agent": AgentConfig,
    "controller": ControllerConfig,
    "defaults": DefaultsConfig,
    "bounds": BoundsConfig,
    "tuning": TuningConfig,
    "node_power": NodePowerConfig,
    "templates": TemplatesConfig,
    "priority": PriorityConfig,
    "budget": BudgetConfig,
    "power_saving": PowerSavingConfig,
    "carbon": CarbonConfig,
    "price": PriceConfig,
    "quota": QuotaConfig,
    "deferral": DeferralConfig,
    "signals": SignalsConfig,
    "placement": PlacementConfig,
    "diagnosis": DiagnosisConfig,
    "oracle": OracleConfig,
    "metrics": MetricsConfig,
}
