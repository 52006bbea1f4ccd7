"""The policies of this cluster: as the file that submission checks read, and as the answer to the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.errors import UnavailableError
from slurm_energy.policies import catalogue
from slurm_energy.trusted_files import replace_public


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
