"""Command `senergy diagnose`: where a job lost time and energy.

The output is text, JSON or an HTML page.
"""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from slurm_energy.cli import connection, diagnose_adjustments, diagnose_patterns
from slurm_energy.cli.observed_job import fetch_observed_job
from slurm_energy.cli.output import emit_fitted, emit_json, output_glyphs
from slurm_energy.cli.output_files import write_file
from slurm_energy.cli.record_query import job_ids
from slurm_energy.errors import EXIT_OK, UsageError

HELP = "where a job lost time and energy, with evidence"

EPILOG = """\
Shows the use of the hardware, step times, and findings in the order of the energy they cost. A finding names
its evidence; docs/findings/ has a page for each kind. Unknown values give no finding: senergyd samples
signals for jobs with --energy-signals=10s or by site default, and programs report their steps through
slurm_energy. Jobs without them are judged by their power trace alone. Settings to try have a measured or
predicted gain.

examples:
  senergy diagnose 12                     one page about job 12
  senergy diagnose 12_3 --html job.html   the same as a self-contained page
  senergy diagnose 12 --json              all figures, see docs/reference/json.md
  senergy diagnose --patterns             your most wasteful patterns of the last 30 days
  senergy diagnose --patterns -a --by user -S now-7days
  senergy diagnose 12 --apply --permit workers=0..16
                                          apply the advice at the next run, and verify it
  senergy diagnose --adjustments          what was applied, kept and undone, with the measured gain
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy diagnose`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "job",
        metavar="JOBID",
        nargs="?",
        help="12, 12_3 or 14+0; a running job is judged so far, with signals on its own node",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write an HTML page instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    parser.add_argument(
        "--ascii", action="store_true", help="ASCII characters only, the default on terminals without UTF-8"
    )
    connection.add_config_option(parser)
    diagnose_adjustments.add_options(parser)
    diagnose_patterns.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Fetch the records and observations of a job, and show its diagnosis in the requested form."""
    if diagnose_adjustments.is_requested(args):
        return diagnose_adjustments.run(args)
    if args.patterns:
        if args.job or args.html:
            raise UsageError("--patterns", "it takes neither a job nor --html", "use -u, -A, -S and -E")
        return diagnose_patterns.run(args)
    if args.job is None:
        raise UsageError("senergy diagnose", "no job is named", "name a job, or use --patterns")
    if given := _pattern_options(args):
        raise UsageError(", ".join(given), "they require --patterns", "add --patterns")
    ids = job_ids(args.job, "JOBID")
    if len(ids) != 1:
        raise UsageError("senergy diagnose", f"it shows one job, not {len(ids)}", "name one job")
    if "." in ids[0]:
        raise UsageError("senergy diagnose", "it shows jobs, not steps", f"name {ids[0].partition('.')[0]}")
    from slurm_energy.diagnosis.diagnose import diagnose
    from slurm_energy.reports.diagnosis.input import job_observation
    from slurm_energy.reports.labels.recommendation import recommendations

    client = connection.connect(args)
    job, documents = fetch_observed_job(args, client, ids[0])
    config = connection.configuration(args)
    observation = job_observation(job, documents, config)
    diagnosis = diagnose(observation, config.diagnosis)
    settings = list(recommendations(job, config))
    if args.json:
        from slurm_energy.reports.diagnosis.json import diagnosis_json

        emit_json(diagnosis_json(job, diagnosis, settings))
    if args.html:
        from slurm_energy.reports.diagnosis.html import diagnosis_document

        write_file(args.html, diagnosis_document(job, diagnosis, settings, config.diagnosis, datetime.now()))
    if not (args.json or args.html):
        from slurm_energy.reports.diagnosis.text import diagnosis_page

        glyphs = output_glyphs(ascii_only=args.ascii)
        emit_fitted(diagnosis_page(job, diagnosis, settings, config.diagnosis, glyphs))
    return EXIT_OK


def _pattern_options(args: argparse.Namespace) -> list[str]:
    """Return those given options that belong to --patterns."""
    names = ("starttime", "endtime", "user", "accounts", "allusers", "by")
    return [f"--{name}" for name in names if getattr(args, name)]
