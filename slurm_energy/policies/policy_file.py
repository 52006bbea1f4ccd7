"""Text of the policy file. The checks of submitted jobs accept or refuse energy flags by this file.

The readers are the SPANK plugin energy.so and job_submit.lua.

The format is described in docs/reference/protocol.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy.config import Config
from slurm_energy.devices.gpu.power_profiles import POWER_PROFILES
from slurm_energy.errors import ConfigError
from slurm_energy.policies.catalogue import PolicyInfo, catalogue
from slurm_energy.protocol.policy_file_requests import FIRST_LINE, MAX_BYTES, MAX_TEXT_BYTES

CHANGING_MODES: Final = ("plugin", "portable")
"""Modes in which the queue engine changes jobs."""


def policy_file_text(config: Config) -> str:
    """Return the text of the policy file for a configuration.

    Raises:
        ConfigError: the text is longer than its readers accept.
    """
    lines = [FIRST_LINE, *(_policy_line(policy) for policy in catalogue(config).values())]
    bounds = config.accepted_bounds
    for field in dataclasses.fields(bounds):
        low, high = getattr(bounds, field.name)
        lines.append(f"{field.name} {_decimal(low)} {_decimal(high)}")
    deferral = config.deferral
    lines.append(f"slack_s 1 {int(deferral.max_slack_s)}" if deferral.enabled else "slack_s 0 0")
    suspends = deferral.enabled and deferral.suspend
    lines.append(f"restart_s 1 {int(deferral.max_slack_s)}" if suspends else "restart_s 0 0")
    if deferral.enabled:
        lines.append(f"deferral-delay {math.ceil(deferral.submit_delay_s)}")
    lines.append(f"power-profiles {','.join(POWER_PROFILES)}")
    if _copies_flags(config):
        lines.append("note-flags")
    if (config.priority.mode in CHANGING_MODES or _admits(config)) and config.priority.fingerprints:
        lines.append("note-fingerprint")
    if config.priority.mode in CHANGING_MODES and config.priority.shape_selection_delay_s > 0:
        lines.append(f"shape-selection-delay {math.ceil(config.priority.shape_selection_delay_s)}")
    text = "\n".join([*lines, ""])
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ConfigError(
            "policies", f"more than {MAX_TEXT_BYTES} bytes in the policy file", "use shorter lists"
        )
    return text


def with_budget_lines(text: str, lines: Sequence[str]) -> tuple[str, int]:
    """Return the policy file with lines about power budgets, and the number of lines that were left out.

    Readers ignore the whole file if it is too long. Therefore as many lines as necessary are left out. Jobs
    then get upper bounds of their licenses. A job may have too few licenses, until senergyctld corrects them,
    only if lines of scopes or of partitions of whole nodes are left out.

    Args:
        text: the policy file without these lines.
        lines: lines about power budgets.
    """
    sizes = [len(line.encode()) + 1 for line in lines]
    excess = len(text.encode()) + sum(sizes) - MAX_BYTES
    left_out: set[int] = set()
    for is_dispensable in _DISPENSABLE:
        for index, line in reversed(list(enumerate(lines))):
            if excess > 0 and index not in left_out and is_dispensable(line.split()):
                left_out.add(index)
                excess -= sizes[index]
    kept = [f"{line}\n" for index, line in enumerate(lines) if index not in left_out]
    return text + "".join(kept), len(left_out)


def _names_partition(words: Sequence[str]) -> bool:
    return words[0] == "license-power" and words[1] != "*" and "default" not in words


_DISPENSABLE: Final[Sequence[Callable[[Sequence[str]], bool]]] = (
    lambda words: words[0] == "license-gpu",
    lambda words: _names_partition(words) and "exclusive" not in words,
    _names_partition,
    lambda words: words[0] == "license-scope",
    lambda words: True,
)
"""Kinds of lines about power budgets that a long policy file leaves out, in this order."""


def _copies_flags(config: Config) -> bool:
    """Return whether submission copies a job's energy flags to its AdminComment.

    The queue engine, the admission of power budgets and the deferral of jobs read the flags from the
    AdminComment. In shadow mode, no attribute of a job is normally changed. The flags are copied all the
    same if the site sets `priority.shadow_flags`, enforces a budget or defers jobs.
    """
    priority = config.priority
    wanted = priority.mode == "portable" or (priority.mode == "shadow" and priority.shadow_flags)
    return wanted or _admits(config) or config.deferral.enabled


def _admits(config: Config) -> bool:
    """Return whether power budgets decide which jobs start."""
    return config.budget.mode == "enforce" and config.budget.admission != "off"


def _policy_line(policy: PolicyInfo) -> str:
    words = ["policy", policy.name]
    if policy.users:
        words.append(f"users={','.join(policy.users)}")
    if policy.changes_nothing:
        words.append("measures-only")
    if policy.needs_cap:
        words.append("needs-cap")
    if policy.objective is not None:
        words.append("tuned")
    return " ".join(words)


def _decimal(value: float) -> str:
    """Format a number without an exponent, because programs in C and Lua read it."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
