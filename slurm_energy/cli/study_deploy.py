"""`senergy study deploy`: deploy the chosen energy-saving measures in stages, or undo them."""

from __future__ import annotations

import argparse
import shlex
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_energy.cli.output import emit, emit_json, emit_verbatim, note
from slurm_energy.cli.setup_dialogue import TerminalDialogue
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.rollout.assignment import ArmAssignment
    from slurm_energy.study.rollout.deploy_plan import StageRequest
    from slurm_energy.study.rollout.deploy_step import Deployment
    from slurm_energy.study.rollout.deployment import DeploymentState
    from slurm_energy.study.rollout.site_configuration import ConfigurationStep

_STAGES = ("shadow", "advise", "partition", "all")
_DAYS = 28
_BY_HAND = "taken back by hand"
_DESIGNS = ("switchback", "partition", "users", "none")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study deploy`."""
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--stage", choices=_STAGES, help="put this stage in force; each comes after the one before"
    )
    action.add_argument(
        "--tick", action="store_true", help="set the arm of a switchback for now; run it daily"
    )
    action.add_argument("--undo", action="store_true", help="restore the site's own configuration")
    parser.add_argument("--config", type=Path, metavar="FILE", help="energy.toml of the site")
    parser.add_argument("--alternative", default="", metavar="NAME", help="default: the recommended one")
    parser.add_argument(
        "--partition", action="append", default=[], metavar="NAME", help="treated partition; may be repeated"
    )
    parser.add_argument("--design", choices=_DESIGNS, help="how jobs are divided between treated and control")
    parser.add_argument("--days", type=int, metavar="N", help="length of a switchback (default: 28)")
    parser.add_argument("--period-days", type=int, metavar="N", help="days of a period (default: 1)")
    parser.add_argument("--first-day", metavar="DATE", help="first day of a switchback (default: tomorrow)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the assignment (default: random, stored)"
    )
    parser.add_argument("--skip-stages", action="store_true", help="leave out the stages before this one")
    parser.add_argument(
        "--apply-command",
        default="",
        metavar="COMMAND",
        help="program that distributes energy.toml and reloads the daemons (default: reload those here)",
    )
    parser.add_argument("--at", metavar="TIME", help="time for which the arm is set (default: now)")
    parser.add_argument(
        "--reason", metavar="TEXT", help="reason of --undo, for the log (default: taken back by hand)"
    )
    parser.add_argument("--yes", action="store_true", help="agree to the change")
    parser.add_argument("--dry-run", action="store_true", help="show the change of --stage, make none")


def run(args: argparse.Namespace) -> int:
    """Run the command `senergy study deploy`.

    The command begins a stage of the deployment. There are two options for other actions:

    - `--undo` undoes the deployment.
    - `--tick` puts the configuration in force that the stage plans for the given time. The plan
      alternates between the configuration with the energy measures and the site's own configuration.
    """
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.rollout.deploy_step import Deployment

    _check(args)
    study = StudyDirectory(Path(args.directory))
    deployment = Deployment(study, _time(args.at))
    command = command_line()
    if args.tick:
        return _finish(args, study, deployment, deployment.tick(command))
    if args.undo:
        return _undo(args, study, deployment, command)
    return _begin(args, study, deployment, command)


def _check(args: argparse.Namespace) -> None:
    """Refuse combinations of options in which an option has no effect."""
    stage_options = {
        "--config": args.config,
        "--alternative": args.alternative,
        "--partition": args.partition,
        "--design": args.design,
        "--days": args.days is not None,
        "--period-days": args.period_days is not None,
        "--first-day": args.first_day,
        "--seed": args.seed is not None,
        "--skip-stages": args.skip_stages,
        "--apply-command": args.apply_command,
        "--dry-run": args.dry_run,
    }
    given = [name for name, value in stage_options.items() if value]
    if not args.stage and given:
        raise UsageError(given[0], "belongs to --stage", "leave it out")
    if args.reason is not None and not args.undo:
        raise UsageError("--reason", "belongs to --undo", "leave it out")
    if args.yes and not args.stage:
        raise UsageError("--yes", "belongs to --stage: --tick and --undo do not ask", "leave it out")
    if args.seed is not None and not _draws(args):
        why = "nothing is drawn: only switchbacks, drawn partitions and users are"
        raise UsageError("--seed", why, "leave it out, or name a --design")
    for name in ("--days", "--period-days", "--first-day"):
        if stage_options[name] and args.design != "switchback":
            raise UsageError(name, "belongs to a switchback", "--design switchback")
    if args.stage and args.json and not (args.yes or args.dry_run):
        raise UsageError("--json", "cannot ask", "add --yes, or --dry-run")


def _draws(args: argparse.Namespace) -> bool:
    """Return whether the deployment assigns jobs to treatment or control at random."""
    return args.design in ("switchback", "users") or (args.design == "partition" and not args.partition)


def _begin(args: argparse.Namespace, study: StudyDirectory, deployment: Deployment, command: str) -> int:
    request = _request(args)
    step = deployment.preview(request)
    if args.dry_run:
        if args.json:
            emit_json({"diff": step.diff(), "remarks": deployment.remarks})
        else:
            _show(step, deployment.remarks, request)
        return EXIT_OK
    if not args.json:
        _show(step, deployment.remarks, request)
    dialogue = TerminalDialogue(agree=args.yes, quiet=args.json)
    if not dialogue.confirm(f"Begin the stage {request.stage}?"):
        note("declined: nothing was changed")
        return EXIT_FAILURE
    deployment.remarks.clear()
    return _finish(args, study, deployment, deployment.begin_stage(request, command))


def _show(step: ConfigurationStep, remarks: list[str], request: StageRequest) -> None:
    """Print the change of the configuration that starts a stage of the deployment.

    A stage states for how many of the jobs a deployment takes effect.
    """
    emit(remarks)
    if step.diff() and request.design == "switchback":
        emit(["change on treated days:"])
    emit_verbatim(step.diff() or [f"{request.configuration} stays as it is"])


def _request(args: argparse.Namespace) -> StageRequest:
    from slurm_energy.config.loader import locate
    from slurm_energy.study.rollout.assignment import AssignmentDesign
    from slurm_energy.study.rollout.deploy_plan import StageRequest
    from slurm_energy.study.rollout.stages import DeploymentStage

    first_day = None
    if args.first_day:
        try:
            first_day = date.fromisoformat(args.first_day)
        except ValueError:
            raise UsageError(f"--first-day {args.first_day[:40]}", "is not a date", "as 2026-12-01") from None
    days = _DAYS if args.days is None else args.days
    period_days = 1 if args.period_days is None else args.period_days
    if days < 1 or period_days < 1:
        raise UsageError("--days", "and --period-days are positive", "such as --days 28 --period-days 1")
    return StageRequest(
        DeploymentStage(args.stage),
        locate(args.config),
        args.alternative,
        AssignmentDesign(args.design) if args.design else None,
        tuple(dict.fromkeys(args.partition)),
        first_day,
        days,
        period_days,
        args.seed,
        args.skip_stages,
        _words(args.apply_command),
    )


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError("--apply-command", str(error), "quote it as for a shell") from None


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(f"--at {text[:40]}", "is not a time", "as 2026-12-01T00:05") from None


def _undo(args: argparse.Namespace, study: StudyDirectory, deployment: Deployment, command: str) -> int:
    state = deployment.undo(args.reason or _BY_HAND, command)
    if state is None:
        emit_json({"stage": None}) if args.json else emit(["nothing to undo: nothing was deployed"])
        return EXIT_OK
    return _finish(args, study, deployment, state)


def _finish(
    args: argparse.Namespace, study: StudyDirectory, deployment: Deployment, state: DeploymentState
) -> int:
    if args.json:
        emit_json(state.document() | {"remarks": deployment.remarks})
        return EXIT_OK
    emit(_lines(state, study.objective().season.timezone))
    for remark in deployment.remarks:
        note(remark)
    return EXIT_OK


def _lines(state: DeploymentState, timezone: str) -> list[str]:
    switch = state.switches[-1]
    if not state.is_active:
        return [f"{state.configuration}: the site's own configuration ({state.stopped})"]
    lines = [f"stage {state.stage}: {state.alternative.title}"]
    if state.assignment is not None:
        lines += _assignment_lines(state.assignment, timezone)
    arm = "the alternative" if switch.is_treated else "the site's own configuration"
    lines.append(f"in force now: {arm if state.stage.applies else 'decisions without effect'}")
    return lines


def _assignment_lines(assignment: ArmAssignment, timezone: str) -> list[str]:
    from slurm_energy.study.data.days import date_of

    if assignment.periods:
        first = date_of(assignment.periods[0].begin_s, timezone)
        last = date_of(assignment.periods[-1].end_s - 1, timezone)
        return [
            f"switchback of {len(assignment.periods)} periods, {first} to {last}, seed {assignment.seed}",
            "set the arm at the begin of each day: senergy study deploy DIR --tick",
        ]
    if assignment.treated:
        drawn = f"drawn with seed {assignment.seed}" if assignment.seed >= 0 else "chosen, not drawn"
        return [
            f"treated: {', '.join(assignment.treated)}; control: {', '.join(assignment.control)} ({drawn})"
        ]
    return ["no control group: the effect is compared with the baseline only"]
