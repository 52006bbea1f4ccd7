"""Section `metrics` of the configuration: the listeners for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_energy.config.addresses import parse_listen
from slurm_energy.config.value_checks import key


def _listen_or_empty(value: str) -> str | None:
    if not value:
        return None
    try:
        parse_listen(value)
    except ValueError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Metrics for Prometheus, in the OpenMetrics format. See docs/metrics.md."""

    agent_listen: str = key(
        "",
        "HOST:PORT of senergyd's listener; empty: none. Other hosts than the loopback interface need "
        "token_file, tls_certificate and tls_key.",
        _listen_or_empty,
        show="127.0.0.1:9628",
    )
    controller_listen: str = key(
        "", "HOST:PORT of senergyctld's listener; empty: none.", _listen_or_empty, show="127.0.0.1:9629"
    )
    token_file: Path | None = key(
        None,
        "File whose first line is the bearer token of Prometheus, at least 16 characters; readable by its "
        "owner only.",
        show="/etc/slurm/energy-metrics.token",
    )
    tls_certificate: Path | None = key(
        None, "Certificate chain of the listeners in PEM.", show="/etc/slurm/energy-metrics.crt"
    )
    tls_key: Path | None = key(
        None,
        "Private key of the certificate; readable by its owner only.",
        show="/etc/slurm/energy-metrics.key",
    )
    jobs: bool = key(
        False,
        "Also series of each running job. Every job makes new series in Prometheus: choose its retention "
        "accordingly.",
    )
