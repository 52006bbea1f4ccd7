"""`senergy study report`: the report of a study as HTML page, notebook and JSON."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from pathlib import Path

from slurm_energy import atomic_file
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study report`."""
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, help="directory of the files (default: DIR)"
    )


def run(args: argparse.Namespace) -> int:
    """Execute `senergy study report`.

    The command writes report.html, report.ipynb and report.json, and prints the conclusion.
    """
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.report.report_document import report_document
    from slurm_energy.study.report.report_notebook import study_notebook
    from slurm_energy.study.report.report_page import study_page

    study = StudyDirectory(Path(args.directory))
    report = report_document(study)
    folder = args.output or study.path
    contents = {
        "report.json": json.dumps(report, indent=2) + "\n",
        "report.html": study_page(report, datetime.now()),
        "report.ipynb": study_notebook(report, folder),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            atomic_file.write(folder / name, text.encode(), mode=0o644)
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"{folder}", why, "name a directory that you may write") from None
    if args.json:
        emit_json(report)
        return EXIT_OK
    files = ", ".join(str(folder / name) for name in contents)
    judged = [f"{one['verdict']}: {one['text']}: {one['figures']}" for one in report["conclusions"]]
    emit([*report["conclusion"], *judged, f"written: {files}"])
    return EXIT_OK
