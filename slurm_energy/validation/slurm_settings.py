"""Checks of the configuration against slurm.conf and the users of this host.

A check for which slurm.conf is missing yields a finding that the check was skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurm_energy.config.findings import Finding
from slurm_energy.config.loader import suggest_name
from slurm_energy.config.value_checks import GROUP_MARK
from slurm_energy.user_lookup import name_of, uids_of
from slurm_energy.validation.check_context import CheckContext, DaemonRole

_PLUGIN = "site_factor/energy"


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the configuration against slurm.conf, and yield findings.

    The cluster name, the partitions and the priority plugin must match.
    """
    slurm = context.host.slurm
    if slurm.missing:
        if context.role is None:
            yield context.unchecked(
                "cluster", "name", slurm.missing, "set SLURM_CONF, or run this on the controller"
            )
        return
    yield from _check_name(context)
    yield from _check_partitions(context)
    if context.config.priority.mode == "plugin":
        yield from _check_plugin(context)


def _check_name(context: CheckContext) -> Iterator[Finding]:
    slurm, name = context.host.slurm, context.config.cluster.name
    actual = slurm.last("ClusterName")
    # Slurm maps upper-case letters of its own name to lower case (slurm.conf(5)).
    if actual is not None and name != actual.lower():
        why = f"'{name}', but ClusterName in {slurm.path} is '{actual.lower()}'"
        todo = f'write name = "{actual.lower()}"'
        if context.is_set("cluster", "name") or context.role is None:
            yield context.error("cluster", "name", why, todo)
        else:
            yield context.warning("cluster", "name", why, todo)


def _check_partitions(context: CheckContext) -> Iterator[Finding]:
    partitions = sorted(context.host.slurm.partitions)
    if not partitions:
        return
    config = context.config
    named = [("defaults", f"partition.{name}", name) for name in config.defaults.partition]
    named += [("priority", "partitions", name) for name in config.priority.partitions]
    named += [("tuning", f"partition.{name}", name) for name in config.tuning.partition]
    for section, key, name in named:
        if name not in partitions:
            why = f"partition '{name}' is not in {context.host.slurm.path}"
            yield context.warning(section, key, why, suggest_name(name, partitions))


def _check_plugin(context: CheckContext) -> Iterator[Finding]:
    slurm, settings = context.host.slurm, context.config.priority
    plugin = slurm.last("PrioritySiteFactorPlugin")
    if plugin != _PLUGIN:
        said = f"is '{plugin}'" if plugin else "is missing"
        yield context.warning(
            "priority",
            "mode",
            f"PrioritySiteFactorPlugin {said} in {slurm.path}, so the ranking is not applied",
            f"write PrioritySiteFactorPlugin={_PLUGIN}, see docs/priority-plugin.md",
        )
        return
    text = slurm.last("PrioritySiteFactorParameters") or ""
    parameters = dict(word.partition("=")[::2] for word in text.split(","))
    for word, key, ours in (
        ("table", "table", settings.table),
        ("queue", "queue_table", settings.queue_table),
    ):
        if parameters.get(word) != str(ours):
            theirs = f"{word}={parameters.get(word, '')} in PrioritySiteFactorParameters of {slurm.path}"
            yield context.warning(
                "priority", key, f"'{ours}', but slurmctld has {theirs}", "use the same path in both"
            )


def check_users(context: CheckContext) -> Iterator[Finding]:
    """Yield a warning for each user or group in the configuration that does not exist on this host.

    Nothing is yielded if a daemon is about to start, because the start must not wait for LDAP.
    """
    if context.role is not None:
        return
    config = context.config
    named = [("controller", "agent_users", config.controller.agent_users)]
    if context.is_set("cluster", "controller_users"):
        named.append(("cluster", "controller_users", config.cluster.controller_users))
    if context.is_set("controller", "operators"):
        named.append(("controller", "operators", config.controller.operators))
    named += [("defaults", f"user.{name}", [name]) for name in config.defaults.user]
    named += [(f"policies.{name}", "users", policy.users) for name, policy in config.policies.items()]
    for section, key, names in named:
        for name in names:
            if name.startswith(GROUP_MARK):
                if not context.host.knows_group(name.removeprefix(GROUP_MARK)):
                    yield context.warning(section, key, f"this host does not know group '{name[1:]}'")
            elif not context.host.knows_user(name):
                yield context.warning(section, key, f"this host does not know user '{name}'")


def check_access(context: CheckContext) -> Iterator[Finding]:
    """Yield findings if no user may deliver records, or if agents would reject senergyctld's responses."""
    if not context.config.controller.agent_users:
        why, todo = "is empty: no agent may deliver records", 'write ["root"]'
        yield context.error("controller", "agent_users", why, todo)
    believed = context.config.cluster.controller_users
    if context.role is DaemonRole.CONTROLLER and os.geteuid() not in uids_of(believed):
        name = name_of(os.geteuid()) or str(os.geteuid())
        why = f"names {', '.join(believed)}, but senergyctld runs as {name}: agents will reject its responses"
        yield context.warning("cluster", "controller_users", why, f"add '{name}'")
