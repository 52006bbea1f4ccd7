"""Reader of the lines of a text file in bounded memory.

The file may have any usual encoding and compression.

A file may be compressed (gzip, bzip2, xz, Zstandard) and encoded in UTF-8 or UTF-16. Compression and encoding
are recognised by the first bytes of the file, not by the file name. Line ends are LF, CRLF or CR.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.simulator.inputs.input_problems import InputProblems

MAX_LINE_BYTES: Final = 1 << 20
"""Length from which a line is skipped. The longest command line that Slurm stores is shorter."""
MAX_DOCUMENT_BYTES: Final = 1 << 30
"""Maximum size of a JSON document, which is parsed as a whole."""
MAX_BLANK_LINES: Final = 1000
"""Number of blank lines in succession that are yielded: more than a record of delimited text may span."""
_BLANK_RUNS: Final = tuple(end * (MAX_BLANK_LINES + 1) for end in (b"\n", b"\r\n"))
_BLANK_RUN: Final = re.compile(rb"(?<=\n)([\r\n]{%d,}(?<=\n))" % MAX_BLANK_LINES)
_BLOCK_BYTES: Final = 8 << 20
_SAMPLE_BYTES: Final = 4096
_GZIP, _BZIP2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def line_blocks(path: Path, problems: InputProblems) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of a file in blocks.

    Each block comes with the number of its first line, counted from 1.

    Lines are UTF-8 bytes without line end. A line that is longer than `MAX_LINE_BYTES` or has a NUL byte is
    replaced by an empty line and recorded in `problems` as skipped. Of successive blank lines, at most
    `MAX_BLANK_LINES` are read. If compressed data are damaged, the lines before the damage are used.

    Raises:
        OSError: the file cannot be read.
        UnavailableError: the file is compressed with Zstandard, which this Python cannot read.
    """
    number, rest, oversized = 1, b"", False
    with _open(path) as file:
        while True:
            block = file.block()
            damage = file.damage
            parts = _BLANK_RUN.split(block) if any(run in block for run in _BLANK_RUNS) else [block]
            for index, part in enumerate(parts):
                if index % 2:
                    # Compressed blank lines would otherwise become gigabytes of objects.
                    yield number, [b""] * MAX_BLANK_LINES
                    number += part.count(b"\n")
                    continue
                is_last = index == len(parts) - 1
                lines = (rest + part).split(b"\n")
                rest = lines.pop()
                if oversized and lines:
                    lines[0], oversized = b"", False
                if oversized or len(rest) > MAX_LINE_BYTES:
                    if not oversized:
                        why = f"the line is longer than {MAX_LINE_BYTES} bytes"
                        problems.skip(why, [number + len(lines)])
                    rest, oversized = b"", True
                if is_last and not block and (rest or damage):
                    lines, rest = [rest], b""
                yield from _clean(number, lines, problems)
                number += len(lines)
            if damage:
                problems.warn(
                    f"the compressed data are damaged here, the rest is missing: {damage}", [number - 1]
                )
            if damage or not block:
                return


def _clean(first: int, lines: list[bytes], problems: InputProblems) -> Iterator[tuple[int, list[bytes]]]:
    """Yield a block of lines of a file after unusable lines were replaced by empty lines.

    A line is unusable if it is too long or contains a NUL byte. Each unusable line is reported to
    `problems`.
    """
    if not lines:
        return
    if max(map(len, lines)) > MAX_LINE_BYTES:
        wrong = [index for index, line in enumerate(lines) if len(line) > MAX_LINE_BYTES]
        problems.skip(f"the line is longer than {MAX_LINE_BYTES} bytes", (first + index for index in wrong))
        lines = [b"" if len(line) > MAX_LINE_BYTES else line for line in lines]
    binary = [index for index, line in enumerate(lines) if b"\0" in line]
    if binary:
        problems.skip("the line is not text: it contains a NUL byte", (first + index for index in binary))
        lines = [b"" if b"\0" in line else line for line in lines]
    yield first, lines


def text_lines(path: Path, problems: InputProblems) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, each with its line number.

    Bytes that are not UTF-8 are replaced. A line with replaced bytes is still used, and the problem is
    recorded in `problems`. `line_blocks` handles lines that are too long, lines with NUL bytes and damaged
    compressed data.
    """
    for first, lines in line_blocks(path, problems):
        for number, line in enumerate(lines, first):
            try:
                text = line.decode()
            except UnicodeDecodeError:
                problems.warn("bytes that are not UTF-8 are replaced", [number])
                text = line.decode(errors="replace")
            yield number, text.removesuffix("\r")


def document(path: Path) -> bytes:
    """Return the contents of a whole file as UTF-8 bytes.

    Raises:
        OSError: the file cannot be read.
        UsageError: the compressed data are damaged, or the contents exceed `MAX_DOCUMENT_BYTES`.
    """
    parts: list[bytes] = []
    size = 0
    with _open(path) as file:
        while True:
            block = file.block()
            size += len(block)
            if file.damage:
                raise UsageError(f"{path}", f"the compressed data are damaged: {file.damage}")
            if size > MAX_DOCUMENT_BYTES:
                raise UsageError(
                    f"{path}",
                    f"is a JSON document of more than {MAX_DOCUMENT_BYTES >> 30} GiB",
                    "split it by time",
                )
            if not block:
                return b"".join(parts)
            parts.append(block)


def plain_suffix(path: Path) -> str:
    """Return the suffix of a file name in lower case. For a name such as `jobs.csv.gz`, it is `.csv`."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in (".gz", ".bz2", ".xz", ".zst"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _open(path: Path) -> _Utf8:
    """Open a file that may be compressed, and return a stream of its text.

    The text is UTF-8 without byte order mark.
    """
    return _Utf8(_decompressed(path))


def _decompressed(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(8)
    if start.startswith(_GZIP):
        return gzip.open(path, "rb")
    if start.startswith(_BZIP2):
        return bz2.open(path, "rb")
    if start.startswith(_XZ):
        return lzma.open(path, "rb")
    if start.startswith(_ZSTD):
        return _zstandard(path)
    return path.open("rb")


def _zstandard(path: Path) -> Any:
    for name in ("compression.zstd", "zstandard"):
        try:
            return importlib.import_module(name).open(path, "rb")
        except ImportError:
            continue
    raise UnavailableError(
        f"{path}", "needs the package zstandard", f"pip install zstandard, or zstd -d {path.name}"
    )


def _encoding(sample: bytes) -> tuple[str, int]:
    """Return the encoding of a text and the length of its byte order mark.

    The encoding is detected from the first bytes.

    UTF-16 without a mark is recognised by its zero bytes, at odd or even positions only.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding, len(mark)
    for offset, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        high, low = sample[offset::2], sample[1 - offset :: 2]
        if len(high) >= 8 and high.count(0) > 0.9 * len(high) and low.count(0) == 0:
            return encoding, 0
    return "utf-8", 0


class _Utf8:
    """Reader of a stream that yields UTF-8 without byte order mark.

    Args:
        raw: the underlying stream, which is closed when this object is closed.

    Attributes:
        damage: the reason why the rest of the stream cannot be decompressed; empty if the stream is not
            damaged.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.damage = ""
        self._start = self._read()
        encoding, mark = _encoding(self._start)
        sample = self._start[:_SAMPLE_BYTES]
        self._start = self._start[mark:]
        self._cr_only = encoding == "utf-8" and b"\r" in sample and b"\n" not in sample
        self._decoder = None if encoding == "utf-8" else codecs.getincrementaldecoder(encoding)("replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def block(self) -> bytes:
        """Return the next bytes of the stream, converted to UTF-8.

        A block has about `_BLOCK_BYTES`. It is shorter or empty at the end of the stream.
        """
        parts: list[bytes] = []
        size = 0
        while size < _BLOCK_BYTES:
            data, self._start = self._start or self._read(), b""
            if self._decoder is not None:
                text = self._decoder.decode(data, final=not data).encode(errors="replace")
            else:
                text = data.replace(b"\r", b"\n") if self._cr_only else data
            parts.append(text)
            size += len(text)
            if not data:
                break
        return b"".join(parts)

    def _read(self) -> bytes:
        try:
            return bytes(self._raw.read1(1 << 16))
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            self.damage = str(error) or "they end too early"
        except OSError as error:
            if error.errno is not None:  # an error of the file system; errors of gzip and bz2 have no number
                raise
            self.damage = str(error)
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.damage = str(error)
        return b""
