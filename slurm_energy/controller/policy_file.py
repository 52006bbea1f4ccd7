"""The energy policies of this cluster, as the file for submission checks and as a response to the CLI."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.errors import UnavailableError
from slurm_energy.policies import catalogue
from slurm_energy.trusted_files import replace_public


def write_policy_file(path: Path, text: str) -> None:
    """Replace the policy file atomically, mode 0644: a reader sees either the old or the new version.

    Raises:
        ConfigError: another user could replace the file, on which slurmctld and submission rely.
        UnavailableError: the directory cannot be created or written.
    """
    try:
        replace_public(path, text.encode())
    except OSError as error:
        raise UnavailableError(f"policy file {path}", error.strerror or str(error)) from None


def policies_answer(config: Config) -> dict[str, Any]:
    """Return the response to `GET /v1/policies`: every energy policy with its base, bounds and defaults.

    A policy has the fields of `policies.PolicyInfo`, `objective` and `built_in`. A site's own policy also has
    `settings`, which holds its keys in the configuration file.
    """
    policies = []
    for policy in catalogue(config).values():
        site = config.policies.get(policy.name)
        entry = dataclasses.asdict(policy) | {"objective": policy.objective, "built_in": site is None}
        policies.append(entry | ({"settings": dataclasses.asdict(site)} if site else {}))
    return {
        "policies": policies,
        "bounds": dataclasses.asdict(config.accepted_bounds),
        "node_types": [
            {"name": name, "nodes": node_type.nodes, "bounds": node_type.bounds}
            for name, node_type in config.node_types.items()
        ],
        "defaults": dataclasses.asdict(config.defaults),
        "tuning": dataclasses.asdict(config.tuning),
    }
