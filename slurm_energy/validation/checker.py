"""Runner that performs all checks of a configuration file and collects their findings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config import Config
from slurm_energy.config.findings import Finding, Severity, errors, require_valid, warnings
from slurm_energy.config.loader import ConfigSource, is_explicit, locate, parse_source, read_text
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import MAX_FILE_BYTES
from slurm_energy.validation import (
    budgets,
    controller_address,
    deferral,
    grid,
    log_components,
    metrics,
    node_power,
    node_types,
    oracle_files,
    paths,
    placement,
    policies,
    priority,
    slurm_settings,
    tuning,
)
from slurm_energy.validation.check_context import Check, CheckContext, DaemonRole
from slurm_energy.validation.host import Host, this_host

_BOTH = frozenset(DaemonRole)
_CONTROLLER = frozenset({DaemonRole.CONTROLLER})
_NODE = frozenset({DaemonRole.NODE})

CHECKS: tuple[tuple[Check, frozenset[DaemonRole]], ...] = (
    (controller_address.check, _CONTROLLER),
    (controller_address.check_several, _CONTROLLER),
    (policies.check_policies, _BOTH),
    (policies.check_defaults, _BOTH),
    (policies.check_edp, _BOTH),
    (policies.check_submission_file, _CONTROLLER),
    (tuning.check, _BOTH),
    (node_power.check, _NODE),
    (metrics.check, _BOTH),
    (node_types.check, _BOTH),
    (log_components.check, _BOTH),
    (oracle_files.check, _CONTROLLER),
    (priority.check, _CONTROLLER),
    (budgets.check, _CONTROLLER),
    (grid.check, _CONTROLLER),
    (deferral.check, _CONTROLLER),
    (placement.check, _CONTROLLER),
    (paths.check_controller, _CONTROLLER),
    (paths.check_node, _NODE),
    (slurm_settings.check, _CONTROLLER),
    (slurm_settings.check_users, _CONTROLLER),
    (slurm_settings.check_access, _CONTROLLER),
)
"""All checks, each with the daemons that run it. If a user checks a file, all checks run."""


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A configuration with the findings of its checks.

    Attributes:
        path: path of the file; None means that the built-in defaults apply.
        config: the configuration; invalid keys have their defaults.
        findings: errors, then warnings, then skipped checks, each ordered by line.
    """

    path: Path | None
    config: Config
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> list[Finding]:
        """Findings of severity `ERROR`. These findings prevent the start of daemons."""
        return errors(self.findings)

    @property
    def warnings(self) -> list[Finding]:
        """Findings of severity `WARNING`. These findings do not prevent the start of daemons."""
        return warnings(self.findings)


def check_file(
    argument: Path | str | None = None,
    role: DaemonRole | None = None,
    host: Host | None = None,
    idle_watts: Mapping[tuple[str, str, str], float] | None = None,
) -> CheckedConfig:
    """Check a configuration file as completely as this host allows.

    Args:
        argument: path from the user; None means $SENERGY_CONFIG if it is set, else the default path.
        role: the daemon that is about to start on this host; None means to run all checks, for a user.
        host: facts about the host; None means to look them up on this host.
        idle_watts: power under each budget without any job, see `CheckContext`; None means unknown.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = locate(argument)
    if not is_explicit(argument) and not path.exists():
        source = ConfigSource(Config(), (), parse_source("").reader, frozenset())
        return _checked(None, source, [], CheckContext(source, host or this_host(), role))
    trust: list[Finding] = []
    try:
        text = read_text(path, trusted=True)
    except ConfigError as error:
        if not _is_readable(path):
            raise
        text = read_text(path)
        trust.append(Finding(Severity.ERROR, "", error.why, error.todo, str(path)))
    source = parse_source(text, path)
    context = CheckContext(source, host or this_host(), role, not trust, idle_watts or {})
    return _checked(path, source, trust, context)


def _is_readable(path: Path) -> bool:
    """Return whether a file is a regular file and small enough to be read.

    Reading an untrusted file must neither block (as a FIFO would) nor fill the memory.
    """
    try:
        return path.is_file() and path.stat().st_size <= MAX_FILE_BYTES
    except OSError:
        return False


def load_for_daemon(argument: Path | str | None, role: DaemonRole, log: logging.Logger) -> Config:
    """Load and check the configuration of a daemon at start or reload.

    Args:
        argument: path from the user; None means $SENERGY_CONFIG if it is set, else the default path.
        role: the daemon whose configuration is loaded.
        log: logger that receives the warnings.

    Raises:
        InvalidConfigError: contains all errors.
        ConfigError: the file cannot be read.
    """
    checked = check_file(argument, role)
    require_valid(checked.findings)
    for finding in checked.warnings:
        log.warning("%s", finding.text)
    return checked.config


def _checked(
    path: Path | None, source: ConfigSource, trust: Iterable[Finding], context: CheckContext
) -> CheckedConfig:
    findings = [*trust, *source.findings]
    if all(
        finding.key for finding in source.findings
    ):  # a finding without a key means that the file is not TOML
        for check, roles in CHECKS:
            if context.role is None or context.role in roles:
                findings += check(context)
    order = list(Severity)
    findings.sort(key=lambda finding: (order.index(finding.severity), finding.line or 0))
    return CheckedConfig(path, source.config, tuple(findings))
