"""Journal of the hardware settings that jobs have changed, from which they can be restored.

For every changed knob (file or call that sets a value), the journal contains the original value, the values
that jobs request (claims), the ceiling and the current value. The journal is on disk before the first write
to the hardware, and is replaced atomically. Its file exists only while settings are changed. The module
stores keys and values and does not access hardware.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.known_fields import build_from, check_version

_VERSION = 3
_MAX_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """State of one hardware setting (knob) in the agent's settings journal.

    An entry exists if the agent changes the knob, or if the knob changes as a side effect of another
    knob.

    Attributes:
        key: key of the knob.
        original: value of the knob before the agent first changed the knob.
        claims: value that each job requests (its claim), by job as `JOBID.RESTART`. None for a job that
            requests no value of this knob, but of another knob with this knob as a side effect.
        target: value that the last write was to set. It follows from the claims and the ceiling. None in
            two cases: neither claims nor ceiling require a value, or the write failed and has to be
            repeated.
        written: value read back after the last write; None while a write or a restore is in progress.
        ceiling: upper bound that a power budget sets on the value, whatever the jobs claim; None if there
            is no ceiling.
    """

    key: str
    original: str
    claims: Mapping[str, str | None] = field(default_factory=dict)
    target: str | None = None
    written: str | None = None
    ceiling: str | None = None

    @property
    def is_unfulfilled(self) -> bool:
        """Whether the knob should have a value that could not be written, so that the write is repeated.

        The value is required by the requests of jobs (claims) or by the ceiling of a power budget.
        """
        is_required = self.ceiling is not None or any(value is not None for value in self.claims.values())
        return self.target is None and is_required

    @property
    def is_orphaned(self) -> bool:
        """Whether nothing needs this entry any more, so that the original value must be restored.

        This is the case if no job requests a value for the setting, and no power budget limits it (ceiling).
        """
        return not self.claims and self.ceiling is None

    # These methods avoid dataclasses.replace, which is slow: a job on a large node has hundreds of entries,
    # and its prolog waits for them.

    def with_claim(self, owner: str, value: str | None) -> JournalEntry:
        """Return a copy of this journal entry in which the job `owner` requests `value` for the knob.

        A knob is a hardware setting. A value of None means that another setting of the job may change the
        knob as a side effect.
        """
        claims = {**self.claims, owner: value}
        return JournalEntry(self.key, self.original, claims, self.target, self.written, self.ceiling)

    def without_claim(self, owner: str) -> JournalEntry:
        """Return a copy of this journal entry without the request of one job.

        A journal entry contains the original value of a hardware setting and the values that jobs request for
        it.

        Args:
            owner: the job whose requested value is left out.
        """
        claims = {other: value for other, value in self.claims.items() if other != owner}
        return JournalEntry(self.key, self.original, claims, self.target, self.written, self.ceiling)

    def without_claims(self) -> JournalEntry:
        """Return a copy of this journal entry without any claims.

        The entry describes a hardware setting (knob). A claim is the value that a job requests for the
        setting.
        """
        return JournalEntry(self.key, self.original, {}, self.target, self.written, self.ceiling)

    def with_ceiling(self, ceiling: str | None) -> JournalEntry:
        """Return a copy of this entry with another ceiling (upper bound that a power budget sets).

        None removes the ceiling.
        """
        return JournalEntry(self.key, self.original, self.claims, self.target, self.written, ceiling)

    def with_target(self, target: str | None) -> JournalEntry:
        """Return a copy of this entry with the value `target` to write.

        The copy is marked as a write in progress.
        """
        return JournalEntry(self.key, self.original, self.claims, target, None, self.ceiling)

    def with_written(self, written: str | None) -> JournalEntry:
        """Return a copy of this journal entry with another value of `written`.

        `written` is the value that was read back after the write. None means that a write is in progress.
        """
        return JournalEntry(self.key, self.original, self.claims, self.target, written, self.ceiling)


class SettingsJournal:
    """The journal of the original values of settings, and the file that holds it.

    The original value in an entry is never replaced while the entry exists.

    Attributes:
        path: the file.
        entries: entries by key of the setting (knob).
        load_error: reason why `load` could not use the file; empty if the file was usable.
        write_error: reason why the file lacks the last changes, see `update_or_defer`; empty if the file is
            up to date.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, JournalEntry] = {}
        self.load_error = ""
        self.write_error = ""
        self._damaged: Path | None = None  # name that the damaged file still has to get

    @classmethod
    def load(cls, path: Path) -> SettingsJournal:
        """Read the journal of hardware settings from its file.

        The journal contains the original values of settings that the agent has changed. A damaged file is
        renamed, unless the file system is read-only. The result is then an empty journal whose `load_error`
        states the reason.

        Raises:
            OSError: the file exists and cannot be read.
            NewerStateError: a newer release wrote the file. The file stays unchanged, because it holds
                original values.
        """
        journal = cls(path)
        try:
            data = json.loads(atomic_file.read(path, _MAX_BYTES))
            check_version(str(path), data["version"], _VERSION)
            read = _READERS[data["version"]]
            entries = [read(item) for item in data["entries"]]
        except FileNotFoundError:
            return journal
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            journal._damaged = path.with_name(path.name + ".damaged")
            with atomic_file.tolerating_read_only():
                journal._keep_damaged_file()
            kept = path.name if journal._damaged else f"{path.name}.damaged"
            journal.load_error = f"{path}: not a settings journal ({error}); kept as {kept}"
            return journal
        journal.entries = {entry.key: entry for entry in entries}
        return journal

    def update(
        self, changed: Iterable[JournalEntry], deleted: Iterable[str] = (), *, sync: bool = True
    ) -> None:
        """Replace and delete entries, and write the journal to disk before returning.

        Nothing is written if no entry changes. An entry that exists already keeps its original value.

        Args:
            changed: new entries, and entries that replace present entries with the same key.
            deleted: keys of the entries to delete.
            sync: whether the file must survive a power failure. It must survive if an entry has a new
                original value. It need not survive for other changes, because a reboot resets power limits.

        Raises:
            OSError: the file cannot be written. The journal is unchanged, and the caller must not write to
                the hardware.
        """
        new = self._updated(changed, deleted)
        if new != self.entries or self.write_error:
            self._save(new, sync=sync)

    def update_or_defer(self, changed: Iterable[JournalEntry], deleted: Iterable[str] = ()) -> None:
        """Replace and delete entries of the journal, and write the journal to its file.

        If the file cannot be written, a later update writes it. Before a caller deletes the entry of a
        setting (knob), the caller must ensure that the hardware holds the original value of this setting.
        """
        new = self._updated(changed, deleted)
        try:
            if new != self.entries or self.write_error:
                self._save(new)
        except OSError as error:
            self.entries, self.write_error = new, error.strerror or str(error)

    def _updated(self, changed: Iterable[JournalEntry], deleted: Iterable[str]) -> dict[str, JournalEntry]:
        new = dict(self.entries)
        for entry in changed:
            existing = self.entries.get(entry.key)
            if existing is not None and existing.original != entry.original:
                entry = dataclasses.replace(entry, original=existing.original)
            new[entry.key] = entry
        for key in deleted:
            new.pop(key, None)
        return new

    def entries_of(self, owner: str | None = None, keys: Iterable[str] | None = None) -> list[JournalEntry]:
        """Return the entries of the journal that match the given conditions.

        Each entry belongs to one hardware setting (knob).

        Args:
            owner: return only entries of knobs for which this job requests a value; None for all.
            keys: return only entries of these knobs; None for all.
        """
        selected = None if keys is None else set(keys)
        return [
            entry
            for entry in self.entries.values()
            if (owner is None or owner in entry.claims) and (selected is None or entry.key in selected)
        ]

    def owners(self) -> set[str]:
        """Return the jobs (`JOBID.RESTART`) whose requested values are in the journal."""
        return {owner for entry in self.entries.values() for owner in entry.claims}

    def _keep_damaged_file(self) -> None:
        """Rename the damaged file. On a read-only file system, the next change of the journal tries again."""
        if self._damaged is not None:
            self.path.replace(self._damaged)
            self._damaged = None

    def _save(self, entries: dict[str, JournalEntry], *, sync: bool = True) -> None:
        self._keep_damaged_file()
        if entries:
            # asdict is avoided: its deep copies cost more than writing hundreds of entries.
            items = [
                {name: getattr(entry, name) for name in JournalEntry.__slots__} for entry in entries.values()
            ]
            data = {"version": _VERSION, "entries": items}
            atomic_file.write(self.path, json.dumps(data).encode(), sync=sync)
        else:
            self.path.unlink(missing_ok=True)
            atomic_file.sync_directory(self.path.parent)
        self.entries, self.write_error = entries, ""


def _entry(item: dict[str, Any]) -> JournalEntry:
    entry = build_from(JournalEntry, item)
    claims = [text for claim in entry.claims.items() for text in claim]
    texts = [text for text in (*claims, entry.target, entry.written, entry.ceiling) if text is not None]
    if not all(isinstance(text, str) for text in (entry.key, entry.original, *texts)):
        raise TypeError("an entry holds a value that is not text")
    return entry


def _entry_of_one_owner(item: dict[str, Any]) -> JournalEntry:
    """Convert a journal entry of format version 1 to the current format.

    In version 1 a setting (knob) belonged to one job only.
    """
    claims = {item["owner"]: item["asked"]}
    return _entry(
        {
            "key": item["key"],
            "original": item["original"],
            "claims": claims,
            "target": item["asked"],
            "written": item["written"],
        }
    )


_READERS = {1: _entry_of_one_owner, 2: _entry, _VERSION: _entry}
