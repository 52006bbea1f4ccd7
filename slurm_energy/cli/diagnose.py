"""`senergy diagnose`: where a job lost time and energy, as text, JSON or an HTML page."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.output_files import write_file
from slurm_energy.cli.record_query import job_ids
from slurm_energy.errors import EXIT_OK, NotFoundError, UsageError

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.usage import JobUsage

HELP = "where a job lost time and energy, with evidence"

EPILOG = """\
Shows the use of the hardware, step times, and findings in the order of the energy they cost. A finding names
its evidence; docs/findings/ has a page for each kind. Unknown values give no finding: senergyd samples
signals for jobs with --energy-signals=10s or by site default, and programs report their steps through
slurm_energy. Jobs without them are judged by their power trace alone. Settings to try have a measured or
predicted gain.

examples:
  senergy diagnose 12                    one page about job 12
  senergy diagnose 12_3 --html job.html  the same as a self-contained page
  senergy diagnose 12 --json             all figures, see docs/reference/json.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy diagnose`."""
    parser.epilog = EPILOG
    parser.add_argument("job", metavar="JOBID", help="12, 12_3 or 14+0; a running job is judged so far")
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument(
        "--ascii", action="store_true", help="ASCII characters only, the default on terminals without UTF-8"
    )
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch the records and observations of a job, and show its diagnosis in the requested form."""
    ids = job_ids(args.job, "JOBID")
    if len(ids) != 1:
        raise UsageError("senergy diagnose", f"it shows one job, not {len(ids)}", "name one job")
    if "." in ids[0]:
        raise UsageError("senergy diagnose", "it shows jobs, not steps", f"name {ids[0].partition('.')[0]}")
    from slurm_energy.diagnosis.diagnose import diagnose
    from slurm_energy.reports.diagnosis_input import job_observation
    from slurm_energy.reports.recommendation import recommendations

    client = connection.connect(args)
    job = _job(client, ids[0])
    config = connection.configuration(args)
    observation = job_observation(job, _documents(client, ids[0]), config)
    diagnosis = diagnose(observation, config.diagnosis)
    advice = list(recommendations(job, config))
    if args.json:
        from slurm_energy.reports.diagnosis_json import diagnosis_json

        emit_json(diagnosis_json(job, diagnosis, advice))
    if args.html:
        from slurm_energy.reports.diagnosis_html import diagnosis_document

        write_file(args.html, diagnosis_document(job, diagnosis, advice, config.diagnosis, datetime.now()))
    if not (args.json or args.html):
        from slurm_energy.reports.diagnosis_text import diagnosis_page
        from slurm_energy.reports.text_plot import ASCII, glyphs_for

        glyphs = ASCII if args.ascii else glyphs_for(sys.stdout.encoding)
        emit_fitted(diagnosis_page(job, diagnosis, advice, config.diagnosis, glyphs))
    return EXIT_OK


def _job(client: ControllerClient, job_id: str) -> JobUsage:
    """Return the last run of a job, or the job so far if it is running.

    Raises:
        NotFoundError: the job has neither ended with a record nor is it running.
        UsageError: the id names several jobs.
    """
    from slurm_energy.reports.usage import AccountedRecord, summarise

    try:
        answer: dict[str, Any] = client.get(f"/v1/jobs/{job_id}", {"duplicates": "1"})
    except NotFoundError as error:
        job = _running_job(client, job_id)
        if job is None:
            raise error from None
        return job
    jobs: dict[tuple[str, int], JobUsage] = {}
    for usage in summarise(map(AccountedRecord.from_json, answer.get("records", [])), duplicates=True):
        jobs[(usage.first.cluster, usage.first.job_id)] = usage
    if not jobs:
        raise NotFoundError(f"job {job_id}", "it has no energy record")
    if len(jobs) > 1:
        example = next(iter(jobs.values())).display_id
        raise UsageError(f"job {job_id}", f"it has {len(jobs)} tasks", f"name one, for example {example}")
    return next(iter(jobs.values()))


def _running_job(client: ControllerClient, job_id: str) -> JobUsage | None:
    """Return a running job so far; None if it is not running, or its id is not a plain number."""
    from dataclasses import replace

    from slurm_energy.protocol.live_reports import RUNNING_PATH
    from slurm_energy.reports.usage import AccountedRecord, JobInfo, summarise

    if not job_id.isdecimal():
        return None
    answer = client.get(RUNNING_PATH, {"job": job_id})
    records = [AccountedRecord.from_json(item) for item in answer.get("records", [])]
    running = [replace(item, job=JobInfo(state="RUNNING")) for item in records]
    jobs = [job for job in summarise(running) if job.first.job_id == int(job_id)]
    return jobs[-1] if jobs else None


def _documents(client: ControllerClient, job_id: str) -> list[Any]:
    """Return the node observations of a job as JSON; empty if there are none."""
    from slurm_energy.protocol.observation_requests import node_documents, observation_path

    try:
        documents = node_documents(client.get(observation_path(job_id)))
    except NotFoundError:
        documents = []
    if not documents:
        note(f"job {job_id}: no signals were observed; the diagnosis uses energy and power only")
    return documents
