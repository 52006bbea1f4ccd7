"""Execution of the plan of `senergy setup`.

The plan changes files, starts systemd units and restarts the daemons of Slurm.
"""

from __future__ import annotations

import pwd
from typing import Final, NoReturn

from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EXIT_UNAVAILABLE, EnergyError, UnavailableError
from slurm_energy.setup import slurm_state
from slurm_energy.setup.changes import FileChange, carry_out, edit, make_directory
from slurm_energy.setup.daemon_options import daemon_options
from slurm_energy.setup.dialogue import Dialogue, SetupOutcome
from slurm_energy.setup.due_actions import CHECK_SLURMCTLD, RECONFIGURE, RESTART_SLURMCTLD, RESTART_SLURMD
from slurm_energy.setup.journal import SetupEntry, SetupJournal
from slurm_energy.setup.own_files import OwnFiles
from slurm_energy.setup.plan import DATABASE_DIRECTORY, Role, SetupPlan, service_user
from slurm_energy.setup.removal import plan_reversal, restore_file, reverse_file
from slurm_energy.setup.services import Execute, UnitManager, execute
from slurm_energy.setup.site import SlurmSite
from slurm_energy.setup.unit_files import POLICY_TIMER

_SETTLE_CHECKS: Final = 3


class SetupRun:
    """One execution of the plan of `senergy setup`.

    Args:
        plan: the plan to execute.
        site: the Slurm cluster of this host.
        own: installed files of slurm-energy.
        journal: journal of this host, locked.
        dialogue: interface for messages and questions to the administrator.
        units: access to systemd.
        run: function that executes a command.
    """

    def __init__(
        self,
        plan: SetupPlan,
        site: SlurmSite,
        own: OwnFiles,
        journal: SetupJournal,
        dialogue: Dialogue,
        units: UnitManager,
        run: Execute = execute,
    ) -> None:
        self._plan, self._site, self._own, self._journal = plan, site, own, journal
        self._dialogue, self._units, self._run = dialogue, units, run
        self.outcome = SetupOutcome(by_hand=list(plan.by_hand))

    def execute(self) -> SetupOutcome:
        """Carry out the plan.

        Raises:
            EnergyError: a step failed. Completed steps are not undone; the journal contains these steps.
        """
        self._make_own_files()
        for unit in self._plan.services:
            self._start(unit)
        self._change_slurm()
        self._restart_slurm()
        if self.outcome.by_hand and self.outcome.exit_code == EXIT_OK:
            self.outcome.exit_code = EXIT_FAILURE
        return self.outcome

    def _make_own_files(self) -> None:
        for change in self._plan.own_changes:
            self._dialogue.say(f"writing {change.path}: {change.reason}")
            make_directory(change.path.parent, 0o755, self._journal)
            carry_out(change, self._journal)
            self.outcome.changed.append(str(change.path))
        if "senergyctld.service" in self._plan.services:
            owner = pwd.getpwnam(service_user(self._site))
            directory = self._own.root / DATABASE_DIRECTORY.relative_to("/")
            make_directory(directory, 0o750, self._journal, (owner.pw_uid, owner.pw_gid), data=True)

    def _start(self, unit: str) -> None:
        """Enable and start a unit of slurm-energy. Restart the unit if its files were written."""
        name = unit.removesuffix(".service")
        if unit == POLICY_TIMER and not self._units.is_running:
            self._todo("systemd does not run here: run `senergy policies fetch` every 2 minutes", EXIT_OK)
            return
        if not self._units.is_running:
            program = self._own.program(name)
            self._todo(f"systemd does not run here: start {program} as a service", EXIT_UNAVAILABLE)
            return
        if self._plan.own_changes:
            self._units.call("daemon-reload")
        enabled, active = self._units.is_enabled(unit), self._units.is_active(unit)
        if enabled and active and not self._plan.own_changes:
            return
        known = any(entry.action == "unit" and entry.path == unit for entry in self._journal.entries)
        entry = SetupEntry(
            self._journal.next_number(), "unit", unit, facts={"enabled": enabled, "active": active}
        )
        if not known:
            self._journal.record(entry)
        self._dialogue.say(f"starting {unit}")
        self._units.call("enable", unit)
        self._units.call("restart" if active else "start", unit)
        if not known:
            self._journal.complete(entry)
        self.outcome.changed.append(unit)

    def _change_slurm(self) -> None:
        refused = False
        for planned in self._plan.slurm_changes:
            change = self._without_refused(planned) if refused else planned
            if change is None:
                continue
            self._dialogue.show_change(change)
            if not self._dialogue.confirm(f"Write {change.path}?"):
                self._todo(f"{change.path} was not changed: {change.reason}", EXIT_FAILURE)
                self.outcome.declined = True
                refused = refused or change.path == self._site.job_submit_script
                continue
            self._write_checked(change)
            self.outcome.changed.append(str(change.path))

    def _without_refused(self, change: FileChange) -> FileChange | None:
        """Return a change of slurm.conf without its edit of the key JobSubmitPlugins.

        The edit would activate job_submit.lua. It is left out because setup has not written job_submit.lua.
        If the change contains no other edit, None is returned.
        """
        hunks = tuple(hunk for hunk in change.hunks if hunk.key != "jobsubmitplugins")
        if len(hunks) == len(change.hunks):
            return change
        return edit(change.file, hunks, change.reason, change.kind) if hunks else None

    def _write_checked(self, change: FileChange) -> None:
        """Make a change of a file of Slurm. If Slurm then rejects its configuration, undo the change."""
        self._check_script(change)
        was_readable = not slurm_state.conf_fault(self._site)
        due = self._due(change)
        for action in due:
            self._journal.note_pending(action, due=True)
        restarts = any(RESTART_SLURMCTLD in self._due(one) for one in self._plan.slurm_changes)
        carry_out(change, self._journal, due, unconfirmed=restarts)
        if was_readable and (fault := slurm_state.conf_fault(self._site)):
            restore_file(self._journal.entries[-1], self._journal)
            raise UnavailableError(
                str(change.path), f"Slurm rejects the change, which was taken back: {fault}"
            )

    def _check_script(self, change: FileChange) -> None:
        """Raise an error if a change would make a correct Lua script incorrect."""
        if change.kind != "script" or slurm_state.lua_fault(change.file.data or b"", self._run):
            return
        if fault := slurm_state.lua_fault(change.data, self._run):
            raise UnavailableError(str(change.path), f"would have a syntax error: {fault}")

    def _due(self, change: FileChange) -> list[str]:
        """Return the actions, such as a restart, that Slurm needs after a change of one of Slurm's files."""
        if change.kind == "script":  # slurmctld reads the changed script by itself
            return []
        due = [RESTART_SLURMCTLD] if self._site.is_controller and change.kind == "slurm.conf" else []
        if self._plan.role is Role.NODE:
            due.append(RESTART_SLURMD)
        if self._site.is_controller and self._site.serves_configless:
            due.append(RECONFIGURE)
        return due

    def _restart_slurm(self) -> None:
        """Restart slurmctld, then slurmd.

        A daemon is restarted only if its files changed after it started.
        """
        if self._site.is_controller:
            self._restart_slurmctld()
        if self._plan.role is Role.NODE:
            self._restart_slurmd()
        if RECONFIGURE in self._journal.pending:
            self._reconfigure()

    def _restart_slurmctld(self) -> None:
        """Restart slurmctld if a restart is due.

        The restart stays due until slurmctld is known to run with the changed files. The changes may come
        from an earlier run of setup that was interrupted, or in which the administrator declined the restart.
        If that run restarted slurmctld with the changed files, and slurmctld has stopped since, the original
        files are restored.
        """
        if CHECK_SLURMCTLD in self._journal.pending and self._is_slurmctld_down():
            self._return_to_original_files()
        if RESTART_SLURMCTLD in self._journal.pending:
            failure = None
            try:
                restarted = self._restart("slurmctld", ["slurmctld.service"], RESTART_SLURMCTLD)
            except UnavailableError as error:
                # systemctl waits for the start of a unit of Type=notify or Type=forking.
                self._dialogue.say(str(error))
                restarted, failure = True, error
            if restarted and self._check_slurmctld(failure):
                self._journal.note_pending(RESTART_SLURMCTLD, due=False)
        if RESTART_SLURMCTLD not in self._journal.pending:
            self._journal.note_pending(CHECK_SLURMCTLD, due=False)
            self._journal.confirm()

    def _is_slurmctld_down(self) -> bool:
        """Return whether the unit of slurmctld is down and slurmctld does not run without a unit either."""
        if not self._units.is_running or not self._units.is_down("slurmctld.service"):
            return False
        return daemon_options("slurmctld", self._own.root).program is None

    def _check_slurmctld(self, failure: UnavailableError | None) -> bool:
        """Return whether slurmctld is known to run with the changed files.

        Args:
            failure: error of the restart; None if systemd reported none.

        Raises:
            UnavailableError: slurmctld does not run, and the original files were restored; or the restart
                failed although slurmctld runs, for example because the old process was not stopped.
        """
        answers = any(slurm_state.running_settings(self._site) for _ in range(_SETTLE_CHECKS))
        if self._units.is_down("slurmctld.service"):
            self._return_to_original_files()
        if failure:
            raise failure
        if not self._units.has_started("slurmctld.service"):
            todo = "slurmctld has not started yet: journalctl -u slurmctld, then run this again"
            self._todo(todo, EXIT_UNAVAILABLE)
            return False
        if not answers:
            todo = "slurmctld runs, but does not answer: scontrol ping, then run this again"
            self._todo(todo, EXIT_UNAVAILABLE)
        return answers

    def _return_to_original_files(self) -> NoReturn:
        """Undo the changes with which slurmctld does not start, restart slurmctld, and raise an error."""
        restored, kept = self._restore_unconfirmed()
        why, todo = "did not start", "journalctl -u slurmctld"
        if restored:
            why += f" with the changed files; restored: {', '.join(restored)}"
        if kept:
            why += f"; not restored, because the site changed or deleted files since: {', '.join(kept)}"
            todo += "; senergy setup undo removes the lines of setup"
        if restored:
            try:
                self._units.call("restart", "slurmctld.service")
            except UnavailableError:
                why += "; does not start with the restored files either"
            self._journal.note_pending(RESTART_SLURMCTLD, due=bool(kept))
        self._journal.note_pending(CHECK_SLURMCTLD, due=bool(kept))
        raise UnavailableError("slurmctld", why, todo)

    def _restore_unconfirmed(self) -> tuple[list[str], list[str]]:
        """Undo the changes with which slurmctld does not start, the last change first.

        A file that the site has changed since is kept. job_submit.lua is then kept too, because slurm.conf
        may still name it.

        Returns:
            The paths of the restored files and of the kept files.
        """
        restored, kept = list[str](), list[str]()
        for entry in reversed(self._journal.unconfirmed):
            reversal = plan_reversal(entry, self._journal)
            is_original = reversal.file.digest == entry.before
            if (reversal.remark and not is_original) or (kept and entry.facts["kind"] == "script"):
                kept.append(entry.path)
            else:
                reverse_file(reversal, self._journal)
                restored.append(entry.path)
        return list(dict.fromkeys(restored)), kept

    def _restart_slurmd(self) -> None:
        units = self._units.active_units("slurmd.service") + self._units.active_units("slurmd@*.service")
        plugins = [self._own.library / name for name in ("energy.so", "energy_hooks.so")]
        lines = list((self._own.library / "plugstack.d").glob("*.conf"))
        files = [self._site.plugstack, *plugins, *lines]
        stale = [unit for unit in units if slurm_state.started_before(self._units.main_pid(unit), files)]
        pending = RESTART_SLURMD in self._journal.pending
        if (pending or stale) and self._must_wait_for_slurmctld():
            self._todo(
                "slurmctld does not use PrologFlags of slurm.conf yet: restart it, then run this again", 1
            )
            return
        if (pending or stale or not self._units.is_running) and self._restart(
            "slurmd", units if pending else stale, RESTART_SLURMD
        ):
            self._journal.note_pending(RESTART_SLURMD, due=False)

    def _must_wait_for_slurmctld(self) -> bool:
        """Return whether setup must restart slurmctld before slurmd.

        This is necessary if the new slurm.conf runs the prolog at allocation, but the running slurmctld does
        not know this setting yet. A restarted slurmd would then wait at each job for a message that this
        slurmctld does not send.
        """
        if not slurm_state.runs_prolog_at_allocation(self._site.conf):
            return False
        running = slurm_state.running_settings(self._site)
        return running is not None and not running.runs_prolog_at_allocation

    def _restart(self, name: str, units: list[str], action: str) -> bool:
        """Restart the units of a daemon of Slurm if the administrator agrees.

        Return whether the units were restarted.

        Args:
            name: `slurmctld` or `slurmd`.
            units: units of the daemon.
            action: pending action in the journal. This function removes it if the units are not active. After
                a restart, the caller removes it.
        """
        if not self._units.is_running:
            self._todo(f"systemd does not run here: restart {name}", EXIT_UNAVAILABLE)
            return False
        if not units or not all(self._units.is_active(unit) for unit in units):
            if daemon_options(name, self._own.root).program:
                self._todo(f"restart {name}, which runs without a unit of systemd", EXIT_UNAVAILABLE)
            else:
                self._dialogue.say(f"{name} is not running; it reads the files when it starts")
            self._journal.note_pending(action, due=False)
            return False
        listed = " ".join(units)
        if not self._dialogue.confirm(f"Restart {listed}? (running jobs continue)"):
            self._todo(f"restart {listed}; until then the changes have no effect", EXIT_FAILURE)
            return False
        self._dialogue.say(f"restarting {listed}")
        if action == RESTART_SLURMCTLD:
            self._journal.note_pending(CHECK_SLURMCTLD, due=True)
        self._units.call("restart", *units)
        self.outcome.changed.append(f"restarted {listed}")
        return True

    def _reconfigure(self) -> None:
        """Make slurmctld send the changed files to configless nodes."""
        argv = [
            "env",
            f"SLURM_CONF={self._site.conf}",
            slurm_state.program(self._site, "scontrol"),
            "reconfigure",
        ]
        try:
            result = self._run(argv)
        except EnergyError as error:
            self._todo(f"scontrol reconfigure: {error}", EXIT_UNAVAILABLE)
            return
        if result.status:
            self._todo("run `scontrol reconfigure`, so that nodes get the changed files", EXIT_UNAVAILABLE)
            return
        self._journal.note_pending(RECONFIGURE, due=False)

    def _todo(self, line: str, code: int) -> None:
        self.outcome.by_hand.append(line)
        self.outcome.exit_code = max(self.outcome.exit_code, code)
