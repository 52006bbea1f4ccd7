"""Execution of `senergy setup undo`.

The command reverts the changes of `senergy setup` in this order: Slurm's configuration files, then the
daemons (systemd units), then the files that setup created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from slurm_energy.errors import EXIT_FAILURE, EXIT_UNAVAILABLE, EnergyError, UnavailableError
from slurm_energy.setup import slurm_state
from slurm_energy.setup.daemon_options import daemon_options
from slurm_energy.setup.dialogue import Dialogue, SetupOutcome
from slurm_energy.setup.due_actions import CHECK_SLURMCTLD, RECONFIGURE, RESTART_SLURMCTLD, RESTART_SLURMD
from slurm_energy.setup.journal import SetupEntry, SetupJournal
from slurm_energy.setup.own_files import OwnFiles
from slurm_energy.setup.removal import FileReversal, plan_reversal, remove_directory, reverse_file
from slurm_energy.setup.services import Execute, UnitManager, execute
from slurm_energy.setup.site_file import SiteFile

_SLURM_KINDS: Final = ("slurm.conf", "plugstack")


class UndoRun:
    """One execution of undo.

    Args:
        journal: journal of this host, locked.
        own: installed files of slurm-energy.
        dialogue: interface for messages and questions to the administrator.
        units: access to systemd.
        run: function that executes a command.
    """

    def __init__(
        self,
        journal: SetupJournal,
        own: OwnFiles,
        dialogue: Dialogue,
        units: UnitManager,
        run: Execute = execute,
    ) -> None:
        self._journal, self._own, self._dialogue = journal, own, dialogue
        self._units, self._run = units, run
        self.outcome = SetupOutcome()

    def reversals(self, *kinds: str) -> Iterator[FileReversal]:
        """Yield the reversals of the changes to files of the given kinds. The last change comes first.

        Each reversal is planned only when the iterator reaches it, because an earlier reversal may have
        changed the same file.
        """
        entries = [one for one in self._journal.entries if one.action == "file"]
        for entry in reversed(entries):
            if entry.facts.get("kind", "own") in kinds:
                yield self._planned(entry)

    def preview(self) -> list[FileReversal]:
        """Return what an undo of the setup would change, without changing anything.

        There is one reversal per file, which undoes all changes of the file at once.
        """
        combined: dict[str, FileReversal] = {}
        for entry in reversed(self._journal.entries):
            if entry.action != "file":
                continue
            last = combined.get(entry.path)
            if last is None:
                combined[entry.path] = self._planned(entry)
            elif last.data is not None:
                one = self._planned(entry, replace(last.file, data=last.data))
                remark = one.remark or last.remark
                keep = one.keep and last.keep
                combined[entry.path] = replace(one, file=last.file, remark=remark, keep=keep)
        order = {kind: number for number, kind in enumerate((*_SLURM_KINDS, "script", "own"))}
        return sorted(combined.values(), key=lambda one: order[one.entry.facts.get("kind", "own")])

    def execute(self) -> SetupOutcome:
        """Undo every change in the journal.

        Raises:
            EnergyError: a step failed. The journal contains the changes that are not undone yet.
        """
        for reversal in self.reversals(*_SLURM_KINDS):
            for action in reversal.entry.facts.get("due", []):
                self._journal.note_pending(action, due=True)
            if RESTART_SLURMCTLD in reversal.entry.facts.get("due", []):
                self._journal.note_pending(RECONFIGURE, due=True)
            self._reverse(reversal)
        if any(one.action == "unit" and one.path == "senergyd.service" for one in self._journal.entries):
            self._journal.note_pending(RESTART_SLURMD, due=True)
        self._restart_slurm()
        for reversal in self.reversals("script"):
            self._reverse_script(reversal)
        for entry in [one for one in reversed(self._journal.entries) if one.action == "unit"]:
            self._stop(entry)
        for reversal in self.reversals("own"):
            self._reverse(reversal)
        self._remove_directories()
        if self._units.is_running:
            self._units.call("daemon-reload")
        if not self._journal.entries and not self._journal.pending:
            self._journal.delete()
        return self.outcome

    def _planned(self, entry: SetupEntry, file: SiteFile | None = None) -> FileReversal:
        """Return the change that restores a file which setup has changed.

        The key JobSubmitPlugins in slurm.conf is not removed if the job_submit.lua of setup is kept.
        """
        if entry.facts.get("kind") == "slurm.conf" and self._script_stays():
            hunks = tuple(hunk for hunk in entry.hunks if hunk.key != "jobsubmitplugins")
            if len(hunks) < len(entry.hunks):
                reversal = plan_reversal(replace(entry, hunks=hunks, after=""), self._journal, file)
                remark = "JobSubmitPlugins=lua stays, because the site changed job_submit.lua"
                return replace(reversal, entry=entry, remark=remark)
        return plan_reversal(entry, self._journal, file)

    def _script_stays(self) -> bool:
        scripts = [
            one for one in self._journal.entries if one.facts.get("kind") == "script" and not one.before
        ]
        return any(
            reversal.keep and reversal.file.data is not None
            for reversal in (plan_reversal(entry, self._journal) for entry in scripts)
        )

    def _reverse(self, reversal: FileReversal) -> None:
        path = reversal.file.path
        if not reversal.keep:
            self._dialogue.show_reversal(reversal)
            if not self._dialogue.confirm(f"Restore {path}?"):
                self._todo(f"{path} was not restored", EXIT_FAILURE)
                return
        if reversal.keep and reversal.remark:
            self.outcome.kept.append(f"{path} {reversal.remark}")
        elif reversal.remark:
            self._todo(f"{path}: {reversal.remark}", EXIT_FAILURE)
        reverse_file(reversal, self._journal)
        self.outcome.changed.append(str(path))

    def _reverse_script(self, reversal: FileReversal) -> None:
        """Undo a change of job_submit.lua. Keep a script that slurm.conf still names.

        slurmctld does not start without a script that JobSubmitPlugins names.
        """
        path = reversal.file.path
        if reversal.data is None and reversal.file.data is not None and self._is_used(path):
            todo = f"{path} stays: remove lua from JobSubmitPlugins in slurm.conf, then run this again"
            self._todo(todo, EXIT_FAILURE)
            return
        self._reverse(reversal)

    def _is_used(self, script: Path) -> bool:
        """Return whether the current slurm.conf makes slurmctld run job_submit.lua.

        slurmctld expects the script in the directory of slurm.conf.
        """
        conf = daemon_options("slurmctld", self._own.root).conf
        if conf is None or conf.parent != script.parent:
            conf = script.with_name("slurm.conf")
        return slurm_state.uses_job_submit_lua(conf)

    def _restart_slurm(self) -> None:
        """Restart Slurm's daemons, slurmd before slurmctld, where the undo of setup requires it.

        The order matters for the option PrologFlags=Alloc. A slurmd that still has this option waits at each
        job for a message, which a slurmctld without the option does not send.
        """
        actions = {
            RESTART_SLURMD: self._units.active_units("slurmd.service")
            + self._units.active_units("slurmd@*.service"),
            RESTART_SLURMCTLD: ["slurmctld.service"],
        }
        self._journal.note_pending(CHECK_SLURMCTLD, due=False)
        for action, units in actions.items():
            if action not in self._journal.pending:
                continue
            name = action.split()[-1]
            if not self._units.is_running:
                self._todo(f"systemd does not run here: restart {name}", EXIT_UNAVAILABLE)
            elif units and all(self._units.is_active(unit) for unit in units):
                if not self._dialogue.confirm(f"Restart {' '.join(units)}? (running jobs continue)"):
                    self._todo(f"restart {' '.join(units)}", EXIT_FAILURE)
                    continue
                self._dialogue.say(f"restarting {' '.join(units)}")
                self._units.call("restart", *units)
            elif daemon_options(name, self._own.root).program:
                self._todo(f"restart {name}, which runs without a unit of systemd", EXIT_UNAVAILABLE)
            self._journal.note_pending(action, due=False)
        if RECONFIGURE in self._journal.pending:
            self._reconfigure()

    def _reconfigure(self) -> None:
        """Make the nodes read the restored files.

        Otherwise a slurmd could still use PrologFlags=Alloc although slurmctld no longer uses this flag.
        """
        try:
            failed = self._run(["scontrol", "reconfigure"]).status != 0
        except EnergyError:
            failed = True
        if failed:
            self._todo("run `scontrol reconfigure`, so that nodes read the restored files", EXIT_UNAVAILABLE)
        self._journal.note_pending(RECONFIGURE, due=False)

    def _stop(self, entry: SetupEntry) -> None:
        """Stop and disable a unit that setup enabled.

        On a node, also restore the original settings of the hardware.
        """
        unit = entry.path
        name = unit.removesuffix(".service")
        if self._units.is_running:
            self._dialogue.say(f"stopping {unit}")
            if not entry.facts.get("enabled"):
                self._units.call("disable", unit)
            if not entry.facts.get("active"):
                self._units.call("stop", unit)
        else:
            self._todo(f"systemd does not run here: stop {name}", EXIT_UNAVAILABLE)
        if name == "senergyd" and not entry.facts.get("active"):
            self._restore_settings()
        if self._units.is_running and not entry.facts.get("active"):
            # The runtime directory of a timer is that of its service.
            service = unit.replace(".timer", ".service")
            self._run(["systemctl", "clean", "--what=runtime", service])
        self._journal.remove(entry)
        self.outcome.changed.append(unit)

    def _restore_settings(self) -> None:
        try:
            program = self._own.program("senergyd")
        except UnavailableError as error:
            self._todo(f"hardware settings were not restored: {error}", EXIT_UNAVAILABLE)
            return
        try:
            result = self._run([str(program), "--restore"])
        except EnergyError as error:
            self._todo(f"hardware settings: {error}", EXIT_UNAVAILABLE)
            return
        for line in result.output.splitlines():
            self._dialogue.say(f"senergyd: {line}")
        if result.status:
            self._todo(f"senergyd --restore failed with exit code {result.status}", EXIT_FAILURE)

    def _remove_directories(self) -> None:
        for entry in [one for one in reversed(self._journal.entries) if one.action == "directory"]:
            if not remove_directory(entry, self._journal) and entry.facts.get("data"):
                self.outcome.kept.append(f"{entry.path} with the database stays")
        states = [Path("var/lib/senergyctld"), Path("var/lib/senergy")]
        for path in (self._own.root / one for one in states):
            if path.exists() and not any(line.startswith(f"{path} ") for line in self.outcome.kept):
                self.outcome.kept.append(
                    f"{path} with its records stays; delete it if you no longer need them"
                )

    def _todo(self, line: str, code: int) -> None:
        self.outcome.by_hand.append(line)
        self.outcome.exit_code = max(self.outcome.exit_code, code)
