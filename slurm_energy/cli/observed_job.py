"""Functions that fetch a job from senergyctld: its energy records and node observations.

The job may have ended or may still run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.cli.output import note
from slurm_energy.errors import EXIT_NOT_FOUND, NotFoundError, UnavailableError, UsageError

if TYPE_CHECKING:
    import argparse

    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.usage import JobUsage

_MAX_OBSERVATION_BYTES: Final = 16 << 20


def fetch_observed_job(
    args: argparse.Namespace, client: ControllerClient, job_id: str
) -> tuple[JobUsage, list[Any]]:
    """Return the last run of a job, and its node observations as JSON.

    If the job is running, the run contains the data so far.

    Args:
        args: options of the command, which name the configuration.
        client: client of the controller.
        job_id: id of the job.

    Raises:
        NotFoundError: nothing is known about the job.
        UsageError: the id names several jobs.
    """
    try:
        job = fetch_job(client, job_id)
    except NotFoundError as error:
        raise _not_reported(args, job_id, error) from None
    if job.job.state == "RUNNING":
        return with_live_observation(args, job)
    return job, fetch_documents(client, job_id)


def _not_reported(args: argparse.Namespace, job_id: str, error: NotFoundError) -> NotFoundError:
    """Return the error for a job that senergyctld does not know.

    A possible reason is that the job has just started.
    """
    answer = _ask_for_observation(args, int(job_id)) if job_id.isdecimal() else {}
    if answer.get("ok"):
        why = "it has just started: power and signals arrive after the first interval"
        return NotFoundError(f"job {job_id}", why, "try again in a moment")
    hint = "if it has just started, power and signals arrive after the first interval: try again in a moment"
    return NotFoundError(str(error), todo=hint)


def fetch_job(client: ControllerClient, job_id: str) -> JobUsage:
    """Return the last run of a job, or the job's data so far if the job is running.

    Raises:
        NotFoundError: the job has neither ended with a record nor is it running.
        UsageError: the id names several jobs.
    """
    from slurm_energy.reports.summary import last_runs
    from slurm_energy.reports.usage import AccountedRecord, summarise

    try:
        answer: dict[str, Any] = client.get(f"/v1/jobs/{job_id}", {"duplicates": "1"})
    except NotFoundError as error:
        job = _running_job(client, job_id)
        if job is None:
            raise error from None
        return job
    records = map(AccountedRecord.from_json, answer.get("records", []))
    jobs = last_runs(summarise(records, duplicates=True))
    if not jobs:
        raise NotFoundError(f"job {job_id}", "it has no energy record")
    if len(jobs) > 1:
        example = jobs[0].display_id
        raise UsageError(f"job {job_id}", f"it has {len(jobs)} tasks", f"name one, for example {example}")
    return jobs[0]


def _running_job(client: ControllerClient, job_id: str) -> JobUsage | None:
    """Return the energy data of a running job so far.

    The result is None if the job is not running, or if the id is not a plain number.
    """
    from slurm_energy.protocol.live_reports import RUNNING_PATH
    from slurm_energy.reports.usage import AccountedRecord, JobInfo, summarise

    if not job_id.isdecimal():
        return None
    answer = client.get(RUNNING_PATH, {"job": job_id})
    records = [AccountedRecord.from_json(item) for item in answer.get("records", [])]
    running = [replace(item, job=JobInfo(state="RUNNING")) for item in records]
    jobs = [job for job in summarise(running) if job.first.job_id == int(job_id)]
    return jobs[-1] if jobs else None


def fetch_documents(client: ControllerClient, job_id: str, *, quiet: bool = False) -> list[Any]:
    """Return the node observations of a job as JSON; empty if there are none.

    Args:
        client: client of the controller.
        job_id: id of the job.
        quiet: whether to omit the message that is otherwise printed if there are no observations.
    """
    from slurm_energy.protocol.observation_requests import node_documents, observation_path

    try:
        documents = node_documents(client.get(observation_path(job_id)))
    except NotFoundError:
        documents = []
    if not documents and not quiet:
        note(f"job {job_id}: no signals were observed; only its energy and power are known")
    return documents


def with_live_observation(args: argparse.Namespace, job: JobUsage) -> tuple[JobUsage, list[Any]]:
    """Return a running job with its power trace so far, and a list with the job's observation on this node.

    The second element is a list of JSON documents.

    The senergyd of this node supplies the trace and the observation. If this node does not run the job, the
    job is returned unchanged and the list is empty.
    """
    answer = _ask_for_observation(args, job.first.job_id)
    node, document, trace = (answer.get(key) for key in ("node", "observation", "trace"))
    if isinstance(trace, dict) and node in job.nodes:
        job = replace(job, traces={**job.traces, str(node): trace})
    if document is None:
        note(f"job {job.display_id}: no signals so far{_absence(answer)}")
    return job, [] if document is None else [document]


def _ask_for_observation(args: argparse.Namespace, job_id: int) -> dict[str, Any]:
    """Return the answer of this node's senergyd about a running job; empty without an answer."""
    from slurm_energy.cli import connection
    from slurm_energy.protocol.agent_socket import ask_agent

    path = connection.configuration(args).for_this_node().agent.socket
    try:
        return ask_agent(path, {"op": "observation", "job_id": job_id}, max_bytes=_MAX_OBSERVATION_BYTES)
    except UnavailableError:
        return {}


def _absence(answer: dict[str, Any]) -> str:
    """Return why senergyd knows no observation of a job, as text for the end of a note."""
    if answer.get("ok"):
        return "; jobs with --energy-signals have some after the first interval"
    if answer.get("code") in (None, EXIT_NOT_FOUND):
        return "; run the command on a node of the job"
    return f": {answer.get('error')}"
