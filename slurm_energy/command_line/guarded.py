"""Handling of an interrupt, a closed pipe or a full disk when a program ends.

No traceback is printed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from slurm_energy.errors import EXIT_FAILURE
from slurm_energy.garbage_collection import skip_collection_at_exit

EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_BROKEN_PIPE: Final = 128 + signal.SIGPIPE
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def guarded(program: str, body: Callable[[], int], *, is_daemon: bool = False) -> int:
    """Run the body of a program and return its exit code.

    Args:
        program: name of the program, for the error message.
        body: function that returns the exit code.
        is_daemon: whether the program is a daemon. Operating system errors of a daemon are raised, because
            they may have causes other than standard output.
    """
    skip_collection_at_exit()
    try:
        code = body()
        sys.stdout.flush()  # report write errors here, not when the interpreter exits
    except SystemExit as ended:
        return _flushed(program, ended)
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if is_daemon:
            raise
        return _no_room(program, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


def _flushed(program: str, ended: SystemExit) -> int:
    """Write the text that --help or --version printed, and end the program."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _no_room(program, error)
    raise ended


def _no_room(program: str, error: OSError) -> int:
    if error.errno not in _NO_ROOM:
        raise error
    _discard_output()
    print(f"{program}: error: standard output: {error.strerror}", file=sys.stderr)
    return EXIT_FAILURE


def _discard_output() -> None:
    """Discard buffered output. The interpreter would otherwise report a broken pipe when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
