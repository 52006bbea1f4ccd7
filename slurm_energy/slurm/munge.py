"""MUNGE credentials: texts that carry bytes and whose sender the local munged authenticates.

This module only binds libmunge. The callers define the meaning of the bytes.
"""

from __future__ import annotations

import ctypes
import functools
import socket as sockets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.errors import ForbiddenError, UnavailableError, UsageError

_LIBRARY = "libmunge.so.2"
_OPTION_ORIGIN, _OPTION_SOCKET = 5, 8  # MUNGE_OPT_ADDR4 and MUNGE_OPT_SOCKET of munge.h
_SUCCESS = 0
_DAEMON_ERRORS = frozenset({1, 5, 6, 7})  # SNAFU, NO_MEMORY, SOCKET, TIMEOUT of munge.h
_CALLER_ERRORS = frozenset({2, 3, 4})  # BAD_ARG, BAD_LENGTH, OVERFLOW


@dataclass(frozen=True, slots=True)
class Credential:
    """The contents of a credential that munged has authenticated.

    Attributes:
        payload: payload bytes.
        uid, gid: ids of the process that encoded the credential.
        origin: IPv4 address of the host on which the credential was encoded; None means unknown. The munged
            of that host detected the address or took the address from the option --origin. The address is
            often a loopback address.
    """

    payload: bytes
    uid: int
    gid: int
    origin: str | None = None


def encode(payload: bytes, socket: Path | None = None) -> str:
    """Return a credential that carries a payload and authenticates the uid and gid of this process.

    Args:
        payload: any bytes, up to about 1 MiB.
        socket: socket of munged; None means the default of libmunge.

    Raises:
        UnavailableError: libmunge is missing, or munged does not answer.
        UsageError: the payload is too long.
    """
    library = _library()
    credential = ctypes.c_void_p()
    with _Context(library, socket) as context:
        code = library.munge_encode(ctypes.byref(credential), context.handle, payload, len(payload))
        try:
            context.check(code, "credential not made")
            return ctypes.string_at(credential.value or 0).decode("ascii")
        finally:
            _free(credential)


def decode(credential: str, socket: Path | None = None) -> tuple[bytes, int, int]:
    """Decode a credential with `open_credential` and return its payload, uid and gid."""
    opened = open_credential(credential, socket)
    return opened.payload, opened.uid, opened.gid


def open_credential(credential: str, socket: Path | None = None) -> Credential:
    """Decode and authenticate a credential. munged decodes each credential only once.

    Args:
        credential: result of `encode` on a host with the same munge key.
        socket: socket of munged; None means the default of libmunge.

    Raises:
        ForbiddenError: the credential is expired, replayed, rewound, forged or malformed. The reason is
            munge's message.
        UnavailableError: libmunge is missing, or munged does not answer.
    """
    library = _library()
    payload, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    try:
        text = credential.encode("ascii")
    except UnicodeEncodeError:
        raise ForbiddenError("munge", "credential is not ASCII text") from None
    if not text or b"\0" in text:
        raise ForbiddenError("munge", "credential is empty or contains a NUL byte")
    with _Context(library, socket) as context:
        code = library.munge_decode(
            text,
            context.handle,
            ctypes.byref(payload),
            ctypes.byref(length),
            ctypes.byref(uid),
            ctypes.byref(gid),
        )
        try:
            context.check(code, "credential refused")
            content = ctypes.string_at(payload.value, length.value) if payload.value else b""
        finally:
            # munge fills the payload also for expired, rewound and replayed credentials.
            _free(payload)
        return Credential(content, uid.value, gid.value, context.origin())


class _Context:
    """A context of the munge library (`munge_ctx_t`), valid in a `with` block.

    Each thread needs its own context. Creating a context takes microseconds.
    """

    def __init__(self, library: Any, socket: Path | None) -> None:
        self._library = library
        self._socket = socket
        self.handle = ctypes.c_void_p()

    def __enter__(self) -> _Context:
        self.handle = ctypes.c_void_p(self._library.munge_ctx_create())
        if not self.handle.value:
            raise UnavailableError("munge", "no memory for a context")
        if self._socket is not None:
            path = ctypes.c_char_p(str(self._socket).encode())
            code = self._library.munge_ctx_set(self.handle, ctypes.c_int(_OPTION_SOCKET), path)
            if code != _SUCCESS:
                self.__exit__()
                raise UnavailableError("munge", f"socket {self._socket} not accepted")
        return self

    def __exit__(self, *_: object) -> None:
        self._library.munge_ctx_destroy(self.handle)

    def origin(self) -> str | None:
        """Return the IPv4 address of the host that encoded the last decoded credential; None if unknown."""
        address = ctypes.create_string_buffer(4)  # struct in_addr
        code = self._library.munge_ctx_get(self.handle, ctypes.c_int(_OPTION_ORIGIN), ctypes.byref(address))
        if code != _SUCCESS or not any(address.raw):
            return None
        return sockets.inet_ntoa(address.raw)

    def check(self, code: int, what: str) -> None:
        if code == _SUCCESS:
            return
        reason = self._library.munge_ctx_strerror(self.handle) or self._library.munge_strerror(code)
        why = reason.decode("utf-8", "replace") if reason else f"error {code}"
        if code in _DAEMON_ERRORS:
            raise UnavailableError(f"munge: {what}", why, "is munged running?")
        if code in _CALLER_ERRORS:
            raise UsageError(f"munge: {what}", why)
        raise ForbiddenError(f"munge: {what}", why)


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        _libc().free(pointer)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    return libc


@functools.cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise UnavailableError("munge", str(error), "install libmunge2") from None
    pointer = ctypes.c_void_p
    library.munge_ctx_create.argtypes, library.munge_ctx_create.restype = [], pointer
    library.munge_ctx_destroy.argtypes, library.munge_ctx_destroy.restype = [pointer], None
    library.munge_ctx_set.restype = ctypes.c_int  # variadic: the call sets the argument types
    library.munge_ctx_get.restype = ctypes.c_int
    library.munge_ctx_strerror.argtypes = [pointer]
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.munge_strerror.argtypes, library.munge_strerror.restype = [ctypes.c_int], ctypes.c_char_p
    library.munge_encode.argtypes = [pointer, pointer, ctypes.c_char_p, ctypes.c_int]
    library.munge_encode.restype = ctypes.c_int
    library.munge_decode.argtypes = [ctypes.c_char_p, pointer, pointer, pointer, pointer, pointer]
    library.munge_decode.restype = ctypes.c_int
    return library
