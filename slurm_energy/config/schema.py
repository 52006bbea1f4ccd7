"""Every configuration key: its type, default, limits and meaning. Declarations only.

A key's default, its documentation and its check are the metadata of a dataclass field, so that
`reading.py` (validation) and `document.py` (example file, reference page) cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy.config.addresses import parse_listen, parse_url
from slurm_energy.config.value_checks import (
    LOG_LEVELS,
    ROOT_SOCKET_SUFFIX,
    ascending,
    at_least_one_user,
    between,
    bmc_address,
    cluster_name,
    component_watts,
    idle_watts,
    key,
    keyed_words,
    model_name,
    node_parts,
    one_line,
    one_of,
    parsed_by,
    product_name,
    socket_path,
    user_names,
    users_and_groups,
)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What both daemons and the CLI share."""

    name: str = key("cluster", "ClusterName of slurm.conf; part of every record's key.", cluster_name)
    controller_url: str = key(
        "http://localhost:6828",
        "Where agents and the CLI reach senergyctld. All requests carry a munge credential.",
        parsed_by(parse_url),
    )
    munge_socket: Path | None = key(
        None,
        "munged's socket if it is not the library's default.",
        socket_path(""),
        show="/run/munge/munge.socket.2",
    )
    controller_users: list[str] = key(
        ["root", "slurm"],
        "Users, or their uids, as which senergyctld may run. Agents and the CLI believe no response that "
        "another user made.",
        at_least_one_user,
    )


RECORD_HOSTS = ("check", "strict", "off")


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The node agent, senergyd."""

    socket: Path = key(
        Path("/run/senergy/agent.sock"),
        "Unix socket for hooks, steps and local tools.",
        socket_path(ROOT_SOCKET_SUFFIX),
    )
    state_dir: Path = key(
        Path("/var/lib/senergy/agent"),
        "Journal of original settings and spool of undelivered records; local disk.",
    )
    sampling_hz: float = key(
        1.0, "Samples per second of every fast energy counter.", check=between(0.1, 50.0)
    )
    spool_limit_mb: int = key(
        512, "Disk space for undelivered records and traces; traces go first.", check=between(1, 1_000_000)
    )
    trace_retention_days: float = key(
        30.0, "Days to keep power traces that the controller has not taken.", check=between(0, 36500)
    )
    set_rapl_time_window_s: float = key(
        1.0, "Averaging window written together with a RAPL power limit.", check=between(0.001, 64.0)
    )
    idle_watts: dict[str, float] = key(
        {},
        "Watts of the idle node's components, for the split of shared nodes; gpu is each GPU. What is not "
        "given is learned from quiet moments.",
        idle_watts,
        show={"cpu": 90.0, "other": 110.0},
    )
    log_level: str = key(
        "info", "Least level that senergyd logs; --log-level goes before.", one_of(*LOG_LEVELS)
    )


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The cluster daemon, senergyctld."""

    listen: str = key("127.0.0.1:6828", "HOST:PORT to accept agents and the CLI on.", parsed_by(parse_listen))
    database: Path = key(Path("/var/lib/senergyctld/senergy.db"), "SQLite file; its directory must exist.")
    policy_file: Path = key(
        Path("/run/senergyctld/policies"),
        "Names and bounds for the SPANK plugin and job_submit.lua, rewritten on reload.",
    )
    record_hosts: str = key(
        "check",
        "Which host may deliver a node's records. check: none but the node's own, unless Slurm does "
        "not answer; strict: nothing is taken while addresses are not known, and the address that munge "
        "names does not count; off: any host. See docs/accounting.md.",
        lambda value: None if value in RECORD_HOSTS else f"must be one of {', '.join(RECORD_HOSTS)}",
    )
    max_watts: dict[str, float] = key(
        {},
        "Highest plausible mean watts by cpu (all processors of a node), dram, gpu (each), other and node; a "
        "record with more energy is rejected. Where not given: 20000, 5000, 5000, 20000, 50000.",
        component_watts,
        show={"gpu": 5000.0, "node": 50000.0},
    )
    agent_users: list[str] = key(["root"], "Users whose munge credentials may deliver records.", user_names)
    operators: list[str] = key(
        ["root", "slurm"],
        "Users, and groups written as %NAME, who may read every job; others read their own.",
        users_and_groups,
        show=["root", "slurm", "%energy"],
    )
    slurm_roles: bool = key(
        True,
        "Whether roles in Slurm's database count: coordinators read the jobs of their accounts, users with "
        "AdminLevel Operator or Administrator every job.",
    )
    enrich_interval_s: float = key(
        15.0,
        "Seconds between queries to Slurm for account, name and state of new records.",
        check=between(1, 3600),
    )
    trace_retention_days: float = key(90.0, "Days to keep power traces.", check=between(0, 36500))
    history_days: float = key(
        365.0,
        "Days to predict jobs from the runs of jobs before them, and to keep what was decided about jobs.",
        check=between(0, 36500),
    )
    log_level: str = key(
        "info", "Least level that senergyctld logs; --log-level goes before.", one_of(*LOG_LEVELS)
    )


@dataclass(frozen=True, slots=True)
class DefaultsConfig:
    """The policy of jobs that ask for none; user goes before partition."""

    policy: str = key("monitor", "Policy of a job without --energy-policy.")
    partition: dict[str, str] = key({}, "Policy per partition.", keyed_words, show={"gpu": "edp"})
    user: dict[str, str] = key({}, "Policy per user.", keyed_words, show={"alice": "performance"})


@dataclass(frozen=True, slots=True)
class BoundsConfig:
    """What users may ask for. Hardware limits apply on top."""

    cap_watts: tuple[float, float] = key(
        (100.0, 10000.0), "Lowest and highest --energy-cap per node.", ascending
    )
    gpu_cap_watts: tuple[float, float] = key(
        (100.0, 1000.0), "Lowest and highest --energy-gpu-cap.", ascending
    )


NODE_POWER_SOURCES = ("auto", "none", "pm_counters", "power_meter", "ipmi", "redfish", "psys", "grace-module")


@dataclass(frozen=True, slots=True)
class NodePowerConfig:
    """Where nodes tell the power of all of their parts together.

    See docs/power-sources.md.
    """

    source: str = key(
        "auto", "Source of the node's power; auto: the best that is there.", one_of(*NODE_POWER_SOURCES)
    )
    excludes: list[str] = key(
        [], "Parts that are known not to be in it: cpu, dram, gpu, rest.", node_parts, show=["gpu"]
    )
    bmc: str = key(
        "",
        "Management controller over the network: ipmi://HOST[:PORT] or https://HOST[:PORT]; {node} stands "
        "for the node's name. Empty: the one in the node, if it has /dev/ipmi0.",
        bmc_address,
        show="https://{node}-bmc",
    )
    bmc_user: str = key("", "Account on the controller that may read.", show="monitor")
    bmc_password_file: Path | None = key(
        None,
        "File with its password in the first line, readable by root alone.",
        show="/etc/slurm/bmc.password",
    )
    bmc_certificates: Path | None = key(
        None, "Certificates to trust for https; default: the system's.", show="/etc/slurm/bmc-ca.pem"
    )
    bmc_chassis: str = key(
        "", "Redfish path of the node's chassis, if it is not clear.", show="/redfish/v1/Chassis/1"
    )
    interval_s: float = key(5.0, "Seconds between readings of a controller.", between(1, 60))


PRIORITY_MODES = ("off", "shadow", "plugin", "portable")


@dataclass(frozen=True, slots=True)
class PriorityConfig:
    """The order of the queue. See docs/priority.md."""

    mode: str = key(
        "off",
        "off; shadow: compute and compare, change nothing; plugin: through site_factor/energy; portable: "
        "through scontrol.",
        one_of(*PRIORITY_MODES),
        show="shadow",
    )
    policy: str = key("blend", "How jobs are ranked: a name that `senergy simulate --list` shows.")
    policy_file: Path | None = key(
        None, "Python file with policies of the site's own.", show="/etc/slurm/my_policy.py"
    )
    weights: dict[str, float] = key({}, "Weights of the policy's terms.", show={"edp": 1.0, "fair": 0.5})
    age_weight: float = key(0.01, "Ageing of policies without weights, per second.", between(0, 1e6))
    wait_bound_s: float = key(
        86400.0, "Jobs that wait longer go before all others, oldest first.", between(1, 1e9)
    )
    aged_jobs_per_user: int = key(
        10,
        "Most jobs of one user that go before all others within wait_bound_s because they waited that long.",
        between(0, 1e6),
    )
    interval_s: float = key(15.0, "Seconds between two rankings.", between(1, 3600))
    stale_s: float = key(
        300.0, "Age at which slurmctld's plugin disregards our scores; the order stays.", between(10, 86400)
    )
    half_life_s: float = key(
        604800.0, "Seconds in which used energy counts half for fair shares.", between(60, 1e9)
    )
    partitions: list[str] = key([], "Partitions that are ranked; empty: all.", show=["gpu"])
    table: Path = key(Path("/run/senergyctld/priority.table"), "Scores for slurmctld's plugin.")
    queue_table: Path = key(
        Path("/run/senergyctld/queue/queue.table"),
        "The queue as slurmctld's plugin sees it; its directory belongs to SlurmUser.",
    )
    refresh_new_jobs: bool = key(
        True,
        "plugin: have slurmctld look up new jobs at once (one scontrol), not at its next pass, each minute.",
    )
    shape_selection_delay_s: float = key(
        0.0,
        "Seconds that a job with --energy-alternatives waits after its submission, so that a shape is chosen "
        "before it starts; a little more than interval_s. 0: it may start at once with what it asks for.",
        between(0, 300),
        show=20,
    )
    fingerprints: bool = key(
        True,
        "plugin, portable: have the job_submit module note the digest of each batch script in AdminComment. "
        "So a waiting job is known by its script, without it by its name.",
    )
    updates_per_s: float = key(
        50.0, "Most changes that slurmctld is asked for, each second.", between(0.1, 10000)
    )
    shadow_flags: bool = key(
        False,
        "shadow without the plugin's queue_table: note energy flags in AdminComment at submission, where "
        "squeue shows them. false: nothing is set, and predictions do not know the flags.",
    )
    preempt: bool = key(
        False, "Whether policies that preempt may requeue running jobs for jobs with a deadline."
    )


@dataclass(frozen=True, slots=True)
class OracleConfig:
    """Files of the site for predictions by the training model. See docs/oracle.md."""

    calibrations: list[Path] = key(
        [],
        "Files that `senergy calibrate` wrote, at most one for each kind of GPU; they go before those that "
        "come with the package. senergyctld reads them at start and reload, `senergy predict` each time.",
        show=["/etc/slurm/energy/a100.toml"],
    )
    hardware: list[Path] = key(
        [],
        "Hardware files of kinds of device that the package does not have, in the form of its own.",
        show=["/etc/slurm/energy/b200.toml"],
    )


GOVERNORS = ("performance", "powersave", "ondemand", "conservative", "schedutil")
"""Governors of Linux that set a frequency by themselves (Documentation/admin-guide/pm/cpufreq.rst)."""
PREFERENCES = ("default", "performance", "balance_performance", "balance_power", "power")
"""Names of energy_performance_preference (Documentation/admin-guide/pm/intel_pstate.rst)."""


@dataclass(frozen=True, slots=True)
class TemplatesConfig:
    """What `senergy template` offers beside the shipped templates."""

    folder: Path = key(
        Path("/etc/slurm/energy-templates"),
        "Folder with templates of the site's own, NAME.sh.j2; they replace shipped ones of the same name.",
    )


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """A policy of the site's own: a built-in one with fixed values and a list of who may use it."""

    base: str = key("monitor", "Built-in policy that it refines.")
    description: str = key("", "One line for `senergy policies`.", one_line)
    users: list[str] = key([], "Users who may ask for it; empty means everyone.", user_names)
    cap_watts: float | None = key(None, "Node cap when the job gives none.", between(1, 1e6), show=400)
    gpu_cap_watts: float | None = key(None, "GPU cap when the job gives none.", between(1, 1e5), show=250)
    max_frequency_mhz: float | None = key(None, "Upper CPU frequency.", between(100, 1e5), show=2100)
    governor: str | None = key(
        None, "cpufreq governor, where the driver offers it.", one_of(*GOVERNORS), show="schedutil"
    )
    epp: str | None = key(
        None, "energy_performance_preference, where offered.", one_of(*PREFERENCES), show="balance_power"
    )


@dataclass(frozen=True, slots=True)
class EdpEntry:
    """Best known settings for a kind of hardware, optionally for one workload; the most specific wins.

    Used by the `edp` policy until measured history replaces it.
    """

    cpu: str = key(
        "",
        "Words of the processor's model name: `Platinum 8358` is not the 8358P. Empty: any.",
        product_name,
        show="Platinum 8358",
    )
    gpu: str = key(
        "",
        "Product name of the GPU: `A100` is every A100, `A100-SXM4-80GB` that one alone. Empty: any.",
        product_name,
        show="",
    )
    model: str = key("", "Value of --energy-model that this entry is for; empty for any.", model_name)
    max_frequency_mhz: float | None = key(None, "Upper CPU frequency.", between(100, 1e5), show=2100)
    package_cap_watts: float | None = key(None, "RAPL limit per package.", between(1, 1e5), show=200)
    gpu_cap_watts: float | None = key(None, "Power limit per GPU.", between(1, 1e5), show=300)
    gpu_clock_mhz: float | None = key(None, "Highest GPU clock.", between(100, 1e5), show=1005)
    source: str = key("", "Where the figures come from.")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration file, validated.

    `policies` and `edp` are tables that the site fills; `path` is the file read, None for defaults.
    """

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    defaults: DefaultsConfig = field(default_factory=DefaultsConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)
    node_power: NodePowerConfig = field(default_factory=NodePowerConfig)
    priority: PriorityConfig = field(default_factory=PriorityConfig)
    oracle: OracleConfig = field(default_factory=OracleConfig)
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)
    policies: dict[str, SitePolicy] = field(default_factory=dict)
    edp: tuple[EdpEntry, ...] = ()
    path: Path | None = None


SECTIONS: dict[str, type[Any]] = {
    "cluster": ClusterConfig,
    "agent": AgentConfig,
    "controller": ControllerConfig,
    "defaults": DefaultsConfig,
    "bounds": BoundsConfig,
    "node_power": NodePowerConfig,
    "templates": TemplatesConfig,
    "priority": PriorityConfig,
    "oracle": OracleConfig,
}
