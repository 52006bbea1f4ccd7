"""The settings journal: what every knob held before us and what we wrote, on disk before the first write.

The file is replaced atomically and forced to disk; it exists only while something is set. It knows keys
and values, not hardware.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.devices import durable

_VERSION = 1
_LONGEST_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One knob that we changed, are about to change, or that changes along with one.

    Attributes:
        key: the knob.
        owner: job that asked for it, `JOBID.RESTART`.
        original: value before us.
        asked: value wanted; None for a knob that the hardware may change when another one is written.
        written: value that we left in force; None while writing or restoring is under way.
    """

    key: str
    owner: str
    original: str
    asked: str | None
    written: str | None = None


class Journal:
    """Entries by key, and their file. An original is never replaced while its entry exists."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.problem = ""

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read the journal; a damaged file is kept under another name and named in `problem`.

        Raises:
            OSError: the file exists and cannot be read.
        """
        journal = cls(path)
        try:
            data = json.loads(durable.read(path, _LONGEST_BYTES))
            if data["version"] != _VERSION:
                raise ValueError(f"version {data['version']}")
            entries = [_entry(item) for item in data["entries"]]
        except FileNotFoundError:
            return journal
        except (ValueError, KeyError, TypeError) as error:
            aside = path.with_name(path.name + ".damaged")
            path.replace(aside)
            journal.problem = f"{path}: not a settings journal ({error}); kept as {aside.name}"
            return journal
        journal.entries = {entry.key: entry for entry in entries}
        return journal

    def open_entries(self, entries: Iterable[Entry]) -> None:
        """Note originals and intentions, on disk when this returns.

        Raises:
            OSError: nothing was noted; the caller must not write to the hardware.
        """
        updated = dict(self.entries)
        for entry in entries:
            held = updated.get(entry.key)
            asked = entry.asked if entry.asked is not None or held is None else held.asked
            updated[entry.key] = dataclasses.replace(
                entry, original=held.original if held else entry.original, asked=asked, written=None
            )
        self._save(updated)

    def settle(self, values: Mapping[str, str | None]) -> None:
        """Note what is in force now; None marks an entry as being changed by us.

        Raises:
            OSError: not noted.
        """
        changed = {
            key: dataclasses.replace(self.entries[key], written=value)
            for key, value in values.items()
            if key in self.entries
        }
        if any(self.entries[key] != entry for key, entry in changed.items()):
            self._save({**self.entries, **changed})

    def close_entries(self, keys: Iterable[str], settled: Mapping[str, str | None] | None = None) -> None:
        """Forget entries whose original is back, and note the values in force of the others.

        Raises:
            OSError: not noted.
        """
        gone = set(keys)
        kept = {key: entry for key, entry in self.entries.items() if key not in gone}
        for key, value in (settled or {}).items():
            if key in kept:
                kept[key] = dataclasses.replace(kept[key], written=value)
        if kept != self.entries:
            self._save(kept)

    def owned(self, owner: str | None = None, keys: Iterable[str] | None = None) -> list[Entry]:
        """Return the entries of one owner (None: of all), of the given keys only if there are any."""
        wanted = None if keys is None else set(keys)
        return [
            entry
            for entry in self.entries.values()
            if (owner is None or entry.owner == owner) and (wanted is None or entry.key in wanted)
        ]

    def owners(self) -> set[str]:
        """Return the jobs that hold settings."""
        return {entry.owner for entry in self.entries.values()}

    def _save(self, entries: dict[str, Entry]) -> None:
        if entries:
            # Not asdict: it copies deeply, which costs more than writing hundreds of entries does.
            items = [{name: getattr(entry, name) for name in Entry.__slots__} for entry in entries.values()]
            data = {"version": _VERSION, "entries": items}
            durable.write(self.path, json.dumps(data).encode())
        else:
            self.path.unlink(missing_ok=True)
            durable.sync_folder(self.path.parent)
        self.entries = entries


def _entry(item: dict[str, Any]) -> Entry:
    entry = Entry(**item)
    texts = (entry.key, entry.owner, entry.original)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("an entry is not text")
    return entry
