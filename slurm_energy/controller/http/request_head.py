"""The head of an HTTP request: request line and header fields.

The head is checked before the rest of the request is read.
"""

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
# Bodies must be plain and have a length: otherwise they could not be bounded before they are read.
_REFUSED: Final = {
    b"transfer-encoding": (411, "send Content-Length instead of Transfer-Encoding"),
    b"content-encoding": (415, "send the body without Content-Encoding"),
    b"upgrade": (400, "no protocol upgrade is supported"),
}


class HeadError(Exception):
    """Error for a request head that is refused.

    Attributes:
        status: HTTP status of the response.
        reason: reason of the refusal, in one line.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Properties of a request that are needed before its body is read.

    Attributes:
        content_length: length of the body in bytes.
    """

    content_length: int

    @classmethod
    def parse(cls, head: bytes) -> RequestHead:
        """Check and parse a request head. `head` includes the empty line at its end.

        Raises:
            HeadError: the head is too long, malformed, or of an unsupported form.
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
