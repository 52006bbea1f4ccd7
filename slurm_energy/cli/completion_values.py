"""Values that completion offers for options and arguments: fixed words, and words that shell commands print.

The words of an option are found by its command and name, or else by its placeholder, such as FILE.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

FILE, DIRECTORY = "file", "directory"
_TIMEOUT_S: Final = 1
_MAX_WORDS: Final = 2000
_SAFE_WORDS: Final = "LC_ALL=C grep -x '[A-Za-z0-9_][A-Za-z0-9_.@:+/-]*'"
"""Filter that omits all other words, because bash would execute a `$(command)` in a candidate."""
_TIMES: Final = ("today", "now-1hour", "now-1day", "now-7days", "now-30days", "noon", "midnight")


@dataclass(frozen=True)
class ValueSource:
    """Words that shell completion offers for the value of an option or argument.

    Attributes:
        name: name of the shell function, unique among sources.
        words: words that are always offered.
        command: shell command that prints further words, one per line; ends within a second. The shell does
            not expand any character of these words.
        is_list: whether the value is a list of words separated by commas.
    """

    name: str
    words: tuple[str, ...] = ()
    command: str = ""
    is_list: bool = False


def _bounded(command: str) -> str:
    return f"timeout {_TIMEOUT_S} {command} 2>/dev/null </dev/null | head -n {_MAX_WORDS}"


_POLICY_FILES: Final = "/run/senergyctld/policies /run/senergy/policies"
_POLICY_COMMAND: Final = _bounded(rf"sed -n 's/^policy \([^ ]*\).*/\1/p' {_POLICY_FILES}")
_JOBS: Final = _bounded("squeue --me --noheader --format=%A")
_NODES: Final = _bounded("sinfo --noheader --Node --format=%N")
_PARTITIONS: Final = _bounded("sinfo --noheader --format=%R")
_USERS: Final = _bounded("getent passwd") + " | cut -d: -f1"
_ACCOUNTS: Final = _bounded("sacctmgr --noheader --parsable2 show account format=account")
_BUDGETS: Final = _bounded("senergy budget show --noheader --parsable2 --format=budget")


def _policies() -> tuple[str, ...]:
    from slurm_energy.config import Config
    from slurm_energy.policies.catalogue import catalogue

    return tuple(catalogue(Config()))


def _gpu_kinds() -> tuple[str, ...]:
    from slurm_energy.oracle.hardware.hardware_files import hardware_names

    return tuple(sorted(set(hardware_names().values())))


def _models() -> tuple[str, ...]:
    from slurm_energy.oracle.workload.profile_files import profile_names

    return profile_names()


def _templates() -> tuple[str, ...]:
    from slurm_energy.templates.catalogue import names

    return tuple(sorted(names()))


def _power_profiles() -> tuple[str, ...]:
    from slurm_energy.devices.gpu.power_profiles import POWER_PROFILES

    return tuple(POWER_PROFILES)


def _objectives() -> tuple[str, ...]:
    from slurm_energy.policies.catalogue import OBJECTIVES

    return tuple(OBJECTIVES)


def _queue_policies() -> tuple[str, ...]:
    from slurm_energy.scheduling import registry

    return tuple(registry.names())


def _scenarios() -> tuple[str, ...]:
    from slurm_energy.simulator import scenario_files

    return tuple(scenario_files.shipped())


def _states() -> tuple[str, ...]:
    from slurm_energy.reports.acct.job_filter import STATES

    return tuple(dict.fromkeys(STATES.values()))


def _acct_fields() -> tuple[str, ...]:
    from slurm_energy.reports.acct.acct_fields import catalogue
    from slurm_energy.slurm.sacct_fields import NEWEST

    return ("ALL", *(field.name for field in catalogue(NEWEST)))


def _tres() -> tuple[str, ...]:
    from slurm_energy.reports.utilization.columns import Tres

    return ("ALL", *Tres)


def _report_words() -> tuple[str, ...]:
    from slurm_energy.reports.utilization.grammar import ReportKind

    return ("cluster", "job", "user", *ReportKind, *_CONDITIONS)


_CONDITIONS: Final = (
    *("start=", "end=", "interval=", "format=", "accounts=", "users=", "partitions=", "nodes="),
    *("clusters=", "all_clusters", "tree", "group", "topcount=", "grouping=", "flatview", "jobsonly"),
)


def _fields_of(module: str, attribute: str) -> Callable[[], tuple[str, ...]]:
    def names() -> tuple[str, ...]:
        return tuple(field.name for field in getattr(import_module(module), attribute))

    return names


_WORDS: Final[dict[str, Callable[[], tuple[str, ...]]]] = {
    "acct_fields": _acct_fields,
    "budget_fields": _fields_of("slurm_energy.reports.budgets.budget_table", "BUDGET_FIELDS"),
    "gpu_kinds": _gpu_kinds,
    "models": _models,
    "objectives": _objectives,
    "policies": _policies,
    "power_profiles": _power_profiles,
    "queue_fields": _fields_of("slurm_energy.reports.queue.queue_fields", "FIELDS"),
    "queue_policies": _queue_policies,
    "quota_fields": _fields_of("slurm_energy.reports.queue.quota_table", "QUOTA_FIELDS"),
    "report_words": _report_words,
    "scenarios": _scenarios,
    "share_fields": _fields_of("slurm_energy.reports.queue.share_page", "FIELDS"),
    "states": _states,
    "templates": _templates,
    "times": lambda: _TIMES,
    "tres": _tres,
}
_COMMANDS: Final = {
    "accounts": _ACCOUNTS,
    "budgets": _BUDGETS,
    "jobs": _JOBS,
    "nodes": _NODES,
    "partitions": _PARTITIONS,
    "policies": _POLICY_COMMAND,
    "users": _USERS,
}
_BY_OPTION: Final = {
    ("acct", "--format"): "acct_fields,",
    ("budget", "--format"): "budget_fields,",
    ("budget", "BUDGET"): "budgets",
    ("calibrate", "--gpu"): "gpu_kinds",
    ("lab", "--policy"): "policies",
    ("lab", "NODE"): "",
    ("predict", "--gpu"): "gpu_kinds",
    ("predict", "--model"): "models",
    ("prio", "--format"): "queue_fields,",
    ("prio", "--sort"): "queue_fields,",
    ("quota", "--format"): "quota_fields,",
    ("report", "--tres"): "tres,",
    ("report", "WORD"): "report_words",
    ("share", "--format"): "share_fields,",
    ("simulate", "--policies"): "queue_policies,",
    ("simulate", "SCENARIO"): "scenarios",
    ("workload", "--scenario"): "scenarios",
    ("sweep", "--policy"): "policies,",
    ("sweep", "--power-profile"): "power_profiles,",
    ("template", "NAME"): "templates",
    ("template", "--gpu"): "gpu_kinds",
    ("tune", "--power-profile"): "power_profiles",
}
"""Source by command and option or placeholder; a comma marks lists."""
_BY_PLACEHOLDER: Final = {
    "ACCOUNT": "accounts",
    "ACCOUNT,...": "accounts,",
    "JOB,...": "jobs,",
    "JOB[.STEP],...": "jobs,",
    "JOBID": "jobs",
    "NODE": "nodes",
    "NODES": "nodes,",
    "OBJECTIVE": "objectives",
    "PARTITION,...": "partitions,",
    "STATE,...": "states,",
    "TIME": "times",
    "USER": "users",
    "USER,...": "users,",
}
_PATHS: Final = {
    "DIR": DIRECTORY,
    "FILE": FILE,
    "FILE.json": FILE,
    "FILE.png": FILE,
    "PATH": FILE,
    "SCRIPT": FILE,
}


def source_of(command: str, action: argparse.Action) -> ValueSource | str | None:
    """Return where the shell finds the possible values of an option or positional argument.

    Returns:
        A `ValueSource`; `FILE` or `DIRECTORY` for a path; None if nothing is known about the value.
    """
    placeholder = str(action.metavar or "")
    keys = [*action.option_strings, placeholder]
    name = next((_BY_OPTION[command, key] for key in keys if (command, key) in _BY_OPTION), None)
    if name is None:
        name = _BY_PLACEHOLDER.get(placeholder)
    if name:
        return _source(name)
    if placeholder in _PATHS:
        return _PATHS[placeholder]
    return FILE if action.type is Path else None


def _source(name: str) -> ValueSource:
    plain = name.removesuffix(",")
    words = _WORDS[plain]() if plain in _WORDS else ()
    suffix = "_list" if name != plain else ""
    command = f"{_COMMANDS[plain]} | {_SAFE_WORDS}" if plain in _COMMANDS else ""
    return ValueSource(f"_senergy_{plain}{suffix}", words, command, name != plain)
