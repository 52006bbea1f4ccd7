"""The portable backup file of a database.

It contains the rows of all tables as compressed JSON lines. docs/accounting.md specifies the format. The
values in the file do not depend on the kind of database from which the data come.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.quantities import shown

FORMAT: Final = "slurm-energy backup"
FORMAT_VERSION: Final = 1
MAX_LINE_BYTES: Final = 64 << 20
"""Maximum length of a line. A power trace is the longest value, and nodes deliver at most 16 MiB."""
_MAX_INTEGER: Final = 2**63
_COMPRESSION: Final = 3
_MAGIC: Final = b"\x1f\x8b"


class DamagedBackupError(EnergyError):
    """Error: a backup file is incomplete, or its contents were changed."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """The first line of a backup file.

    Attributes:
        schema: schema version of the database.
        release: release of slurm-energy that wrote the file.
        created: time of the backup in Unix seconds.
        store: kind of the database that was backed up: `sqlite`, `mariadb` or `postgresql`.
        tables: names of the columns by table, in the order of the file. A column whose name ends in `:base64`
            holds bytes.
    """

    schema: int
    release: str
    created: float
    store: str
    tables: Mapping[str, Sequence[str]]


class BackupWriter:
    """Writer of one backup file. The file has a temporary name until it is complete and on disk.

    Args:
        path: path of the backup file.
        header: first line of the file.
        replace: whether to replace an existing file.

    Raises:
        EnergyError: the file exists or cannot be created.
    """

    def __init__(self, path: Path, header: BackupHeader, *, replace: bool = False) -> None:
        if path.exists() and not replace:
            raise EnergyError(str(path), "exists already", "name another file, or use --force")
        self.rows: dict[str, int] = {}
        self._path, self._temporary = path, temporary_name(path)
        self._hash = hashlib.sha256()
        self._header = header
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._raw = open(os.open(self._temporary, flags, 0o600), "wb")  # noqa: PTH123, SIM115
        except OSError as error:
            raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None
        self._file = gzip.GzipFile("", "wb", _COMPRESSION, self._raw, mtime=0)
        fields = {name: getattr(header, name) for name in BackupHeader.__slots__}
        self._write({"format": FORMAT, "version": FORMAT_VERSION, **fields})

    def __enter__(self) -> BackupWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._raw.close()
            self._temporary.unlink(missing_ok=True)

    def write_table(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Write the rows of a table.

        The values of a row are in the same order as the columns in the header.
        """
        binary = [column.endswith(":base64") for column in self._header.tables[name]]
        encode = _encoded if any(binary) else lambda values, _: values
        self._write({"table": name})
        count = 0
        for values in rows:
            self._write(encode(list(values), binary))
            count += 1
        self._write({"end": name, "rows": count})
        self.rows[name] = count

    def finish(self) -> None:
        """Write the checksum, wait until the file is on disk, and give it its final name.

        Raises:
            EnergyError: the file cannot be written.
        """
        try:
            self._write({"rows": self.rows, "sha256": self._hash.hexdigest()})
            self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
            self._temporary.replace(self._path)
        except OSError as error:
            raise EnergyError(str(self._path), error.strerror or str(error)) from None

    def _write(self, value: Any) -> None:
        line = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        self._hash.update(line)
        try:
            self._file.write(line)
        except OSError as error:
            raise EnergyError(str(self._path), error.strerror or str(error)) from None


class BackupReader:
    """Reader of one backup file. Call `tables`, consume all rows, then call `verify`.

    Args:
        path: path of the backup file.

    Raises:
        DamagedBackupError: the file is not a backup file, or its first line is damaged.
        UsageError: a newer release wrote the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, int] = {}
        self._hash = hashlib.sha256()
        self._number = 0
        self._verified = False
        try:
            self._file = gzip.GzipFile(path, "rb")
        except OSError as error:
            raise EnergyError(f"backup {path}", error.strerror or str(error)) from None
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> BackupReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tables(self) -> Iterator[tuple[str, Iterator[list[Any]]]]:
        """Yield each table with an iterator over its rows. The caller must consume each iterator."""
        for name, columns in self.header.tables.items():
            if self._read() != {"table": name}:
                raise self._damaged(f"table {name} is missing")
            yield name, self._rows(name, columns)

    def verify(self) -> None:
        """Check that the backup file is complete and unchanged, after all its rows have been read.

        The last line of the file must contain the number of rows and the checksum of the file.

        Raises:
            DamagedBackupError: the file is incomplete or was changed.
        """
        checksum = self._hash.hexdigest()
        if self._read() != {"rows": self.rows, "sha256": checksum}:
            raise self._damaged("the checksum does not match")
        with self._explained():
            if self._file.read(1):
                raise self._damaged("there are lines after the checksum")

    def _rows(self, name: str, columns: Sequence[str]) -> Iterator[list[Any]]:
        binary = [column.endswith(":base64") for column in columns]
        has_binary, count = any(binary), 0
        while isinstance(values := self._read(), list):
            if len(values) != len(columns):
                raise self._damaged(f"{len(values)} values instead of {len(columns)}")
            if any(map(_is_impossible, values)):
                raise self._damaged("a value fits into no column")
            count += 1
            yield self._decoded(values, binary) if has_binary else values
        if values != {"end": name, "rows": count}:
            raise self._damaged(f"the end of table {name} is missing")
        self.rows[name] = count

    def _read_header(self) -> BackupHeader:
        values = self._read()
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise DamagedBackupError(f"backup {self.path}", "not a backup of slurm-energy")
        version = values.pop("version", None)
        if version != FORMAT_VERSION:
            todo = "restore it with the release that wrote it, or a newer one"
            raise UsageError(f"backup {self.path}", f"its format {version} is unknown to this release", todo)
        try:
            header = BackupHeader(**values)
        except TypeError:
            raise self._damaged("the header is incomplete") from None
        if not _is_valid(header):
            raise self._damaged("the header is invalid")
        return header

    def _read(self) -> Any:
        self._number += 1
        with self._explained():
            line = self._file.readline(MAX_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise self._damaged("the file is incomplete")
            self._hash.update(line)
            return json.loads(line)

    def _decoded(self, values: list[Any], binary: Sequence[bool]) -> list[Any]:
        try:
            return [
                base64.b64decode(value, validate=True) if is_binary and value is not None else value
                for value, is_binary in zip(values, binary, strict=True)
            ]
        except (TypeError, binascii.Error):
            raise self._damaged("a value is not base64") from None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
            raise self._damaged(" ".join(str(error).split())) from None
        except OSError as error:
            raise EnergyError(f"backup {self.path}", error.strerror or str(error)) from None

    def _damaged(self, reason: str) -> DamagedBackupError:
        what, why = f"backup {self.path}", f"damaged at line {self._number}: {shown(reason, 120)}"
        return DamagedBackupError(what, why, "use another backup")


def temporary_name(path: Path) -> Path:
    """Return a name for a file that will be renamed to `path` when it is complete.

    Commands that write the same file at the same time get different names.
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.new")


def is_backup_file(path: Path) -> bool:
    """Return whether a file is a portable backup of the database, judged by its first bytes.

    Raises:
        EnergyError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError as error:
        raise EnergyError(f"backup {path}", error.strerror or str(error)) from None


def _is_valid(header: BackupHeader) -> bool:
    columns = header.tables.values() if isinstance(header.tables, dict) else (None,)
    return type(header.schema) is int and all(
        isinstance(names, list)
        and len(set(map(str, names))) == len(names)
        and all(isinstance(name, str) for name in names)
        for names in columns
    )


def _is_impossible(value: Any) -> bool:
    """Return whether a JSON value is of a type that backups never contain.

    Backups contain null, 64-bit integers, other numbers and Unicode text.
    """
    if isinstance(value, str):
        return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, int):
        return not -_MAX_INTEGER <= value < _MAX_INTEGER
    return value is not None and not isinstance(value, float)


def _encoded(values: list[Any], binary: Sequence[bool]) -> list[Any]:
    return [
        base64.b64encode(value).decode() if is_binary and value is not None else value
        for value, is_binary in zip(values, binary, strict=True)
    ]
