"""Worker processes of long computations: what holds for all of them, whatever they compute."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Have this worker process end when the one that it works for is gone, however that ended.

    A pool tells its workers to end. One that is killed cannot, and they would wait for work for ever.
    """
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
