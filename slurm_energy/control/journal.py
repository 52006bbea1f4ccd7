"""The settings journal: what every knob held before us, who wants what, and what is in force.

On disk before the first write, replaced atomically; the file exists only while something is set. It knows
keys and values, not hardware.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file

_VERSION = 2
_MAX_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One knob that we changed, are about to change, or that changes along with one.

    Attributes:
        key: the knob.
        original: value before us.
        claims: value that each job (`JOBID.RESTART`) asks for; None where the hardware may change the knob
            when another knob of that job is written.
        target: value that the claims came to when it was last written; None if nothing is asked of the knob
            itself, or if writing it failed and has to be tried again.
        written: value that we left in force; None while writing or restoring is under way.
    """

    key: str
    original: str
    claims: Mapping[str, str | None] = field(default_factory=dict)
    target: str | None = None
    written: str | None = None

    @property
    def is_unfulfilled(self) -> bool:
        """Whether something is asked for that could not be written and has to be tried again."""
        return self.target is None and any(value is not None for value in self.claims.values())

    # Not dataclasses.replace: a job on a large node has hundreds of entries, and its prolog waits.

    def with_claim(self, owner: str, value: str | None) -> JournalEntry:
        """Return the entry with what a job asks for."""
        return JournalEntry(self.key, self.original, {**self.claims, owner: value}, self.target, self.written)

    def without_claim(self, owner: str) -> JournalEntry:
        """Return the entry after a job has given up what it asked for."""
        claims = {other: value for other, value in self.claims.items() if other != owner}
        return JournalEntry(self.key, self.original, claims, self.target, self.written)

    def with_target(self, target: str | None) -> JournalEntry:
        """Return the entry with what the claims come to, while it is being written."""
        return JournalEntry(self.key, self.original, self.claims, target, None)

    def settled(self, written: str | None) -> JournalEntry:
        """Return the entry with what is in force."""
        return JournalEntry(self.key, self.original, self.claims, self.target, written)


class SettingsJournal:
    """Entries by key, and their file. An original is never replaced while its entry exists.

    Attributes:
        path: the file.
        entries: by key.
        problem: what was wrong with the file when it was read.
        behind: why the file does not have the last entries, see `remember`; empty if it has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, JournalEntry] = {}
        self.problem = ""
        self.behind = ""

    @classmethod
    def load(cls, path: Path) -> SettingsJournal:
        """Read the journal; a damaged file is kept under another name and named in `problem`.

        Raises:
            OSError: the file exists and cannot be read.
        """
        journal = cls(path)
        try:
            data = json.loads(atomic_file.read(path, _MAX_BYTES))
            read = _READERS.get(data["version"])
            if read is None:
                raise ValueError(f"version {data['version']}")
            entries = [read(item) for item in data["entries"]]
        except FileNotFoundError:
            return journal
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            aside = path.with_name(path.name + ".damaged")
            path.replace(aside)
            journal.problem = f"{path}: not a settings journal ({error}); kept as {aside.name}"
            return journal
        journal.entries = {entry.key: entry for entry in entries}
        return journal

    def update(self, changed: Iterable[JournalEntry], gone: Iterable[str] = ()) -> None:
        """Replace entries and forget others, on disk when this returns; no change, no writing.

        The original of an entry that exists stays, whatever the new one says.

        Raises:
            OSError: nothing was noted; the caller must not write to the hardware.
        """
        new = self._updated(changed, gone)
        if new != self.entries or self.behind:
            self._save(new)

    def remember(self, changed: Iterable[JournalEntry], gone: Iterable[str] = ()) -> None:
        """Do as `update`, but where the file cannot be written, let a later update catch up.

        Only for what takes no original from the file that the hardware does not have.
        """
        new = self._updated(changed, gone)
        try:
            if new != self.entries or self.behind:
                self._save(new)
        except OSError as error:
            self.entries, self.behind = new, error.strerror or str(error)

    def _updated(self, changed: Iterable[JournalEntry], gone: Iterable[str]) -> dict[str, JournalEntry]:
        new = dict(self.entries)
        for entry in changed:
            held = self.entries.get(entry.key)
            if held is not None and held.original != entry.original:
                entry = dataclasses.replace(entry, original=held.original)
            new[entry.key] = entry
        for key in gone:
            new.pop(key, None)
        return new

    def entries_of(self, owner: str | None = None, keys: Iterable[str] | None = None) -> list[JournalEntry]:
        """Return the entries that a job (None: any) has claims on; of the given keys only, if any."""
        wanted = None if keys is None else set(keys)
        return [
            entry
            for entry in self.entries.values()
            if (owner is None or owner in entry.claims) and (wanted is None or entry.key in wanted)
        ]

    def owners(self) -> set[str]:
        """Return the jobs that have claims."""
        return {owner for entry in self.entries.values() for owner in entry.claims}

    def _save(self, entries: dict[str, JournalEntry]) -> None:
        if entries:
            # Not asdict: it copies deeply, which costs more than writing hundreds of entries does.
            items = [
                {name: getattr(entry, name) for name in JournalEntry.__slots__} for entry in entries.values()
            ]
            data = {"version": _VERSION, "entries": items}
            atomic_file.write(self.path, json.dumps(data).encode())
        else:
            self.path.unlink(missing_ok=True)
            atomic_file.sync_directory(self.path.parent)
        self.entries, self.behind = entries, ""


def _entry(item: dict[str, Any]) -> JournalEntry:
    entry = JournalEntry(**item)
    claims = [text for claim in entry.claims.items() for text in claim]
    texts = [text for text in (*claims, entry.target, entry.written) if text is not None]
    if not all(isinstance(text, str) for text in (entry.key, entry.original, *texts)):
        raise TypeError("an entry is not text")
    return entry


def _entry_of_one_owner(item: dict[str, Any]) -> JournalEntry:
    """Read an entry of version 1, when a knob belonged to one job."""
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


_READERS = {1: _entry_of_one_owner, _VERSION: _entry}
