"""Options of `senergy diagnose` about adjustments, such as `--apply`.

An adjustment is a value that the diagnosis advises for the next run of a program.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import connection
from slurm_energy.cli.output import emit, emit_fitted, emit_json, note
from slurm_energy.errors import EXIT_OK, EnergyError, UsageError

if TYPE_CHECKING:
    from slurm_energy.protocol.controller_client import ControllerClient


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options about adjustments."""
    group = parser.add_argument_group("adjustments of the next run (docs/diagnosis.md, Closed loop)")
    group.add_argument(
        "--apply", action="store_true", help="apply the best permitted advice at the program's next run"
    )
    group.add_argument(
        "--permit",
        metavar="LIST",
        help="with --apply: what it may change, such as workers=0..16,pin-memory,slowdown=5;"
        " alone: save it for your jobs, also those with --energy-policy=auto",
    )
    group.add_argument(
        "--submit",
        metavar="SCRIPT",
        type=Path,
        help="submit the next run with the options of sbatch that the adjustments need",
    )
    group.add_argument("--adjustments", action="store_true", help="list adjustments with their measured gain")
    group.add_argument("--undo", action="store_true", help="undo the adjustments of the job's program")


def is_requested(args: argparse.Namespace) -> bool:
    """Return whether an option about adjustments was given."""
    return bool(_actions(args)) or args.permit is not None


def _actions(args: argparse.Namespace) -> list[str]:
    """Return the names of the adjustment actions that the user has requested on the command line."""
    requested = {
        "apply": args.apply,
        "undo": args.undo,
        "adjustments": args.adjustments,
        "submit": args.submit is not None,
    }
    return [name for name, value in requested.items() if value]


def run(args: argparse.Namespace) -> int:
    """Carry out the actions that the options about adjustments request."""
    actions = _actions(args)
    _check(args, actions)
    client = connection.connect(args)
    if not actions:
        return _permit(client, args)
    if actions == ["apply"]:
        return _apply(client, args)
    if actions == ["undo"]:
        return _undo(client, args)
    if actions == ["submit"]:
        return _submit(client, args)
    return _list(client, args)


def _check(args: argparse.Namespace, actions: list[str]) -> None:
    if args.html or args.patterns:
        raise UsageError("senergy diagnose", "options about adjustments exclude --html and --patterns")
    if len(actions) > 1:
        raise UsageError(", ".join(f"--{name}" for name in actions), "give one of them")
    if args.job is None and actions and actions != ["adjustments"]:
        raise UsageError(f"--{actions[0]}", "no job is named", "name a job of the program")
    if args.permit is not None:
        from slurm_energy.adjustment_permissions import AdjustmentPermissions

        if actions not in ([], ["apply"]):
            raise UsageError("--permit", f"it has no effect with --{actions[0]}")
        if not actions and args.job is not None:
            raise UsageError("--permit", "it is saved for all jobs", "add --apply, or leave out the job")
        AdjustmentPermissions.parse(args.permit)


def _permit(client: ControllerClient, args: argparse.Namespace) -> int:
    answer = client.post(_path("permit"), {"permit": args.permit})
    if args.json:
        emit_json(answer)
        return EXIT_OK
    emit([f"permitted: {answer.get('permissions') or 'nothing'}"])
    if answer.get("within_site_limits") != answer.get("permissions"):
        note(f"the site limits this to: {answer.get('within_site_limits') or 'nothing'}")
    return EXIT_OK


def _apply(client: ControllerClient, args: argparse.Namespace) -> int:
    """Execute `senergy diagnose --apply`: start a trial of adjustments.

    If the user has not permitted any adjustment, show which adjustments could be applied.
    """
    from slurm_energy.reports.diagnosis.adjustment_text import proposal_lines

    if args.permit is None:
        shown = client.get(_path(), {"job": args.job})
        if shown.get("permissions") is None:
            if not args.json:
                proposals = shown.get("proposals") or ()
                emit(["Advice that can be applied:" if proposals else "No advice can be applied."])
                emit_fitted(proposal_lines(proposals))
            raise UsageError("--apply", "nothing is permitted", "add --permit LIST, such as workers=0..16")
    body = {"job": args.job} | ({} if args.permit is None else {"permit": args.permit})
    answer = client.post(_path("apply"), body)
    if args.json:
        emit_json(answer)
        return EXIT_OK
    trial = answer.get("trial") or {}
    emit(["At the next run of the program:"])
    emit_fitted(proposal_lines([trial]))
    options = _options(dict(_submission_values(trial)))
    if options:
        emit([f"Submit it with: senergy diagnose {args.job} --submit SCRIPT, which adds {' '.join(options)}"])
    else:
        kinds = ", ".join(item["kind"] for item in trial.get("adjustments") or ())
        emit([f"The program gets it where it calls slurm_energy.adjusted: {kinds}"])
    if answer.get("further_proposals"):
        note(f"{answer['further_proposals']} further proposals wait: findings are tried one at a time")
    return EXIT_OK


def _undo(client: ControllerClient, args: argparse.Namespace) -> int:
    from slurm_energy.reports.diagnosis.adjustment_text import change_text

    answer = client.post(_path("undo"), {"job": args.job})
    if args.json:
        emit_json(answer)
        return EXIT_OK
    emit([f"undone: {change_text(trial.get('adjustments'))}" for trial in answer.get("undone") or ()])
    return EXIT_OK


def _list(client: ControllerClient, args: argparse.Namespace) -> int:
    from slurm_energy.reports.diagnosis.adjustment_text import trial_lines

    answer = client.get(_path(), {} if args.job is None else {"job": args.job})
    if args.json:
        emit_json(answer)
        return EXIT_OK
    emit([f"permitted: {answer.get('permissions') or 'nothing'}"])
    trials = answer.get("trials") or []
    if trials:
        emit_fitted(trial_lines(trials, with_users=answer.get("scope") == "all"))
    else:
        emit(["no adjustments so far"])
    return EXIT_OK


def _submit(client: ControllerClient, args: argparse.Namespace) -> int:
    """Submit a batch script with sbatch options that carry the adjustments of its program.

    An adjustment is a value that the diagnosis advises. The new job is reported to senergyctld, so that it
    can be compared with earlier runs.
    """
    from slurm_energy.slurm.sbatch import run_sbatch

    _check_script(args.submit)
    answer = client.get(_path(), {"job": args.job})
    options = _options(answer.get("values") or {})
    if not answer.get("values"):
        raise UsageError(f"job {args.job}", "no adjustment of its program is in force", "add --apply first")
    job_id = run_sbatch(["sbatch", "--parsable", *options, str(args.submit)], {})
    try:
        client.post(_path("submitted"), {"job_id": job_id, "workload": answer.get("workload")})
    except EnergyError as error:
        note(f"job {job_id} is not compared with earlier runs: {error}")
    if args.json:
        emit_json({"job_id": job_id, "options": options})
        return EXIT_OK
    emit([f"submitted job {job_id}" + (f" with {' '.join(options)}" if options else "")])
    return EXIT_OK


def _check_script(path: Path) -> None:
    """Check that a batch script is one job, whose run can be compared with earlier runs.

    Raises:
        UsageError: the script cannot be read, sbatch would reject it, or it is a job array or a
            heterogeneous job.
    """
    from slurm_energy.slurm.batch_script import effective_options, read_content

    if "array" in effective_options(str(path), read_content(path)):
        todo = "submit a job per task, or use sbatch"
        raise UsageError(f"{path}: --array", "the tasks of a job array are not compared", todo)


def _submission_values(trial: dict[str, Any]) -> list[tuple[str, int]]:
    return [(item["kind"], item["new"]) for item in trial.get("adjustments") or ()]


def _options(values: dict[str, int]) -> list[str]:
    """Return the sbatch options that apply adjustments to a job.

    Each new value is checked first. An adjustment is a value that the diagnosis advises to change.
    """
    from slurm_energy.adjustment import Adjustment

    items = (Adjustment.from_json({"kind": kind, "new": new}) for kind, new in sorted(values.items()))
    return [option for item in items if (option := item.sbatch_option) is not None]


def _path(action: str = "") -> str:
    from slurm_energy.protocol.adjustment_requests import ADJUSTMENTS_PATH

    return f"{ADJUSTMENTS_PATH}/{action}" if action else ADJUSTMENTS_PATH
