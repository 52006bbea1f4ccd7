"""The head of an HTTP request, checked before anything else of it is read or believed. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEAD_BYTES: Final = 16 << 10
MAX_HEADERS: Final = 32
END: Final = b"\r\n\r\n"

_REQUEST_LINE: Final = re.compile(rb"[A-Z]{1,16} /[\x21-\x7e]* HTTP/1\.[01]")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*)")
_LENGTH: Final = re.compile(rb"\d{1,15}")
# Bodies come plain and with their length: only so can they be bounded before they are read.
_REFUSED: Final = {
    b"transfer-encoding": (411, "send Content-Length instead of Transfer-Encoding"),
    b"content-encoding": (415, "send the body without Content-Encoding"),
    b"upgrade": (400, "no other protocol is spoken here"),
}


class HeadError(Exception):
    """A head that is not accepted.

    Attributes:
        status: HTTP status of the response.
        reason: one line.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What must be known of a request before its body.

    Attributes:
        content_length: bytes of the body.
    """

    content_length: int

    @classmethod
    def parse(cls, head: bytes) -> RequestHead:
        """Check a head, given with the empty line that ends it.

        Raises:
            HeadError: too long, malformed, or of a form that is not accepted.
        """
        if len(head) > MAX_HEAD_BYTES:
            raise HeadError(431, f"request line and headers are longer than {MAX_HEAD_BYTES} bytes")
        first, *lines = head.removesuffix(END).split(b"\r\n")
        if not _REQUEST_LINE.fullmatch(first):
            raise HeadError(400, "not an HTTP/1.1 request")
        if len(lines) > MAX_HEADERS:
            raise HeadError(431, f"more than {MAX_HEADERS} headers")
        length: bytes | None = None
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None:
                raise HeadError(400, "malformed header")
            name, value = match[1].lower(), match[2].rstrip(b" \t")
            if name in _REFUSED:
                raise HeadError(*_REFUSED[name])
            if name == b"content-length":
                if length is not None or not _LENGTH.fullmatch(value):
                    raise HeadError(400, "malformed Content-Length")
                length = value
        return cls(int(length or b"0"))
