"""Pools of worker processes, and the termination of workers whose parent process has ended."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from typing import Any, Final

from slurm_energy.errors import UnavailableError

_NO_WRITE_ACCESS: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


def process_pool(
    count: int,
    option: str,
    *,
    context: BaseContext | None = None,
    initializer: Callable[..., None],
    initargs: tuple[Any, ...] = (),
) -> ProcessPoolExecutor:
    """Return a pool of `count` worker processes.

    Args:
        count: number of processes.
        option: option of the command that sets the number of processes, for the error message.
        context: start method of the processes; None means the system's default.
        initializer: function that each worker process calls first.
        initargs: arguments of `initializer`.

    Raises:
        UnavailableError: this user cannot create so many processes, or cannot create the semaphores that
            the processes of a pool use. Linux keeps semaphores as files in /dev/shm. In some containers, only
            root may write there.
    """
    try:
        pool = ProcessPoolExecutor(count, context, initializer, initargs)
    except OSError as error:
        todo = f"use {option} 1"
        if error.errno in _NO_WRITE_ACCESS:
            todo += ", or let this user write /dev/shm (mode 1777)"
        raise UnavailableError("worker processes", f"no semaphores ({error.strerror})", todo) from None
    earlier = set(multiprocessing.active_children())
    try:
        pool.submit(int)  # the first task starts all worker processes that are forked
    except OSError as error:
        # The workers wait for tasks, and the interpreter would wait for the workers before it exits.
        for process in set(multiprocessing.active_children()) - earlier:
            process.kill()
        pool.shutdown()
        why = f"{count} processes cannot be started ({error.strerror})"
        raise UnavailableError("worker processes", why, f"use a smaller {option}") from None
    return pool


def end_with_parent() -> None:
    """Start a thread that ends this worker process as soon as its parent process has ended.

    A pool that ends normally stops its workers. Without this thread the workers of a killed pool would wait
    for ever.
    """
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
