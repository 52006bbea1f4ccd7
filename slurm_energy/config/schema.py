"""Declaration of all configuration keys: type, default, limits and meaning.

The default, documentation and check of a key are the metadata of a dataclass field. `loader.py` uses them to
validate a file. `schema_document.py` generates the example file and the reference page from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.config.addresses import parse_listen, parse_url
from slurm_energy.config.budget_tables import BudgetConfig, BudgetTable
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.config.grid_tables import CarbonConfig, PriceConfig
from slurm_energy.config.metrics_section import MetricsConfig
from slurm_energy.config.policy_tables import EdpEntry, SitePolicy
from slurm_energy.config.quota_section import QuotaConfig
from slurm_energy.config.value_checks import (
    LOG_LEVELS,
    ROOT_SOCKET_SUFFIX,
    ascending,
    at_least_one_user,
    between,
    bmc_address,
    cluster_name,
    component_watts,
    divisor_of_a_day,
    idle_watts,
    key,
    keyed_words,
    node_parts,
    one_of,
    parsed_by,
    socket_path,
    user_names,
    users_and_groups,
    values_of,
)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Keys that both daemons and the CLI use."""

    name: str = key("cluster", "ClusterName of slurm.conf; part of every record's key.", cluster_name)
    controller_url: str = key(
        "http://localhost:6828",
        "URL of senergyctld for agents and the CLI. Every request carries a munge credential.",
        parsed_by(parse_url),
    )
    munge_socket: Path | None = key(
        None,
        "Socket of munged. Default: that of the munge library.",
        socket_path(""),
        show="/run/munge/munge.socket.2",
    )
    controller_users: list[str] = key(
        ["root", "slurm"],
        "Users, or their uids, as which senergyctld may run. Agents and the CLI reject responses of others.",
        at_least_one_user,
    )


_STATE_FOLDER = Path("/var/lib/senergyctld")
RECORD_HOSTS = ("check", "strict", "off")


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent, senergyd, on a compute node."""

    socket: Path = key(
        Path("/run/senergy/agent.sock"),
        "Unix socket for hooks, steps and local tools.",
        socket_path(ROOT_SOCKET_SUFFIX),
    )
    state_dir: Path = key(
        Path("/var/lib/senergy/agent"),
        "Directory for the journal of original settings and the spool of records; on a local disk.",
    )
    sampling_hz: float = key(1.0, "Samples per second of each fast energy counter.", check=between(0.1, 50.0))
    spool_limit_mb: int = key(
        512, "Maximum size of the spool; traces are dropped before records.", check=between(1, 1_000_000)
    )
    trace_retention_days: float = key(
        30.0, "Days to keep power traces that the controller has not confirmed.", check=between(0, 36500)
    )
    period_s: int = key(
        3600,
        "Seconds of a period, for which the node delivers its energy and that of its jobs; a divisor of a "
        "day. Periods end at its multiples in UTC.",
        check=divisor_of_a_day,
    )
    live_report_s: float = key(
        30.0,
        "Seconds between reports of the node's power and the energy of running jobs to senergyctld, which "
        "may ask for longer ones. 0: none.",
        check=between(0, 3600),
    )
    set_rapl_time_window_s: float = key(
        1.0, "Time window that is written with each RAPL power limit.", check=between(0.001, 64.0)
    )
    idle_watts: dict[str, float] = key(
        {},
        "Idle power of the node's components, for attribution on shared nodes; gpu: of each GPU. Other "
        "components: measured while the node is idle.",
        idle_watts,
        show={"cpu": 90.0, "other": 110.0},
    )
    resctrl: str = key(
        "auto",
        "Monitoring of each job's memory traffic through the kernel's resctrl file system, for attribution "
        "on shared nodes. auto: if the file system is mounted; mount: mount it at the start if it is not; "
        "off: divide by CPU time. Takes effect at the start of senergyd. See docs/attribution.md.",
        one_of("auto", "mount", "off"),
    )
    output_line: bool = key(
        True,
        "Write a line about energy, emissions and cost at the end of the output of batch jobs. Users switch "
        "it off with SENERGY_OUTPUT_LINE=0 in the environment of sbatch.",
    )
    log_level: str = key("info", "Minimum log level; --log-level overrides it.", one_of(*LOG_LEVELS))


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The controller, senergyctld."""

    listen: str = key("127.0.0.1:6828", "HOST:PORT to listen on.", parsed_by(parse_listen))
    database: DatabaseLocation = key(
        parse_database("/var/lib/senergyctld/senergy.db"),
        "SQLite file, whose directory must exist, or mariadb://USER@HOST/NAME or "
        "postgresql://USER@HOST/NAME. See docs/accounting.md.",
    )
    database_password_file: Path | None = key(
        None,
        "File with the password for the database server, readable only by the user of senergyctld.",
        show="/etc/slurm/senergy-database-password",
    )
    state_dir: Path | None = key(
        None,
        "Directory for other files of senergyctld. Default: the directory of the SQLite file, or "
        "/var/lib/senergyctld with a database server.",
        show="/var/lib/senergyctld",
    )
    policy_file: Path = key(
        Path("/run/senergyctld/policies"),
        "File with policies and bounds for the SPANK plugin and job_submit.lua; rewritten on reload.",
    )
    record_hosts: str = key(
        "check",
        "Hosts that may deliver the records of a node. check: the node itself; any host while Slurm does not "
        "answer. strict: the node itself; none while addresses are unknown, and without regard to the "
        "address in the munge credential. off: any host. See docs/accounting.md.",
        lambda value: None if value in RECORD_HOSTS else f"must be one of {', '.join(RECORD_HOSTS)}",
    )
    max_watts: dict[str, float] = key(
        {},
        "Maximum plausible mean power of cpu (all processors of a node), dram, gpu (each), other and node. "
        "Records with more energy, and reports about power budgets with larger devices, are rejected. "
        "Defaults: 20000, 5000, 5000, 20000, 50000.",
        component_watts,
        show={"gpu": 5000.0, "node": 50000.0},
    )
    agent_users: list[str] = key(["root"], "Users as which agents run and deliver records.", user_names)
    operators: list[str] = key(
        ["root", "slurm"],
        "Users, and groups written as %NAME, who may read all jobs. Other users may read their own.",
        users_and_groups,
        show=["root", "slurm", "%energy"],
    )
    slurm_roles: bool = key(
        True,
        "Use the roles in Slurm's database: coordinators may read the jobs of their accounts, and users with "
        "AdminLevel Operator or Administrator all jobs.",
    )
    admin_comment: bool = key(
        False,
        "Write energy, emissions and cost of ended jobs as JSON into their AdminComment, with one sacctmgr "
        "per job. Comments of other tools are left alone.",
    )
    public_meter: bool = key(
        False,
        "Show idle and unattributed energy, and the total of the meters, to all users in senergy report; "
        "otherwise to operators only.",
    )
    enrich_interval_s: float = key(
        15.0,
        "Seconds between queries to Slurm for account, name and state of the jobs of new records.",
        check=between(1, 3600),
    )
    trace_retention_days: float = key(90.0, "Days to keep power traces.", check=between(0, 36500))
    history_days: float = key(
        365.0,
        "Days to keep finished runs, from which jobs are predicted, and decisions about jobs.",
        check=between(0, 36500),
    )
    log_level: str = key("info", "Minimum log level; --log-level overrides it.", one_of(*LOG_LEVELS))

    @property
    def state_folder(self) -> Path:
        """Directory for files of senergyctld other than the database."""
        return self.state_dir or (self.database.path.parent if self.database.path else _STATE_FOLDER)


@dataclass(frozen=True, slots=True)
class DefaultsConfig:
    """Policy of jobs without --energy-policy. The entry of the user takes precedence over the partition's."""

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
    """Tuning of jobs whose policy names an objective: `edp`, `ed2p` or `energy`. See docs/tuning.md."""

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
    """Ranking of the queue. See docs/priority.md."""

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
    carbon: CarbonConfig = field(default_factory=CarbonConfig)
    price: PriceConfig = field(default_factory=PriceConfig)
    quota: QuotaConfig = field(default_factory=QuotaConfig)
    oracle: OracleConfig = field(default_factory=OracleConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    policies: dict[str, SitePolicy] = field(default_factory=dict)
    edp: tuple[EdpEntry, ...] = ()
    budgets: tuple[BudgetTable, ...] = ()
    path: Path | None = None


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
    "carbon": CarbonConfig,
    "price": PriceConfig,
    "quota": QuotaConfig,
    "oracle": OracleConfig,
    "metrics": MetricsConfig,
}
