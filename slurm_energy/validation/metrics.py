"""Checks of section `metrics`: the listeners for Prometheus and their files."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config.addresses import is_loopback, parse_listen
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext, DaemonRole

_LISTENERS = (("agent_listen", DaemonRole.NODE), ("controller_listen", DaemonRole.CONTROLLER))


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the configuration of the listeners for metrics, and yield findings.

    A listener that is not on the loopback interface needs a token and TLS. A listener on the loopback
    interface that shows the power of jobs should have a token, because otherwise every user of the host can
    read this power. Keys that have no effect are also reported.
    """
    settings = context.config.metrics
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_certificate"
        yield context.error("metrics", missing, "is missing", "set tls_certificate and tls_key")
    is_protected = settings.token_file and settings.tls_certificate and settings.tls_key
    for name, role in _LISTENERS:
        address = getattr(settings, name)
        if not address or context.role not in (None, role):
            continue
        if not is_loopback(parse_listen(address)[0]) and not is_protected:
            yield context.error(
                "metrics",
                name,
                f"{address} is not on the loopback interface",
                "set token_file, tls_certificate and tls_key, or listen on 127.0.0.1",
            )
        elif settings.jobs and not settings.token_file:
            why = f"every user of the host can read the power of all running jobs at {address}"
            yield context.warning("metrics", "jobs", why, "set token_file")
    on_types = any("agent_listen" in one.metrics for one in context.config.node_types.values())
    if not settings.agent_listen and not settings.controller_listen and not on_types:
        for name in ("token_file", "tls_certificate", "tls_key", "jobs"):
            if context.is_set("metrics", name):
                yield context.warning("metrics", name, "has no effect without a listener", "set agent_listen")
                return
