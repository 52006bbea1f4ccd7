"""Slurm's settings of power saving.

The module also finds obstacles to power saving, and gives advice for slurm.conf.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.hostlist import expand_hostlist

DEFAULT_PASS_S: Final = 10.0
"""Default of power_save_interval in slurmctld."""
PROLOG_PATH: Final = "/usr/local/lib/slurm-energy/prolog_slurmctld"
_SETTING: Final = re.compile(
    r"^(Suspend(?:Time|Program|ExcNodes|ExcParts|ExcStates|Timeout)|Resume(?:Program|Timeout)"
    r"|SlurmUser|PrologSlurmctld|Prolog(?:Epilog)?Timeout|SlurmctldParameters)"
    r"(?:\[\d{1,3}\])?\s*=[ \t]*(.*)$",  # Slurm 24.05 and later number programs: PrologSlurmctld[0]
    re.MULTILINE,
)
_PROLOG_SHARE: Final = 0.8
_SECONDS: Final = re.compile(r"(\d{1,9}) sec")
_UNLIMITED: Final = 65534  # Slurm's NO_VAL16
_PASS: Final = re.compile(r"(?:^|,)power_save_interval=(\d{1,5})(?:,|$)", re.IGNORECASE)
_USER: Final = re.compile(r"[^ ()]+\((\d{1,10})\)")
_NO_VALUES: Final = frozenset({"", "(null)", "N/A", "NONE"})


@dataclass(frozen=True, slots=True)
class PowerSavingSettings:
    """Slurm's settings of power saving.

    Attributes:
        suspend_program, resume_program: programs that power nodes down and up; an empty value means none.
        suspend_time_s: idle time after which Slurm itself powers nodes down; None means that Slurm's power
            saving is disabled.
        excluded_nodes: names of nodes that Slurm never powers down. The names include all nodes of entries
            with a count (`NODES:COUNT`), although Slurm keeps only `COUNT` of these nodes on.
        excluded_partitions: partitions whose nodes Slurm never powers down.
        excluded_states: node states in which Slurm never powers nodes down, in upper case.
        resume_timeout_s: time after which a node that does not boot is set to DOWN; None means unknown.
        suspend_timeout_s: time after which a node that shuts down counts as off; None means unknown.
        prolog_slurmctld: program that slurmctld runs before each job; an empty value means none.
        prolog_timeout_s: time after which slurmctld ends `prolog_slurmctld`; None means never.
        slurm_uid: uid of SlurmUser; None means unknown.
        pass_s: maximum time between two passes in which slurmctld checks the nodes that shut down or boot.
    """

    suspend_program: str = ""
    resume_program: str = ""
    suspend_time_s: float | None = None
    excluded_nodes: frozenset[str] = frozenset()
    excluded_partitions: frozenset[str] = frozenset()
    excluded_states: frozenset[str] = frozenset()
    resume_timeout_s: float | None = None
    suspend_timeout_s: float | None = None
    prolog_slurmctld: str = ""
    prolog_timeout_s: float | None = None
    pass_s: float = DEFAULT_PASS_S
    slurm_uid: int | None = None

    @property
    def boot_wait_s(self) -> float | None:
        """Maximum time in seconds that PrologSlurmctld may wait for the nodes of a job to boot.

        None means unknown. A node responds or is set to DOWN within ResumeTimeout after the start of its
        boot. slurmctld requeues a job whose PrologSlurmctld exceeds PrologEpilogTimeout or, from Slurm 25.05
        on, PrologTimeout.
        """
        if self.resume_timeout_s is None:
            return None
        limit_s = self.resume_timeout_s + (self.suspend_timeout_s or 0.0)
        if self.prolog_timeout_s is None:
            return limit_s
        return min(limit_s, _PROLOG_SHARE * self.prolog_timeout_s)

    def problems(self) -> list[str]:
        """Return the reasons why Slurm would not power nodes down or up, with remedies.

        The result is empty if there are no such reasons.
        """
        lines = []
        if not self.suspend_program:
            lines.append("SuspendProgram is not set: add the program that powers nodes down to slurm.conf")
        if not self.resume_program:
            lines.append("ResumeProgram is not set: add the program that boots nodes to slurm.conf")
        if self.suspend_time_s is None:
            lines.append(
                "SuspendTime is -1, which disables power saving in slurmctld: set SuspendTime=31536000, so "
                "that senergyctld alone powers nodes down, and restart slurmctld"
            )
        return lines

    def advice(self) -> list[str]:
        """Return advice for slurm.conf: settings that shorten the time that jobs wait for a boot.

        Only missing settings are advised.
        """
        lines = []
        if not self.prolog_slurmctld:
            lines.append(
                "PrologSlurmctld is not set: batch jobs start up to 30 s after their nodes have booted; set "
                f"PrologSlurmctld={PROLOG_PATH}"
            )
        if self.pass_s > 1:
            lines.append(
                f"slurmctld examines nodes that shut down and boot every {self.pass_s:.0f} s: add "
                "power_save_interval=1 to SlurmctldParameters"
            )
        return lines


def read_power_saving_settings(run: Runner = run_command) -> PowerSavingSettings:
    """Return Slurm's settings of power saving, read with one command.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    return parse_power_saving_settings(run(["scontrol", "show", "config"]))


def parse_power_saving_settings(text: str) -> PowerSavingSettings:
    """Return Slurm's settings of power saving from the output of `scontrol show config`."""
    values = {name: value.strip() for name, value in _SETTING.findall(text)}
    given = {name: "" if value in _NO_VALUES else value for name, value in values.items()}
    return PowerSavingSettings(
        given.get("SuspendProgram", ""),
        given.get("ResumeProgram", ""),
        _seconds(given.get("SuspendTime", "")),
        frozenset(_excluded_nodes(given.get("SuspendExcNodes", ""))),
        frozenset(given.get("SuspendExcParts", "").split(",")) - {""},
        frozenset(given.get("SuspendExcStates", "").upper().split(",")) - {""},
        _seconds(given.get("ResumeTimeout", "")),
        _seconds(given.get("SuspendTimeout", "")),
        given.get("PrologSlurmctld", ""),
        _limit_s(given.get("PrologTimeout", given.get("PrologEpilogTimeout", ""))),
        _pass_s(given.get("SlurmctldParameters", "")),
        _uid(given.get("SlurmUser", "")),
    )


def _seconds(text: str) -> float | None:
    match = _SECONDS.match(text)
    return float(match[1]) if match else None


def _limit_s(text: str) -> float | None:
    """Return a time limit that Slurm prints as a number without a unit; None means unlimited.

    slurmctld sets no limit for PrologSlurmctld if the number is 0.
    """
    return float(text) if text.isdecimal() and 0 < int(text) < _UNLIMITED else None


def _uid(text: str) -> int | None:
    match = _USER.fullmatch(text)
    return int(match[1]) if match else None


def _pass_s(text: str) -> float:
    match = _PASS.search(text)
    return float(match[1]) if match else DEFAULT_PASS_S


def _excluded_nodes(text: str) -> Sequence[str]:
    """Return the nodes of SuspendExcNodes, such as `n[1-4],m[1-8]:2`."""
    try:
        return expand_hostlist(re.sub(r":\d+", "", text)) if text else ()
    except UsageError:
        return ()
