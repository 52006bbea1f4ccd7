"""The agent's Unix sockets: their paths, and a client that sends one message and reads the response.

Root has a second socket beside `agent.socket`. Users who fill the queue of the public socket therefore cannot
lock root out. Every subcommand may load this module, so the module imports nothing that is slow to import.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import UnavailableError

TIMEOUT_S: Final = 2.0
_MAX_RESPONSE_BYTES: Final = 1 << 20


def root_socket_path(path: Path) -> Path:
    """Return the path of the socket that only root may connect to.

    Args:
        path: path of the public socket, the value of the configuration key `agent.socket`.
    """
    # Imported here: the schema's checks need it too, and no other part of the configuration is wanted.
    from slurm_energy.config.value_checks import ROOT_SOCKET_SUFFIX

    return path.with_name(path.name + ROOT_SOCKET_SUFFIX)


def ask_agent(path: Path, message: dict[str, Any], *, max_bytes: int = _MAX_RESPONSE_BYTES) -> dict[str, Any]:
    """Send one message to this node's senergyd and return its response.

    Args:
        path: path of the public socket (`agent.socket`). If the caller is root, root's socket is tried first.
        message: a JSON object as described in `agent.sockets.messages`.
        max_bytes: maximum size of the response.

    Raises:
        UnavailableError: no agent responds at `path`, or the response is not a JSON object.
    """
    try:
        with _connect(path) as connection:
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile("rb") as stream:
                response = json.loads(stream.readline(max_bytes))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnavailableError(f"agent {path}", reason, "is senergyd running on this node?") from None
    if not isinstance(response, dict):
        raise UnavailableError(f"agent {path}", "it did not answer with a JSON object")
    return response


def _connect(path: Path) -> socket.socket:
    """Return a connection to the agent. If the queue of the socket is full, wait up to `TIMEOUT_S`.

    `path` is the path of the public socket.

    Raises:
        OSError: no agent listens at `path`, or the wait timed out.
    """
    root_paths = [root_socket_path(path)] if os.geteuid() == 0 else []
    for candidate in (*root_paths, path):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With Python's own timeout, connecting to a full queue would fail at once instead of waiting.
        seconds = struct.pack("@ll", int(TIMEOUT_S), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        try:
            connection.connect(str(candidate))
        except OSError:
            connection.close()
            if candidate == path:
                raise
        else:
            connection.settimeout(TIMEOUT_S)
            return connection
    raise AssertionError("unreachable")
