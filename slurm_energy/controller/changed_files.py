"""CSV files of the site, parsed again only after a change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.trusted_files import read_trusted

T = TypeVar("T")


class ChangedFiles(Generic[T]):
    """Cache of parsed text files, which parses a file again only when the file has changed.

    An entry of the cache is identified by a key. The parsed contents must depend only on the file and on the
    values in the key.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[int, ...], T]] = {}

    def read(self, key: Hashable, path: Path, kind: str, parse: Callable[[Sequence[str]], T]) -> T:
        """Return the contents of a file. A file that became unreadable or invalid keeps its last contents.

        Args:
            key: key of the cache entry. The key contains the path.
            path: the file.
            kind: kind of file, for the error message.
            parse: returns the contents from the lines.

        Raises:
            UnavailableError: the file cannot be read or is invalid, and was never read successfully before.
        """
        known = self._known.get(key)
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if known is not None and known[0] == stamp:
                return known[1]
            contents = parse(read_trusted(path).decode("utf-8-sig").splitlines(True))
        except (OSError, UnicodeDecodeError, EnergyError) as error:
            if known is not None:
                return known[1]
            why = getattr(error, "strerror", None) or str(error)
            raise UnavailableError(f"{kind} {path}", why) from None
        self._known[key] = (stamp, contents)
        return contents
