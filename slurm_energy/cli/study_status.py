"""`senergy study status`: state of each step of a study."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any

from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK
from slurm_energy.quantities import format_duration


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study status`."""
    del parser  # it has only the options of all actions


def run(args: argparse.Namespace) -> int:
    """Print the state of each step and the next command."""
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.next_command import next_command
    from slurm_energy.study.steps import STEPS

    study = StudyDirectory(Path(args.directory))
    objective = study.objective()
    rows = []
    for name, step in STEPS.items():
        entry = study.manifest.steps[name]
        rows.append(
            {
                "step": name,
                "title": step.title,
                "state": str(entry.state),
                "stale": study.staleness(name) or None,
                "started": entry.started,
                "ended": entry.ended,
                "command": entry.command or None,
                "release": entry.release,
                "error": entry.error or None,
            }
        )
    holder = study.holder()
    document = {
        "directory": args.directory,
        "id": study.manifest.id,
        "title": objective.title,
        "in_use_by": holder or None,
        "next": next_command(study),
        "steps": rows,
    }
    if args.json:
        emit_json(document)
    else:
        emit_fitted(_lines(document))
    return EXIT_OK


def _lines(document: dict[str, Any]) -> list[str]:
    lines = [f"{document['title']} ({document['directory']})", ""]
    lines.append(f"{'Step':<13} {'State':<12} {'Started':<17} {'Took':>12}  Remark")
    for row in document["steps"]:
        state = "stale" if row["stale"] else row["state"]
        if row["state"] == "running" and not document["in_use_by"]:
            state = "interrupted"
        begun, ended = row["started"], row["ended"]
        started = "" if begun is None else datetime.fromtimestamp(begun).strftime("%Y-%m-%d %H:%M")
        took = "" if begun is None or ended is None else format_duration(ended - begun)
        remark = row["stale"] or row["error"] or (row["title"] if state == "none" else "")
        lines.append(f"{row['step']:<13} {state:<12} {started:<17} {took:>12}  {remark}".rstrip())
    if document["in_use_by"]:
        lines += ["", f"in use by {document['in_use_by']}"]
    else:
        lines += ["", f"next: {document['next']}"]
    return lines
