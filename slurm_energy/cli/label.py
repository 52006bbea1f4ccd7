"""`senergy label`: energy label of a job for papers, model cards and web pages."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.errors import EXIT_OK, EnergyError, NotFoundError, UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.grid.footprint import Footprint
    from slurm_energy.protocol.controller_client import ControllerClient
    from slurm_energy.reports.labels.publication_label import LabelledWork
    from slurm_energy.reports.usage import JobUsage

HELP = "energy label of a job for papers and model cards, as text, JSON or SVG"
_MAX_UNIT = 64

EPILOG = """\
The label states energy, time, hardware, emissions with their basis, and the quality of the measurement. With
--work it also states energy and time per unit: the number of images, tokens, steps or cells that the job has
processed. An array or heterogeneous job needs the id of one task or component. senergy job shows settings,
power over time and advice. Exit code 6: the job is unknown or has no record yet.

examples:
  senergy label 12
  senergy label 12 --work 1281167 --unit image
  senergy label 12_3 --svg label.svg
  senergy label 12 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy label`."""
    parser.epilog = EPILOG
    parser.add_argument("job", metavar="JOBID", help="12, 12_3 or 14+0")
    parser.add_argument("--work", metavar="N", help="units of work that the job has done")
    parser.add_argument("--unit", metavar="NAME", default="unit", help="name of one unit (default: unit)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--svg", metavar="FILE", type=Path, help="write a picture instead")
    connection.add_config_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write the label of one job."""
    from slurm_energy.cli.output_files import write_file
    from slurm_energy.reports.labels.publication_label import PublicationLabel

    work = _work(args)
    controller = connection.connect(args)
    job = _job(controller, args.job)
    made = PublicationLabel(job, _footprint(controller, job), work)
    if args.json:
        emit_json(made.to_json())
    elif args.svg:
        write_file(args.svg, made.svg() + "\n")
    else:
        emit(made.lines())
    return EXIT_OK


def _work(args: argparse.Namespace) -> LabelledWork | None:
    from slurm_energy.reports.labels.publication_label import LabelledWork

    if args.work is None:
        return None
    try:
        count = float(args.work)
    except ValueError:
        count = math.nan
    if not (count > 0 and math.isfinite(count)):
        raise UsageError(f"--work: '{shown(args.work)}' is not a number above 0")
    if not args.unit.isprintable() or not 0 < len(args.unit) <= _MAX_UNIT:
        raise UsageError("--unit: it must be 1 to 64 printable characters")
    return LabelledWork(count, args.unit)


def _job(controller: ControllerClient, job_id: str) -> JobUsage:
    from slurm_energy.reports.usage import AccountedRecord, summarise

    answer = controller.get(f"/v1/jobs/{job_id}")
    jobs = summarise(map(AccountedRecord.from_json, answer.get("records", [])))
    if not jobs:
        raise NotFoundError(f"job {job_id}", "it has no energy record")
    if len(jobs) > 1:
        raise UsageError(
            f"job {job_id}", f"it has {len(jobs)} tasks or components", f"name one: {jobs[0].display_id}"
        )
    return jobs[0]


def _footprint(controller: ControllerClient, job: JobUsage) -> Footprint | None:
    """Return emissions and cost; None with a note if the controller returns no factors."""
    from slurm_energy.cli.job_footprints import job_footprints

    if job.energy_joules is None:
        return None
    try:
        return job_footprints(controller, [job])[0]
    except EnergyError as error:
        note(f"emissions and cost are unknown: {error}")
        return None
