"""`senergy doctor --cluster`: checks of all nodes from one query to senergyctld."""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from slurm_energy import __version__
from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.command_line import colour
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE, UnavailableError
from slurm_energy.protocol.node_states import NODES_PATH

if TYPE_CHECKING:
    from slurm_energy.doctor.cluster_checks import GroupCheck
    from slurm_energy.doctor.cluster_findings import ClusterFindings
    from slurm_energy.protocol.controller_client import ControllerClient

DEFAULT_WAIT_S: Final = 120.0
_REQUEST_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 2.0


def run_cluster(args: argparse.Namespace) -> int:
    """Check the cluster and print the report. With --wait, wait for the agents and run a measured job."""
    from slurm_energy.doctor import cluster_checks, cluster_report

    only = _selected_nodes(args.nodelist)
    client = connection.connect(args, total_timeout_s=_REQUEST_TIMEOUT_S)
    url = connection.configuration(args).cluster.controller_url
    findings = _wait(client, str(url), only, args.wait)
    checks = cluster_checks.cluster_checks(findings)
    if args.wait is not None and not args.no_job:
        checks.append(_measured_job(client, findings))
    if args.json:
        emit_json(cluster_report.document(findings, checks))
    elif args.quiet:
        emit(cluster_report.faults(checks))
    else:
        emit_fitted(cluster_report.lines(findings, checks), styles=colour.STATE_STYLES)
    if args.wait is not None and not _is_complete(findings):
        return EXIT_UNAVAILABLE
    return EXIT_OK if cluster_checks.is_cluster_healthy(checks) else EXIT_FAILURE


def _selected_nodes(nodelist: str | None) -> Collection[str]:
    from slurm_energy.slurm.hostlist import expand_hostlist

    return expand_hostlist(nodelist, "--nodelist") if nodelist else ()


def _read(client: ControllerClient, url: str, only: Collection[str]) -> ClusterFindings:
    from slurm_energy.doctor.cluster_findings import read_response

    return read_response(client.get(NODES_PATH), url, __version__, only)


def _wait(client: ControllerClient, url: str, only: Collection[str], wait_s: float | None) -> ClusterFindings:
    """Wait until all expected agents have reported, and return the findings about the cluster.

    After `wait_s` seconds, the findings are returned in any case.

    Raises:
        UnavailableError: the controller did not answer within `wait_s` seconds.
    """
    if wait_s is None:
        return _read(client, url, only)
    until_s = time.monotonic() + wait_s
    with ProgressLine("waiting for agents", "nodes") as progress:
        while True:
            is_last = time.monotonic() >= until_s
            try:
                findings = _read(client, url, only)
            except UnavailableError:
                if is_last:
                    raise
            else:
                expected = sum(node.is_expected for node in findings.nodes)
                if is_last or _is_complete(findings):
                    return findings
                progress.report(expected - len(findings.awaited), expected)
            time.sleep(max(0.0, min(_PAUSE_S, until_s - time.monotonic())))


def _is_complete(findings: ClusterFindings) -> bool:
    """Return whether the inspection of the cluster is complete.

    It is complete if Slurm answers and no report is missing. A report is expected from the agent of each
    node that should be up.
    """
    return not findings.slurm_error and not findings.awaited


def _measured_job(client: ControllerClient, findings: ClusterFindings) -> GroupCheck:
    from slurm_energy.doctor.measured_job import run_measured_job

    def records(job_id: int) -> Sequence[Mapping[str, Any]]:
        answer = client.get(f"/v1/jobs/{job_id}")
        found: Sequence[Mapping[str, Any]] = answer.get("records") or []
        return found

    with ProgressLine("running a measured job", "seconds") as progress:
        progress.report(0)
        return run_measured_job(findings.nodes, records)
