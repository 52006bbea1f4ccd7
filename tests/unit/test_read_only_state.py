"""Test of the job manager while the state directory cannot be written.

The kernel makes a file system read-only, for example, after a disk error.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_job_manager import Node, env

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Context manager in which no file below `folder` can be created, changed, renamed or removed."""

    def refuse_below(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            is_read = function is real_open and not (arguments[0] if arguments else 0) & WRITING
            if not is_read and str(folder) in str(path):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return function(path, *arguments, **options)

        return call

    real_open = os.open
    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "truncate", "utime"):
            patch.setattr(os, name, refuse_below(getattr(os, name)))
        yield


def test_settings_are_restored_and_records_are_kept(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.manager.begin(env(1, policy="powersave"))
    node.use(10)
    assert node.tree.snapshot() != node.original
    with read_only(node.folder / "state"):
        assert node.manager.end(env(1)) == {"known": True}
        answer = node.manager.begin(env(2, policy="powersave"))
        assert (answer["applied"], answer["failed"] > 0) == (0, True)
        node.use(20)
        node.manager.housekeeping()
        node.manager.finalize_jobs()
        assert node.manager.end(env(2)) == {"known": True}
        node.use(10)
        node.manager.housekeeping()
        assert node.tree.policy(3, "scaling_max_freq") == "3400000"
    node.manager.housekeeping()
    records = {record.job_id: record for record in node.records() if record.step is None}
    assert sorted(records) == [1, 2]
    assert [round(record.elapsed_s) for record in records.values()] == [10, 20]
    node.die()
    again = Node(tmp_path)
    assert {record.job_id for record in again.records() if record.step is None} == {1, 2}
    assert again.manager.status()["jobs"] == []
    again.die()
