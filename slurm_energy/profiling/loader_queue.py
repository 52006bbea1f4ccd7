"""Readiness of batches: whether the next batch of a PyTorch DataLoader has arrived before the request for it.

Loader processes send each batch as a message. The program needs about a millisecond to receive a message.
This time is not a wait for the loader, because further loader processes would not shorten the time.
"""

from __future__ import annotations

from typing import Any, Final

PROBE_PERIOD_NS: Final = 250_000_000
"""Time between two requests for which `is_batch_ready` is called, because a call takes 10 microseconds."""
_RECEIVED = 2
"""Length of an entry about a batch that was received before a batch that precedes it."""


def is_batch_ready(iterator: Any) -> bool:
    """Return whether the next batch of an iterator over a DataLoader has arrived.

    Return False if this is unknown, for example for a loader without processes. The function reads attributes
    of PyTorch 2.13. With a release that names the attributes differently, the readiness is unknown.
    """
    try:
        return is_in_order(iterator) and not iterator._data_queue.empty()
    except Exception:  # not such an iterator, or an iterator that has ended
        return False


def is_in_order(iterator: Any) -> bool:
    """Return whether the iterator received all batches in order so far.

    A batch that was received before a preceding batch waits in the iterator for a slower loader process.
    """
    try:
        return all(len(entry) != _RECEIVED for entry in iterator._task_info.values())
    except Exception:
        return False
