"""Incremental scanner of Chrome trace files, as the PyTorch profiler and many other tools write them.

A file is a JSON object with the list `traceEvents`, or only this list. The file is scanned in bounded memory,
event by event. The content is hostile input: it may be cut off, damaged, deeply nested, huge or extremely
compressed.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

MAX_EVENT_CHARACTERS: Final = 1 << 20
"""Maximum length of one event."""
MAX_VALUE_CHARACTERS: Final = 1 << 22
"""Maximum length of a value beside `traceEvents`, such as the device properties."""
MAX_CONTENT_BYTES: Final = 16 << 30
"""Maximum length of the decompressed content."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_PIECE_BYTES: Final = 1 << 18
_BYTE_ORDER_MARK: Final = "\ufeff"
_BLANKS = re.compile(r"[ \t\r\n]*")


class TraceFileError(ValueError):
    """The content is not a Chrome trace, or stops being one at some byte.

    Args:
        why: description of the fault.
        offset: position of the fault, in bytes of the decompressed content.
    """

    def __init__(self, why: str, offset: int) -> None:
        super().__init__(f"byte {offset}: {why}")
        self.why, self.offset = why, offset


@dataclass(frozen=True, slots=True)
class ScannedEvent:
    """An element of `traceEvents`.

    Attributes:
        value: the JSON value, usually an object.
        offset: position of the start of the value, in bytes of the decompressed content.
    """

    value: Any
    offset: int


@dataclass(frozen=True, slots=True)
class ScannedValue:
    """A key of the trace other than `traceEvents`, with its value."""

    key: str
    value: Any


def decompressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a file in pieces of bounded size.

    The file may be compressed by gzip.

    Raises:
        TraceFileError: the compressed data is damaged or cut off, or the content is too long.
    """
    iterator = iter(pieces)
    start = b""
    for piece in iterator:
        start += piece
        if len(start) >= len(_GZIP_MAGIC):
            break
    if not start.startswith(_GZIP_MAGIC):
        yield from _limited(start, iterator)
        return
    done = 0
    inflater = zlib.decompressobj(wbits=31)
    data = start
    while True:
        while data:
            if inflater.eof:  # a file may consist of several gzip members
                inflater = zlib.decompressobj(wbits=31)
            try:
                content = inflater.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise TraceFileError(f"the compressed data is damaged ({error})", done) from None
            data = inflater.unconsumed_tail or inflater.unused_data
            done += len(content)
            _check_length(done)
            if content:
                yield content
        following = next(iterator, None)
        if following is None:
            break
        data = following
    if not inflater.eof:
        raise TraceFileError("the compressed data is cut off", done)


def _limited(start: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    done = len(start)
    yield start
    for piece in pieces:
        done += len(piece)
        _check_length(done)
        yield piece


def _check_length(done: int) -> None:
    if done > MAX_CONTENT_BYTES:
        raise TraceFileError(f"the content is longer than {MAX_CONTENT_BYTES >> 30} GiB", done)


def scan(pieces: Iterable[bytes]) -> Iterator[ScannedEvent | ScannedValue]:
    """Yield the events and the other values of a Chrome trace, in their order in the file.

    Args:
        pieces: content of the file, decompressed.

    Raises:
        TraceFileError: the content is not a trace, is damaged, or is cut off. Everything before the fault has
            been yielded.
    """
    text = _TextWindow(pieces)
    first = text.skip_blanks()
    if first == "[":
        text.advance(1)
        yield from _events(text, may_end=True)
    elif first == "{":
        text.advance(1)
        yield from _members(text)
    else:
        text.fail("neither a JSON object nor a list" if first else "the file is empty")


def _members(text: _TextWindow) -> Iterator[ScannedEvent | ScannedValue]:
    while True:
        character = text.skip_separators()
        if character == "}":
            return
        if character != '"':
            text.fail("expected a key")
        key = text.value(MAX_EVENT_CHARACTERS)
        if text.skip_blanks() != ":":
            text.fail("expected ':' after a key")
        text.advance(1)
        if text.skip_blanks() == "[" and key == "traceEvents":
            text.advance(1)
            yield from _events(text, may_end=False)
        else:
            yield ScannedValue(key, text.value(MAX_VALUE_CHARACTERS))


def _events(text: _TextWindow, *, may_end: bool) -> Iterator[ScannedEvent]:
    """Yield the events in a list of a Chrome trace file.

    Args:
        text: content, after the opening bracket.
        may_end: whether the file may end without the closing bracket. The format permits this if the file
            consists only of the list, because programs append events until they exit.
    """
    while True:
        character = text.skip_separators()
        if character == "]":
            text.advance(1)
            return
        if not character and may_end:
            return
        offset = text.offset
        yield ScannedEvent(text.value(MAX_EVENT_CHARACTERS), offset)


class _TextWindow:
    """The currently scanned part of a text. Characters before the current position are dropped."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._json = json.JSONDecoder(parse_constant=_refuse_constant)
        self._text = ""
        self._at = 0
        self._counted_at, self._counted_bytes = 0, 0
        self._is_complete = False
        while not self._text and self._more():
            pass
        if self._text.startswith(_BYTE_ORDER_MARK):
            self._at = 1

    @property
    def offset(self) -> int:
        """Bytes from the start of the content to the current position."""
        part = self._text[self._counted_at : self._at]
        self._counted_bytes += len(part) if part.isascii() else len(part.encode("utf-8", "surrogateescape"))
        self._counted_at = self._at
        return self._counted_bytes

    def fail(self, why: str) -> NoReturn:
        """Raise an error at the current position."""
        raise TraceFileError(why, self.offset)

    def advance(self, count: int) -> None:
        """Skip characters that the caller has examined."""
        self._at += count

    def skip_blanks(self) -> str:
        """Skip white space and return the next character, without going past it.

        The result is empty at the end of the content.
        """
        while True:
            match = _BLANKS.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip_separators(self) -> str:
        """Skip white space and commas. Return the next character; empty at the end of the content."""
        while (character := self.skip_blanks()) == ",":
            self._at += 1
        return character

    def value(self, max_characters: int) -> Any:
        """Read one JSON value from the current position.

        Raises:
            TraceFileError: the value is damaged, cut off, too long or nested too deeply.
        """
        while True:
            value, why = None, ""
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except RecursionError:
                self.fail("nested too deeply")
            except json.JSONDecodeError as error:
                end, why = len(self._text), error.msg
            except ValueError:  # Python refuses integers of more than 4300 digits
                self.fail("a number has too many digits")
            if end - self._at > max_characters:
                self.fail(
                    f"not JSON ({why})" if why else f"a value is longer than {max_characters} characters"
                )
            # A number at the end of the window may continue in the next piece.
            is_cut = isinstance(value, (int, float)) and end == len(self._text)
            if not why and (self._is_complete or not is_cut):
                self._at = end
                return value
            if not self._more() and why:
                self.fail(self._fault_at_end(why))

    def _fault_at_end(self, why: str) -> str:
        """Return why the value at the end of the file cannot be parsed."""
        start = self._text[self._at : self._at + 1]
        if not start:
            return "the file ends too early"
        return "the file ends in the middle of a value" if start in '{["' else f"not JSON ({why})"

    def _more(self) -> bool:
        """Append the next piece of the file to the text; return False at the end of the file."""
        piece = next(self._pieces, None)
        if piece is None:
            self._is_complete = True
            return False
        if self._at > _PIECE_BYTES or self._at == len(self._text):
            self._counted_bytes = self.offset
            self._text, self._at, self._counted_at = self._text[self._at :], 0, 0
        self._text += self._utf8.decode(piece)
        return True


def _refuse_constant(name: str) -> float:
    """Return NaN for the constants NaN, Infinity and -Infinity, which are not valid in JSON.

    The reader of the events drops these values.
    """
    return float("nan")
