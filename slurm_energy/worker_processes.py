"""Life cycle of worker processes in long computations."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this worker process as soon as its parent process has ended, even if the parent was killed.

    A pool that ends normally stops its workers. Workers of a killed pool would otherwise wait for ever.
    """
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
