"""Sections `cluster`, `agent` and `controller` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.config.addresses import ControllerUrls, parse_listen, url_faults
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.config.release import check_release
from slurm_energy.config.value_checks import (
    LOG_LEVELS,
    ROOT_SOCKET_SUFFIX,
    at_least_one_user,
    between,
    cluster_name,
    component_watts,
    divisor_of_a_day,
    idle_watts,
    key,
    one_of,
    parsed_by,
    sampling_interval,
    socket_path,
    user_names,
    users_and_groups,
    values_of,
)


def _log_level() -> Any:
    return key(
        "info",
        "Minimum log level: debug, info, warning or error; --log-level overrides it. SIGUSR1 sets debug "
        "until SIGUSR2 or a reload.",
        one_of(*LOG_LEVELS),
    )


def _log_levels(part: str) -> Any:
    """Return the declaration of a configuration key that sets the log levels of parts of a daemon.

    A part is a package or a module of the daemon. The value of the key maps parts to log levels. Such a
    level replaces the daemon's general log level for this part. `part` is the name of a part that the
    documentation of the key uses as an example.
    """
    return key(
        {},
        "Other levels of parts of the program, by package or module below slurm_energy/.",
        values_of(*LOG_LEVELS),
        show={part: "debug"},
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Keys that both daemons and the CLI use."""

    release: str = key(
        "",
        "Release for which this file was written. An older release then ignores keys that it does not know, "
        "with a warning. Without it unknown keys are errors. See docs/upgrading.md.",
        check_release,
        show="0.2",
    )
    name: str = key("cluster", "ClusterName of slurm.conf; part of every record's key.", cluster_name)
    controller_url: ControllerUrls = key(
        ControllerUrls(["http://localhost:6828"]),
        "URL of senergyctld for agents and the CLI, or a list of the URLs of the controllers of the cluster, "
        "of which one is active; see docs/high-availability.md. Every request carries a munge credential.",
        url_faults,
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
        512,
        "Maximum size of the spool; traces and observations are dropped before records.",
        check=between(1, 1_000_000),
    )
    trace_retention_days: float = key(
        30.0,
        "Days to keep power traces and observations that the controller has not confirmed.",
        check=between(0, 36500),
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
    signals_interval: str = key(
        "10s",
        "Interval at which signals of jobs (utilisation, memory, traffic, pressure) are sampled, 1s to 5m. "
        "off: only for jobs with --energy-signals, which precedes this key. See docs/signals-of-jobs.md.",
        sampling_interval,
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
    log_level: str = _log_level()
    log_levels: dict[str, str] = _log_levels("agent.state")


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
    trace_retention_days: float = key(
        90.0, "Days to keep power traces and observations.", check=between(0, 36500)
    )
    history_days: float = key(
        365.0,
        "Days to keep finished runs, from which jobs are predicted, and decisions about jobs.",
        check=between(0, 36500),
    )
    log_level: str = _log_level()
    log_levels: dict[str, str] = _log_levels("controller.records")

    @property
    def state_folder(self) -> Path:
        """Directory for files of senergyctld other than the database."""
        return self.state_dir or (self.database.path.parent if self.database.path else _STATE_FOLDER)
