"""`senergy setup`: configure slurm-energy on a host of a Slurm cluster, or undo this."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.errors import EXIT_OK, EnergyError, ForbiddenError, UsageError

if TYPE_CHECKING:
    from slurm_energy.cli.setup_dialogue import TerminalDialogue
    from slurm_energy.setup.dialogue import SetupOutcome
    from slurm_energy.setup.own_files import OwnFiles
    from slurm_energy.setup.plan import PlanOptions, Role, SetupPlan
    from slurm_energy.setup.removal import FileReversal
    from slurm_energy.setup.site import SlurmSite

HELP = "configure slurm-energy and Slurm on this host, or undo that"

EPILOG = """\
Run `senergy setup controller` on the host of slurmctld, then `senergy setup node` on each compute node and
`senergy setup login` on login nodes. setup writes /etc/slurm/energy.toml, starts the daemon of the role, and
adds the lines of slurm-energy to slurm.conf, plugstack.conf and job_submit.lua. It shows each change of
Slurm's files as a diff and asks before it writes and before it restarts slurmctld or slurmd; running jobs
continue. A second run changes nothing. Every change is in a journal in /var/lib/senergy-setup, from which
`senergy setup undo` restores the files exactly; in files that were changed since, it removes only the lines
of setup. Nothing is deleted from the database. See docs/setup.md.

exit codes of setup: 0 all done; 1 something remains to be done by hand, or a change was declined; 2 usage;
3 configuration; 4 a daemon, systemd or a file is not available; 5 root is needed; 6 no slurm.conf; 7 another
run of setup is active

examples:
  senergy setup controller                 asks before each change
  senergy setup controller --yes
  senergy setup node --yes                 on each compute node
  senergy setup login --yes                on each login node
  senergy setup controller --dry-run       shows all changes, makes none
  senergy setup undo --dry-run
  senergy setup undo --yes
"""
_PROBE_TIMEOUT_S = 3.0
_ROLES = {
    "controller": "host of slurmctld: senergyctld, the check at submission, slurm.conf",
    "node": "compute node: senergyd, flags and hooks",
    "login": "login node: flags of sbatch, srun and salloc, and a timer that copies the policy file",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy setup`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="controller|node|login|undo")
    for role, text in _ROLES.items():
        action = actions.add_parser(role, help=text, description=text)
        _add_common_options(action)
        action.add_argument("--config", type=Path, metavar="FILE", help="energy.toml to write")
        action.add_argument("--slurm-conf", type=Path, metavar="FILE", help="slurm.conf of the cluster")
        action.add_argument("--slurm-prefix", type=Path, metavar="DIR", help="prefix of Slurm")
        action.add_argument(
            "--contain",
            action="store_true",
            help="also add Contain to PrologFlags, for jobs that share nodes",
        )
        action.add_argument("--no-doctor", action="store_true", help="do not run `senergy doctor` at the end")
        if role == "controller":
            action.add_argument("--database", metavar="FILE|URL", help="database of senergyctld")
    undo = actions.add_parser("undo", help="take back every change that setup made on this host")
    _add_common_options(undo)


def _add_common_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="agree to all changes and restarts")
    parser.add_argument("--dry-run", action="store_true", help="show all changes, make none")
    parser.add_argument("--json", action="store_true", help="print JSON; needs --yes or --dry-run")
    parser.add_argument(
        "--library", type=Path, metavar="DIR", help="directory of the plugins (default: where they are)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the action that the user named and return the exit code."""
    from slurm_energy.cli.setup_dialogue import TerminalDialogue
    from slurm_energy.setup.own_files import own_files

    if not (args.yes or args.dry_run) and (args.json or not sys.stdin.isatty()):
        todo = "use --yes to agree to all changes, or --dry-run to see them"
        raise UsageError("senergy setup", "cannot ask, because there is no terminal", todo)
    if not args.dry_run and os.geteuid() != 0:
        raise ForbiddenError("senergy setup", "changes files of Slurm", "run it as root, or with --dry-run")
    dialogue = TerminalDialogue(agree=args.yes, quiet=args.json)
    own = own_files(args.library)
    if args.action == "undo":
        return _undo(args, own, dialogue)
    return _set_up(args, own, dialogue)


def _set_up(args: argparse.Namespace, own: OwnFiles, dialogue: TerminalDialogue) -> int:
    from slurm_energy.setup.changes import settle
    from slurm_energy.setup.execution import SetupRun
    from slurm_energy.setup.journal import SetupJournal
    from slurm_energy.setup.plan import Role, make_plan
    from slurm_energy.setup.services import UnitManager
    from slurm_energy.setup.site import read_site

    role = Role(args.action)
    site = read_site(args.slurm_prefix, args.slurm_conf)
    _use_slurm_of(site)
    options = _options(args, role, site, dialogue)
    if args.dry_run:
        return _show_plan(make_plan(role, site, own, options), args)
    journal, units = SetupJournal(), UnitManager()
    with journal.locked():
        for line in settle(journal):
            dialogue.say(line)
        plan = make_plan(role, site, own, options)
        _say_notes(plan, site, dialogue)
        outcome = SetupRun(plan, site, own, journal, dialogue, units).execute()
    return _finish(args, plan, outcome, site)


def _use_slurm_of(site: SlurmSite) -> None:
    """Make all commands of this process use the site's installation of Slurm."""
    if site.installation is not None:
        folders = [str(site.installation.prefix / name) for name in ("bin", "sbin")]
        os.environ["PATH"] = os.pathsep.join([*folders, os.environ.get("PATH", "/usr/sbin:/usr/bin")])
    os.environ["SLURM_CONF"] = str(site.conf)


def _options(
    args: argparse.Namespace, role: Role, site: SlurmSite, dialogue: TerminalDialogue
) -> PlanOptions:
    from slurm_energy.config.loader import locate
    from slurm_energy.setup.plan import DATABASE_DIRECTORY, PlanOptions, Role
    from slurm_energy.setup.slurm_state import running_settings

    values: dict[tuple[str, str], object] = {}
    if role is Role.CONTROLLER and not locate(args.config).exists():
        database = args.database
        if database is None and not (args.yes or args.dry_run):
            default = f"{DATABASE_DIRECTORY}/senergy.db"
            question = f"Database (file, postgresql:// or mariadb:// URL) [{default}]:"
            database = dialogue.ask(question, "") or None
        if database:
            values["controller", "database"] = _without_password(database)
    has_alloc = None
    if role is not Role.CONTROLLER and not site.runs_prolog_at_allocation and not site.is_configless_client:
        running = running_settings(site)
        has_alloc = running.runs_prolog_at_allocation if running else None
    return PlanOptions(args.contain, args.config, values, has_alloc)


def _without_password(database: str) -> str:
    """Return the location of a database unchanged if it contains no password.

    Raises:
        UsageError: the location contains a password.
    """
    from slurm_energy.config.database_location import parse_database

    try:
        has_password = parse_database(database).password is not None
    except ValueError:
        return database  # the check of the whole configuration names the fault and the key
    if has_password:
        why = "contains a password, which `ps` and energy.toml would show to all users"
        todo = "write both keys to energy.toml first: controller.database and database_password_file"
        raise UsageError("--database", why, todo)
    return database


def _say_notes(plan: SetupPlan, site: SlurmSite, dialogue: TerminalDialogue) -> None:
    dialogue.say(f"cluster {site.cluster_name}, {site.conf}")
    for line in plan.notes:
        dialogue.say(f"  {line}")


def _show_plan(plan: SetupPlan, args: argparse.Namespace) -> int:
    changes = [*plan.own_changes, *plan.slurm_changes]
    if args.json:
        emit_json(_plan_document(plan))
        return EXIT_OK
    emit(f"  {line}" for line in plan.notes)
    from slurm_energy.cli.setup_dialogue import TerminalDialogue

    dialogue = TerminalDialogue(agree=True)
    for change in changes:
        dialogue.show_change(change)
    emit(["", *(f"would start {unit}" for unit in plan.services)])
    emit(f"by hand: {line}" for line in plan.by_hand)
    if not changes:
        emit(["no file would be changed"])
    return EXIT_OK


def _plan_document(plan: SetupPlan) -> dict[str, Any]:
    changes = [
        {"path": str(change.path), "reason": change.reason, "diff": change.diff()}
        for change in (*plan.own_changes, *plan.slurm_changes)
    ]
    return {
        "role": str(plan.role),
        "changes": changes,
        "services": plan.services,
        "notes": plan.notes,
        "by_hand": plan.by_hand,
    }


def _finish(args: argparse.Namespace, plan: SetupPlan, outcome: SetupOutcome, site: SlurmSite) -> int:
    code = outcome.exit_code
    if args.json:
        document = _plan_document(plan) | {
            "changed": outcome.changed,
            "by_hand": outcome.by_hand,
            "exit_code": code,
        }
        emit_json(document)
        return code
    if not outcome.changed and not outcome.by_hand:
        emit(["nothing to change: this host is set up"])
    for line in outcome.by_hand:
        note(f"to do: {line}")
    if plan.role == "controller" and not outcome.declined:
        emit(["next: senergy setup node on the compute nodes, senergy setup login on login nodes"])
    if not args.no_doctor:
        _doctor(args, site if plan.role == "node" else None)
    return code


def _doctor(args: argparse.Namespace, site: SlurmSite | None) -> None:
    """Print the reports of `senergy doctor`. Missing hardware is no failure of setup.

    Args:
        args: parsed options.
        site: the cluster, if the nodes of this host are to be checked with a measured job; None means that
            only this host is checked.
    """
    from slurm_energy.cli import doctor

    parser = argparse.ArgumentParser()
    doctor.configure(parser)
    config = ["--config", str(args.config)] if args.config else []
    calls, is_refused = [["--quiet"]], False
    if site is not None and site.node_names:
        # senergyd on a host with several nodes learns their names from the first jobs.
        wait = ["--wait"] if len(site.node_names) == 1 else []
        if is_refused := _controller_refuses(args.config):
            wait = []
        calls.append(["--cluster", "-w", ",".join(site.node_names), *wait])
    for call in calls:
        emit(["", f"senergy doctor {' '.join(call)}"])
        sys.stdout.flush()
        try:
            doctor.run(parser.parse_args([*call, *config]))
        except EnergyError as error:
            note(str(error))
    if is_refused:
        emit(["next: senergy setup controller on the host of slurmctld, then this command again"])


def _controller_refuses(config: Path | None) -> bool:
    """Return whether every address of senergyctld refuses connections, so that no senergyctld runs."""
    from slurm_energy.config.addresses import parse_url
    from slurm_energy.config.loader import load

    try:
        urls = load(config).cluster.controller_url
    except EnergyError:
        return False  # the report of doctor states the fault
    for url in urls:
        try:
            socket.create_connection(parse_url(url), _PROBE_TIMEOUT_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            return False
        return False
    return True


def _undo(args: argparse.Namespace, own: OwnFiles, dialogue: TerminalDialogue) -> int:
    from slurm_energy.setup.changes import settle
    from slurm_energy.setup.dialogue import SetupOutcome
    from slurm_energy.setup.journal import SetupJournal
    from slurm_energy.setup.services import UnitManager
    from slurm_energy.setup.undo import UndoRun

    journal = SetupJournal()
    if not journal.entries and not (args.dry_run and args.json):
        _print_undone(args, SetupOutcome())
        return EXIT_OK
    if args.dry_run:
        reversals = UndoRun(journal, own, dialogue, UnitManager()).preview()
        units = [one.path for one in journal.entries if one.action == "unit"]
        if args.json:
            emit_json(_undo_document(reversals, units))
            return EXIT_OK
        for reversal in reversals:
            dialogue.show_planned_reversal(reversal)
        emit(f"would stop {unit}" for unit in units)
        return EXIT_OK
    with journal.locked():
        for line in settle(journal):
            dialogue.say(line)
        outcome = UndoRun(journal, own, dialogue, UnitManager()).execute()
    _print_undone(args, outcome)
    return outcome.exit_code


def _undo_document(reversals: Sequence[FileReversal], units: Sequence[str]) -> dict[str, Any]:
    """Return what an undo would change, as a document for JSON.

    Args:
        reversals: planned reversals of files.
        units: units that undo would stop.
    """
    kept = [one for one in reversals if one.keep]
    made = [one for one in reversals if not one.keep]
    return {
        "changes": [{"path": str(one.file.path), "diff": one.diff()} for one in made],
        "services": list(units),
        "by_hand": [f"{one.file.path}: {one.remark}" for one in made if one.remark],
        "kept": [f"{one.file.path} {one.remark}" for one in kept if one.remark],
    }


def _print_undone(args: argparse.Namespace, outcome: SetupOutcome) -> None:
    if args.json:
        emit_json({"changed": outcome.changed, "by_hand": outcome.by_hand, "kept": outcome.kept})
        return
    if not outcome.changed and not outcome.by_hand:
        emit(["nothing to undo: setup changed nothing on this host"])
    emit(outcome.kept)
    for line in outcome.by_hand:
        note(f"to do: {line}")
