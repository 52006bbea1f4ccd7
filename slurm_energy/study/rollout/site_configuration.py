"""Changes of the site's energy.toml during a deployment, and their undo.

A journal of the changed keys serves to undo the changes. The journal and the backups are in the directory of
the study. The journal contains the changes of one stage only. A new stage first undoes the previous stage,
so that changes of several stages never add up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.config.findings import errors, require_valid
from slurm_energy.config.loader import parse_source
from slurm_energy.errors import ConfigError, UnavailableError, UsageError
from slurm_energy.setup.changes import diff, settle
from slurm_energy.setup.journal import SetupEntry, SetupJournal
from slurm_energy.setup.site_file import SiteFile, read_site_file, sha256, write_site_file
from slurm_energy.study.rollout.key_change import KeyChange, changed_text, undone_text
from slurm_energy.validation.checker import check_file

REMARK: Final = "set by senergy study"
"""Comment after each line that a deployment writes."""


@dataclass(frozen=True, slots=True)
class ConfigurationStep:
    """A planned change of one configuration file, as needed for the next stage of a deployment.

    Attributes:
        present: present contents of the file.
        own: contents without changes by the study; None means that the site had no file.
        data: contents in the new stage; None means that the file is deleted.
        remarks: remarks about keys of the previous stage that the site has changed in the meantime. These
            keys keep their values.
    """

    present: SiteFile
    own: bytes | None
    data: bytes | None
    remarks: tuple[str, ...] = ()

    @property
    def changes_file(self) -> bool:
        """Whether the contents of the file change."""
        return self.data != self.present.data

    def diff(self) -> list[str]:
        """Return the difference between the site's present configuration and the one of the new stage.

        The stage is a stage of a deployment. The result is a unified diff of the file.
        """
        return diff(self.present.data, self.data, self.present.path) if self.changes_file else []


class SiteConfiguration:
    """The site's configuration file energy.toml, which a study changes and restores.

    A journal lists the changes that the study has made to the file.

    Args:
        path: energy.toml of the site.
        journal: directory of the journal.
    """

    def __init__(self, path: Path, journal: Path) -> None:
        self._path = path
        self._journal = SetupJournal(journal)

    @property
    def is_changed(self) -> bool:
        """Whether changes that the study made to the site's configuration are in force."""
        return bool(self._journal.entries)

    def plan(self, changes: Sequence[KeyChange]) -> ConfigurationStep:
        """Return the planned change of the configuration file.

        The result starts from the site's own configuration, without the changes of earlier stages of the
        deployment. The given changes are added.

        Args:
            changes: changes of keys; an empty value restores the site's own configuration.

        Raises:
            ConfigError: a change is impossible, or the configuration would be invalid.
            UsageError: the study has changed another file, whose changes must be undone first.
            EnergyError: the file cannot be read.
        """
        present = read_site_file(self._path)
        self._require_own_file()
        own, remarks = present.data, list[str]()
        for entry in reversed(self._journal.entries):
            own, lost = self._taken_back(entry, own)
            remarks += lost
        data = own
        if changes:
            before = _decoded(own, self._path)
            text = changed_text(before, changes, REMARK)
            _check(text, before, self._path)
            data = text.encode()
        return ConfigurationStep(present, own, data, tuple(remarks))

    def carry_out(self, changes: Sequence[KeyChange]) -> tuple[str, ...]:
        """Write the configuration file of the site with changed keys, for a stage of a deployment.

        The changes apply to the site's own configuration, without the changes of earlier stages. A repeated
        call with the same changes has no effect. If a call was interrupted, a repeated call completes the
        change.

        Args:
            changes: changes of keys; an empty value means that the site's own configuration is restored.

        Returns:
            Remarks about keys that the site has changed since the study last changed them. These keys keep
            their values.

        Raises:
            EnergyError: the file cannot be written, or the change is impossible. In these cases nothing is
                changed.
        """
        with self._journal.locked():
            settle(self._journal)
            step = self.plan(changes)
            if not step.changes_file and self.is_changed == (step.data != step.own):
                return ()
            if self.is_changed:
                self._write(step.present, step.own)
                for entry in list(self._journal.entries):
                    self._journal.remove(entry)
            if step.data is not None and step.data != step.own:
                self._write_journaled(read_site_file(self._path), step.data, changes)
            return step.remarks

    def restore(self) -> tuple[str, ...]:
        """Undo all changes that the study made to the site's configuration.

        Return remarks for the administrator, as `carry_out` does.
        """
        return self.carry_out(())

    def _require_own_file(self) -> None:
        """Refuse to change the file while changes of the study are in force in another file.

        The journal entries of the other file would be removed, so that no undo could restore that file.
        """
        for entry in self._journal.entries:
            if os.path.realpath(entry.path) != os.path.realpath(self._path):
                why = f"is not the file that the study has changed, {entry.path}"
                raise UsageError(str(self._path), why, "name that file, or undo the deployment first")

    def _taken_back(self, entry: SetupEntry, data: bytes | None) -> tuple[bytes | None, list[str]]:
        """Return the contents of a file after undoing the changes of one journal entry, and remarks.

        Changes that the site has made since then stay. A remark names each key that the site has changed.
        """
        digest = "" if data is None else sha256(data)
        if digest == entry.before:
            return data, []
        backup = self._journal.read_backup(entry) if entry.before else None
        if digest == entry.after:
            return backup, []
        if data is None:
            return None, [f"{entry.path} was deleted meanwhile"]
        changes = [_change_of(one) for one in entry.facts["keys"]]
        text, lost = undone_text(_decoded(data, self._path), changes, _decoded(backup, self._path), REMARK)
        remarks = [f"{self._path}: the site has changed {'.'.join(one.path)}, which stays" for one in lost]
        return text.encode(), remarks

    def _write_journaled(self, file: SiteFile, data: bytes, changes: Sequence[KeyChange]) -> None:
        number = self._journal.next_number()
        entry = SetupEntry(
            number,
            "file",
            str(file.path),
            backup="" if file.data is None else f"{number:04d}-{file.path.name}",
            before=file.digest,
            after=sha256(data),
            mode=file.mode,
            uid=file.uid,
            gid=file.gid,
            facts={"kind": "study", "keys": [_document(change) for change in changes]},
        )
        if file.data is not None:
            self._journal.save_backup(entry.backup, file.data)
        self._journal.record(entry)
        self._write(file, data)
        self._journal.complete(entry)

    def _write(self, file: SiteFile, data: bytes | None) -> None:
        """Replace the site's configuration file, or delete it if the new contents are None.

        A file that already has the new contents is left alone.
        """
        if read_site_file(self._path).digest != file.digest:
            raise UnavailableError(str(file.path), "changed meanwhile", "run the command again")
        if data is None:
            atomic_file.remove(file.path)
            atomic_file.sync_directory(file.path.parent)
        elif data != file.data:
            write_site_file(file.path, data, file.mode, file.uid, file.gid)


def check_combination(step: ConfigurationStep, folder: Path) -> None:
    """Check a planned configuration file with all checks of `senergy config check`.

    Only errors that the present file does not have lead to an InvalidConfigError.

    Args:
        step: planned change of the configuration file.
        folder: directory for temporary copies of the present and the planned file.

    Raises:
        InvalidConfigError: the planned file has new errors, such as a policy that does not exist.
    """
    faults = []
    for name, data in (("own", step.own), ("planned", step.data)):
        path = folder / f"{name}.toml"
        atomic_file.write(path, data or b"")
        try:
            faults.append({(one.key, one.why): one for one in check_file(path).errors})
        finally:
            atomic_file.remove(path)
    own, planned = faults
    require_valid(
        [replace(one, file=str(step.present.path)) for key, one in planned.items() if key not in own]
    )


def _document(change: KeyChange) -> dict[str, Any]:
    return {"path": list(change.path), "value": change.value, "is_list_table": change.is_list_table}


def _change_of(document: dict[str, Any]) -> KeyChange:
    return KeyChange(tuple(document["path"]), document["value"], document["is_list_table"])


def _decoded(data: bytes | None, path: Path) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        raise ConfigError(str(path), "is not UTF-8", "senergy config check") from None


def _check(text: str, before: str, path: Path) -> None:
    """Refuse a changed configuration if it has an error.

    Errors that the site's configuration already had before the change are ignored.
    """
    known = {(finding.key, finding.why) for finding in errors(parse_source(before, path).findings)}
    found = parse_source(text, path).findings
    require_valid([one for one in found if (one.key, one.why) not in known])
