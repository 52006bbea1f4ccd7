"""The command `senergy study init`, which creates a new study."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.errors import EXIT_OK, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study init`."""
    parser.add_argument("--title", metavar="TEXT", default="", help="title (default: the name of DIR)")
    parser.add_argument(
        "--objective", metavar="FILE", type=Path, help="begin with this objective file (default: an example)"
    )


def run(args: argparse.Namespace) -> int:
    """Create the study."""
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.goals.objective import FILE_NAME
    from slurm_energy.study.goals.objective_document import objective_example

    folder = Path(args.directory)
    if args.objective is not None and args.title:
        raise UsageError("--title", "given together with --objective", "write the title into the file")
    if args.objective is None:
        text = objective_example(args.title or folder.absolute().name)
    else:
        text = _text(args.objective)
    study = StudyDirectory.create(folder, text)
    objective = study.objective()
    if args.json:
        emit_json({"directory": str(folder), "id": study.manifest.id, "title": objective.title})
        return EXIT_OK
    emit_fitted(
        [
            f"Study '{objective.title}' created in {folder}.",
            f"Edit the objective:  {folder / FILE_NAME}",
            f"Then:                senergy study baseline {folder}",
        ]
    )
    return EXIT_OK


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"--objective {path}", reason, "name an objective file") from None
