"""End of the worker processes of a process pool when their parent process has ended."""

from __future__ import annotations

import multiprocessing
import os
import threading


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
