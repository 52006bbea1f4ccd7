"""Tests of the sources from which the queue is read if the plugin's file queue.table is lost.

The first alternative is the last valid table, updated with the changes in the journal. The second
alternative is squeue.
"""

from __future__ import annotations

import pytest
from queue_examples import queue
from queue_files import journal, snapshot

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.fallback_source import MAX_SNAPSHOT_AGE_S, FallbackQueueSource
from slurm_energy.slurm.queue.table_source import QueueTableSource, journal_path

TAKEN_S = 1_795_000_000.0


class Squeue:
    """Stand-in for squeue: a source of a queue with one job.

    The source can be made to fail, and it counts its calls.
    """

    def __init__(self):
        self.error, self.count = None, 0

    def read(self):
        self.count += 1
        if self.error:
            raise UnavailableError("squeue", self.error)
        return queue({"job_id": 99})


@pytest.fixture
def lost(tmp_path):
    """A reader of the job queue whose main source is a valid file written by Slurm's plugin.

    The tests then damage or delete this file. The attribute `now` of the reader is its clock.
    """
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    squeue = Squeue()
    source = FallbackQueueSource(QueueTableSource(path), squeue, lambda: source.now)
    source.now, source.path, source.squeue = TAKEN_S + 10, path, squeue
    write(path)
    return source


def write(path):
    put(path, snapshot([{"job_id": 1}, {"job_id": 2}], generation=5, taken_unix_ns=int(TAKEN_S * 1e9)))


def put(path, data):
    path.write_bytes(data)
    path.chmod(0o600)


def jobs(source):
    return source.read().job_id.tolist()


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_the_last_queue_is_used_until_it_is_written_again(lost, damage):
    put(journal_path(lost.path), journal([{"job_id": 3}], 5))
    assert (jobs(lost), lost.problem, lost.name) == ([1, 2, 3], None, "queue.table")
    lost.path.unlink() if damage is None else lost.path.write_bytes(damage)
    assert (jobs(lost), lost.squeue.count) == ([1, 2, 3], 0)
    assert lost.problem.endswith("the last table is used until slurmctld writes a new one")
    put(journal_path(lost.path), journal([{"job_id": 4}], 5))
    assert jobs(lost) == [1, 2, 3, 4]
    write(lost.path)
    assert (jobs(lost), lost.problem) == ([1, 2, 4], None)


@pytest.mark.parametrize("generation", [None, 6])
def test_squeue_is_asked_where_the_journal_is_lost_too(lost, generation):
    assert jobs(lost) == [1, 2]
    lost.path.unlink()
    if generation:
        put(journal_path(lost.path), journal([{"job_id": 4}], generation))
    assert (jobs(lost), lost.name) == ([99], "squeue")


def test_squeue_is_asked_when_there_is_no_last_queue_or_an_old_one(lost):
    lost.path.unlink()
    assert (jobs(lost), lost.name) == ([99], "squeue")
    assert "No such file" in lost.problem and "read with squeue" in lost.problem
    write(lost.path)
    assert (jobs(lost), lost.name) == ([1, 2], "queue.table")
    lost.path.unlink()
    put(journal_path(lost.path), journal([{"job_id": 4}], 5))
    assert jobs(lost) == [1, 2, 4]
    lost.now = TAKEN_S + MAX_SNAPSHOT_AGE_S + 1
    assert jobs(lost) == [99]


def test_without_both_the_failure_names_both(lost):
    lost.path.unlink()
    lost.squeue.error = "no answer"
    with pytest.raises(UnavailableError, match=r"queue\.table: No such file.*squeue: no answer"):
        lost.read()
