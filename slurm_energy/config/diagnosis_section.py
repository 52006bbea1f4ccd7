"""Declaration of the section `[diagnosis]`, and the thresholds of findings with their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy.adjustment_permissions import AdjustmentPermissions
from slurm_energy.config.addresses import parse_listen
from slurm_energy.config.finding_kinds import FindingKind
from slurm_energy.config.value_checks import between, key, parsed_by
from slurm_energy.errors import UsageError

ALL_KINDS: Final = "all"
"""Entry of `alerts` that stands for all kinds of findings."""
MAIL_TO_USER: Final = "user"
"""Value of `alert_mail` that stands for the owner of the job."""
_ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}(@[A-Za-z0-9][A-Za-z0-9.-]{0,253})?", re.ASCII)
_DOERRICH = "Dörrich et al.: variation of the time per sample"
_KAUR = "Kaur et al.: alarm at 90 % of the GPU memory"
_BOUZA = "outliers: Bouza et al., beyond 3 sigma of the rolling mean; share: corpus, seeds 0 to 99"
_RAVIKUMAR = "Ravikumar and Sriraman: normalised duration above 1.3 times the median"
_JEON = "Jeon et al.: GPUs in use were busy 52 % of the time on a production cluster"
_BENGIO = "Bengio 2012, Practical Recommendations: 32 as the usual size"
_PROGRAMS = "real programs in the lab, half A"
_CHECKPOINTS = "choice: five checkpoints lose a tenth on average"
_SIZES = "choice: logs are smaller, models larger"
_REVIEW = "jobs of a review that the corpus did not contain, seeds 0 to 9"
_CORPUS = "corpus of synthetic jobs, seeds 0 to 99"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold of a finding.

    Attributes:
        value: default value.
        unit: unit of the value.
        minimum: minimum value that a site may set.
        maximum: maximum value that a site may set.
        meaning: condition that the threshold expresses.
        source: publication or measurement on which the default is based.
    """

    value: float
    unit: str
    minimum: float
    maximum: float
    meaning: str
    source: str


def _percent(value: float, meaning: str, source: str = _CORPUS) -> Threshold:
    return Threshold(value, "%", 0.0, 100.0, meaning, source)


def _seconds(value: float, meaning: str, source: str = _CORPUS) -> Threshold:
    return Threshold(value, "s", 0.0, 1e6, meaning, source)


THRESHOLDS: Final[Mapping[str, Threshold]] = {
    "minimum_time": _seconds(120, "A shorter job gets only findings about failures."),
    "stable_variation": _percent(5, "Step times that vary less are stable.", _DOERRICH),
    "unstable_variation": _percent(20, "Step times that vary more are unstable.", _DOERRICH),
    "gpu_active": _percent(
        5, "A GPU that is busy for a smaller share of an interval is idle in this interval."
    ),
    "gpu_underused": _percent(52, "A GPU is underused if it is less busy even in its busiest tenth.", _JEON),
    "gpu_stalled": _percent(75, "A GPU that is less busy may be waiting for data, copies or checkpoints."),
    "unused_gpu_memory": _percent(10, "A GPU that uses more memory is not called unused."),
    "data_share": _percent(10, "Data stall: share of the step time spent waiting for data."),
    "io_pressure": _percent(20, "Data stall by I/O: share of the time in which a task waited for I/O."),
    "data_rate": Threshold(
        1, "MB/s", 0, 1e6, "Data stall by I/O, if the pressure is unknown: data read by a node.", _CORPUS
    ),
    "loader_busy": _percent(60, "Data stall by CPU: use of the CPUs available to the loader."),
    "cpu_pressure": _percent(40, "CPU contention: share of the time in which a task waited for a CPU."),
    "cpu_saturated": _percent(85, "CPU contention: use of the allocated CPUs."),
    "processes_per_cpu": Threshold(
        1.8, "x", 0, 1000, "CPU contention: ranks and loader processes per CPU, if known.", _CORPUS
    ),
    "cpu_throttled": _percent(10, "CPU contention: share of the time throttled by the CPU quota."),
    "unused_cpu": _percent(30, "Unused CPUs: peak use of the allocated CPUs of a job without GPUs."),
    "unused_cpu_gpu": _percent(10, "Unused CPUs: peak use of the allocated CPUs of a job with GPUs."),
    "unused_cpu_count": Threshold(4, "CPUs", 1, 1e6, "Unused CPUs: minimum number of unused CPUs.", _CORPUS),
    "unused_cpu_per_gpu": Threshold(
        16, "CPUs", 1, 1e6, "Unused CPUs: CPUs per GPU that a job may hold without a finding.", _CORPUS
    ),
    "small_batch_sm": _percent(40, "Small batch: SM activity, if GPM or DCGM measures it."),
    "small_batch_power": _percent(
        45, "Small batch: GPU power, as a share of the range from idle power to the limit."
    ),
    "small_batch_memory": _percent(35, "Small batch: GPU memory in use."),
    "small_batch_optimizer": _percent(
        30, "Small batch of a training on CPUs: the optimizer's share of the computation.", _PROGRAMS
    ),
    "small_batch_limit": Threshold(
        32, "samples", 0, 1e9, "Small batch of a training on CPUs: maximum size of a small batch.", _BENGIO
    ),
    "small_batch_samples": Threshold(
        4, "samples", 0, 1e9, "Small batch: samples of a batch whose loader waits for messages.", _PROGRAMS
    ),
    "worker_message": Threshold(
        5, "ms", 0, 1e6, "Small batch: maximum wait of a step for the message of a worker.", _PROGRAMS
    ),
    "copy_share": _percent(10, "Host-to-device copies: share of the step time."),
    "copy_pcie": Threshold(
        1.2, "GB/s", 0, 1000, "Host-to-device copies: mean PCIe traffic to a stalled GPU.", _CORPUS
    ),
    "communication_share": _percent(
        20, "Communication-bound: communication of all ranks, as a share of the step time."
    ),
    "communication_rate": Threshold(
        0.4, "GB/s", 0, 1e5, "Communication-bound: data sent by a node with busy but inactive GPUs.", _CORPUS
    ),
    "straggler_ratio": Threshold(
        1.3, "x", 1, 100, "Straggler: time of a rank divided by the median of all ranks.", _RAVIKUMAR
    ),
    "straggler_ranks": _percent(
        25, "If more ranks than this share are slow, they are an imbalance, not stragglers."
    ),
    "imbalance": _percent(15, "Load imbalance: mean wait for the slowest rank, as a share of the step time."),
    "memory_used": _percent(90, "Memory pressure: memory in use that still grows.", _KAUR),
    "memory_near_limit": _percent(97, "Memory almost exhausted: memory in use."),
    "memory_stall": _percent(10, "Memory pressure: share of the time in which a task waited for memory."),
    "checkpoint_share": _percent(7, "Checkpoint stalls: share of the job's time."),
    "checkpoint_write": Threshold(
        0.03, "GB/s", 0, 1000, "Checkpoint stalls: data written in an interval with idle GPUs.", _REVIEW
    ),
    "outlier_share": _percent(
        4, "Iteration outliers: their time above the rolling mean, as a share of the step time.", _BOUZA
    ),
    "other_load": _percent(
        30, "Waits for CPUs caused by other work: from this share on, slow steps are no finding.", _PROGRAMS
    ),
    "thermal_share": _percent(10, "Thermal throttling: share of the time."),
    "power_share": _percent(30, "Power throttling: share of the time."),
    "clock_ratio": _percent(75, "Wrong limit or power throttling: clock, as a share of the highest clock."),
    "limit_ratio": _percent(60, "Wrong limit: power limit, as a share of the limit without a policy."),
    "node_clock_ratio": _percent(
        80, "Wrong limit: clock of a node or GPU, as a share of the median of the others."
    ),
    "idle_tail": _seconds(300, "Idle tail: minimum time without activity at the end of the job."),
    "idle_tail_share": _percent(
        10, "Idle tail: minimum time without activity, as a share of the job's time."
    ),
    "idle_stretch": _seconds(1800, "Idle allocation: minimum length of a period without activity."),
    "hang_activity": _percent(
        25, "Hang: SM activity or power of busy GPUs at the end, as a share of that before.", _REVIEW
    ),
    "idle_cpu": _percent(5, "A job whose CPUs are used less in an interval is idle in this interval."),
    "idle_power": _percent(
        15, "A GPU whose power is a smaller share of the range from idle power to limit is idle."
    ),
    "early_failure": _seconds(600, "A job that fails before this time failed early."),
    "lost_work": _percent(
        10, "Unfinished work: time since the last checkpoint, as a share of the job's time.", _CHECKPOINTS
    ),
    "checkpoint_size": Threshold(
        10, "MB", 0, 1e6, "Unfinished work: data written in an interval that may be a checkpoint.", _SIZES
    ),
    "restarts": Threshold(
        2, "runs", 1, 1e6, "Early failure: failed runs of a job that was requeued.", _CORPUS
    ),
}
"""All thresholds by name."""


def _thresholds(values: dict[str, float]) -> str | None:
    for name, value in values.items():
        threshold = THRESHOLDS.get(name)
        if threshold is None:
            return f"has no threshold '{name}'; docs/diagnosis.md lists them"
        if not threshold.minimum <= value <= threshold.maximum:
            return f"has '{name}' outside {threshold.minimum:g} to {threshold.maximum:g} {threshold.unit}"
    return None


def _kinds(values: list[str]) -> str | None:
    names = [kind.value for kind in FindingKind]
    wrong = [value for value in values if value not in (*names, ALL_KINDS)]
    return f"has no finding '{wrong[0]}'; docs/diagnosis.md lists them" if wrong else None


def _address(value: str) -> str | None:
    return None if not value or _ADDRESS.fullmatch(value) else "must be a mail address, or empty"


def _domain(value: str) -> str | None:
    return None if not value or _ADDRESS.fullmatch(f"a@{value}") else "must be a domain, or empty"


def _program(value: list[str]) -> str | None:
    if any("\0" in word for word in value):
        return "must have no NUL characters"
    return None if not value or value[0].startswith("/") else "must begin with the absolute path of a program"


def _permissions(text: str) -> str | None:
    try:
        AdjustmentPermissions.parse(text)
    except UsageError as error:
        return f"is no list of permitted adjustments: {error}"
    return None


@dataclass(frozen=True, slots=True)
class DiagnosisConfig:
    """Section `[diagnosis]`: findings about lost time and energy of jobs. See docs/diagnosis.md."""

    thresholds: dict[str, float] = key(
        {},
        "Thresholds of findings that differ from the defaults, by name; docs/diagnosis.md lists them.",
        _thresholds,
        show={"data_share": 15.0, "straggler_ratio": 1.5},
    )
    auto: str = key(
        "",
        "Adjustments of jobs with --energy-policy=auto whose user permits none; empty: none.",
        _permissions,
        show="workers=0..16,pin-memory",
    )
    adjustment_limits: str = key(
        "",
        "Ranges that no user may exceed with senergy diagnose --permit; empty: the limits of each value.",
        _permissions,
        show="workers=0..32,cpus-per-task=1..64",
    )

    alerts: list[str] = key(
        [],
        'Kinds of findings of running jobs about which senergyctld sends alerts; ["all"]: every kind; '
        "empty: no alerts.",
        _kinds,
        show=["idle-allocation", "unused-gpu"],
    )
    alert_share: float = key(20.0, "Minimum share of the job's time in percent.", between(0, 100))
    alert_after_s: float = key(600.0, "Seconds after the start of a job before alerts.", between(0, 1e7))
    alerts_per_hour: int = key(20, "Maximum number of alerts in an hour; others wait.", between(1, 10_000))
    alert_mail: str = key(
        "",
        "Recipient of alerts by e-mail: user: the owner of the job; or an address; empty: no e-mail.",
        _address,
        show="user",
    )
    alert_mail_domain: str = key(
        "",
        "Domain of the addresses of users; empty: the mail server knows the users by name.",
        _domain,
        show="example.org",
    )
    alert_mail_from: str = key("slurm-energy", "Sender of the e-mails.", _address)
    alert_smtp: str = key("localhost:25", "HOST:PORT of the mail server.", parsed_by(parse_listen))
    alert_command: list[str] = key(
        [],
        "Program, by absolute path, and arguments that receive each alert as JSON on standard input; empty: "
        "none. It runs as the user of senergyctld, for at most 10 s.",
        _program,
        show=["/usr/local/sbin/energy-alert", "--quiet"],
    )

    @property
    def site_permissions(self) -> AdjustmentPermissions:
        """Adjustments of a program that the site permits by default.

        They apply to jobs with policy `auto` whose user has not permitted any adjustments. The limits that
        the site sets for adjusted values also apply here.
        """
        return AdjustmentPermissions.parse(self.auto).within(self.site_limits)

    @property
    def site_limits(self) -> AdjustmentPermissions:
        """Ranges for values that users let slurm-energy adjust, such as the number of loader processes.

        The site sets these ranges. A user cannot permit values outside them.
        """
        return AdjustmentPermissions.parse(self.adjustment_limits)

    def value(self, name: str) -> float:
        """Return the value of the threshold `name`, in the unit of the threshold."""
        return self.thresholds.get(name, THRESHOLDS[name].value)


def threshold_table() -> list[str]:
    """Return the table of thresholds of docs/diagnosis.md, in Markdown."""
    rows = [
        f"| `{name}` | {t.value:g} {t.unit} | {t.meaning} | {t.source} |" for name, t in THRESHOLDS.items()
    ]
    return ["| name | default | meaning | source |", "|---|---|---|---|", *rows]
