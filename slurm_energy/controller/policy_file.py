"""Publication of the energy policies of this cluster.

The module writes the policy file, which the checks at job submission read. It also builds the response to
the command line tool.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy.config import Config
from slurm_energy.config.section_digests import shared_values
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.errors import UnavailableError
from slurm_energy.policies import catalogue
from slurm_energy.protocol.policy_file_requests import POLICY_FILE_PATH, PublishedPolicies
from slurm_energy.protocol.query_parameters import refuse_unknown
from slurm_energy.trusted_files import replace_public


def write_policy_file(path: Path, text: str) -> None:
    """Replace the policy file atomically, with mode 0644. A reader sees either the old or the new version.

    Raises:
        ConfigError: another user could replace the file. slurmctld and checks at submission rely on this
            file.
        UnavailableError: the directory cannot be created or written.
    """
    try:
        replace_public(path, text.encode())
    except OSError as error:
        raise UnavailableError(f"policy file {path}", error.strerror or str(error)) from None


class PolicyPublication:
    """The text of the policy file, published for hosts that keep a copy of the file.

    The text does not contain the lines about power budgets: only slurmctld reads them.

    Args:
        clock: returns Unix seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._current = PublishedPolicies("", 0.0)

    def publish(self, text: str) -> None:
        """Replace the published policy text and its time of issue.

        If the new text equals the published text, nothing changes.
        """
        if text != self._current.text:
            self._current = PublishedPolicies(text, self._clock())

    @property
    def digest(self) -> str:
        """Digest of the published text, by which hosts detect changes."""
        return self._current.digest

    @property
    def routes(self) -> RouteGroup:
        """The HTTP route by which hosts request the text of the policy file."""
        return RouteGroup(light={POLICY_FILE_PATH: self._answer})

    async def _answer(self, query: dict[str, str], _: Rights) -> Mapping[str, Any]:
        refuse_unknown(query, ())
        return self._current.to_json()


def policies_answer(config: Config, *, with_node_power: bool = True) -> dict[str, Any]:
    """Return the response to `GET /v1/policies`: every energy policy with its settings.

    Each policy has the fields of `policies.PolicyInfo`, `objective` and `built_in`. A policy that the site
    has defined also has `settings`: the keys of this policy in the configuration file. `shared` contains the
    values that must be the same on all hosts; `senergy setup` writes the configuration of a node from these
    values.

    Args:
        config: the configuration.
        with_node_power: whether to include section `node_power` of the node types. This section may contain
            the address and the user name for a baseboard management controller.
    """
    policies, shared = [], shared_values(config)
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
        "shared": shared if with_node_power else _without_node_power(shared),
    }


def _without_node_power(shared: Mapping[str, Any]) -> dict[str, Any]:
    types = {
        name: {key: value for key, value in values.items() if key != "node_power"}
        for name, values in shared.get("node_types", {}).items()
    }
    return {**shared, **({"node_types": types} if types else {})}
