"""The policies of this cluster: as the file that submission checks read, and as the answer to the CLI."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, Final

from slurm_energy.config import Config
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.ownership import replace_public
from slurm_energy.policies import PolicyInfo, catalogue, check_policies

MAX_BYTES: Final = 64 * 1024  # the plugin's limit, spank/policies.h
SQUEUE_MODES: Final = ("portable", "shadow")
"""Modes of the queue engine in which it sees no more of a job than squeue shows."""
CHANGING_MODES: Final = ("plugin", "portable")
"""Modes in which it changes jobs."""
_USER: Final = re.compile(r"[^\s,]{1,256}")


def policy_file_text(config: Config) -> str:
    """Return the policy file of the contract in docs/architecture.md, section 4.

    Raises:
        ConfigError: policies that contradict each other, or that the file cannot express.
    """
    check_policies(config)
    lines = ["senergy-policies 1"]
    for policy in catalogue(config).values():
        if bad := [user for user in policy.users if not _USER.fullmatch(user)]:
            raise ConfigError(f"policies.{policy.name}.users", f"'{bad[0]}' is not a user name")
        lines.append(_policy_line(policy))
    for field in dataclasses.fields(config.bounds):
        low, high = getattr(config.bounds, field.name)
        lines.append(f"{field.name} {_decimal(low)} {_decimal(high)}")
    if config.priority.mode in SQUEUE_MODES:
        lines.append("note-flags")
    if config.priority.mode in CHANGING_MODES and config.priority.look_first_s > 0:
        lines.append(f"look-first {math.ceil(config.priority.look_first_s)}")
    text = "\n".join([*lines, ""])
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError("policies", f"more than {MAX_BYTES} bytes in the policy file", "use shorter lists")
    return text


def write_policy_file(path: Path, text: str) -> None:
    """Put `text` in place of the file at once, so that a reader sees the old or the new one, mode 0644.

    Raises:
        ConfigError: somebody else could exchange the file, which slurmctld and submission rely on.
        UnavailableError: the directory cannot be made or written.
    """
    try:
        replace_public(path, text.encode())
    except OSError as error:
        raise UnavailableError(f"policy file {path}", error.strerror or str(error)) from None


def policies_answer(config: Config) -> dict[str, Any]:
    """Return what `GET /v1/policies` says: every policy with what it refines, bounds, defaults.

    A policy has the keys of `policies.PolicyInfo`, `built_in`, and for a site's own one `settings`, its
    keys in the configuration file.
    """
    policies = []
    for policy in catalogue(config).values():
        site = config.policies.get(policy.name)
        entry = dataclasses.asdict(policy) | {"built_in": site is None}
        policies.append(entry | ({"settings": dataclasses.asdict(site)} if site else {}))
    return {
        "policies": policies,
        "bounds": dataclasses.asdict(config.bounds),
        "defaults": dataclasses.asdict(config.defaults),
    }


def _policy_line(policy: PolicyInfo) -> str:
    words = ["policy", policy.name]
    if policy.users:
        words.append(f"users={','.join(policy.users)}")
    if policy.changes_nothing:
        words.append("measures-only")
    if policy.needs_cap:
        words.append("needs-cap")
    return " ".join(words)


def _decimal(value: float) -> str:
    """Write a number without exponent, for readers in C and Lua."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
