"""Tests of the two files that senergyctld and slurmctld's plugin exchange.

senergyctld writes the priority table for the plugin, and reads the queue that the plugin wrote. The tests
check the Python code.
"""

from __future__ import annotations

import math
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_files import entry, header, journal, record, snapshot

from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.priority import table_file
from slurm_energy.slurm.queue.columns import PENDING, RUNNING
from slurm_energy.slurm.queue.table_layout import (
    ENTRY,
    HEADER,
    HELD,
    JOURNAL,
    NODE_CPUS_SHIFT,
    REQUEUE,
    SNAPSHOT,
    checksum,
)
from slurm_energy.slurm.queue.table_source import QueueTableSource, journal_path

ANYWHERE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
IDS = st.lists(st.integers(1, 2**32 - 1), unique=True, max_size=50)
FACTORS = st.integers(-table_file.MAX_ABS_SITE_FACTOR, table_file.MAX_ABS_SITE_FACTOR)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "queue.table"


def put(path: Path, data: bytes) -> QueueTableSource:
    path.write_bytes(data)
    path.chmod(0o600)
    return QueueTableSource(path)


def parsed(data: bytes):
    head = np.frombuffer(data, table_file.HEADER, 1)[0]
    return head, np.frombuffer(data, table_file.ENTRY, int(head["count"]), table_file.HEADER.itemsize)


@given(ids=IDS, data=st.data())
def test_a_priority_table_has_each_job_once_in_order_and_a_true_checksum(ids, data):
    factors = data.draw(st.lists(FACTORS, min_size=len(ids), max_size=len(ids)))
    written = table_file.encode(ids, factors, sequence=7, written_unix_s=1000.9, stale_s=60, default=-5)
    head, entries = parsed(written)
    assert head["magic"] == b"SENERGYP"
    assert (int(head["sequence"]), int(head["end"]), int(head["written_unix_s"])) == (7, 7, 1000)
    assert (int(head["stale_s"]), int(head["default"]), len(written)) == (60, -5, 64 + 8 * len(ids))
    assert [tuple(row) for row in entries.tolist()] == sorted(zip(ids, factors, strict=True))
    words = np.frombuffer(written, "<u8").copy()
    words[table_file.HEADER.fields["checksum"][1] // 8] = 0
    assert checksum(words) == int(head["checksum"])


@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30), data=st.data())
def test_one_changed_word_changes_the_checksum(words, data):
    at = data.draw(st.integers(0, len(words) - 1))
    changed = list(words)
    changed[at] = data.draw(st.integers(0, 2**64 - 1).filter(lambda word: word != words[at]))
    assert checksum(np.array(words, np.uint64)) != checksum(np.array(changed, np.uint64))


@pytest.mark.parametrize(
    ("ids", "factors"), [([1, 1], [2, 3]), ([1], [1, 2]), ([0], [1]), ([1], [2**31]), ([2**32], [1])]
)
def test_tables_beyond_the_plugins_limits_are_refused(ids, factors):
    with pytest.raises(ValueError, match=r"job|site factor"):
        table_file.encode(ids, factors, sequence=1, written_unix_s=0)


def test_a_table_is_replaced_atomically_and_readable_by_all(tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "made" / "priority.table"
    table_file.write(path, [3, 1], [10, 20])
    first = path.open("rb")
    table_file.write(path, [3], [30], stale_s=12, default=15)
    assert [row.tolist() for row in parsed(first.read())[1]] == [(1, 20), (3, 10)]
    head, entries = parsed(path.read_bytes())
    assert (entries.tolist(), int(head["default"]), int(head["stale_s"])) == ([(3, 30)], 15, 12)
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]
    first.close()


def test_no_table_is_written_where_others_could_replace_it(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="no write permission for others"):
        table_file.write(tmp_path / "priority.table", [1], [1])
    with pytest.raises(UnavailableError, match="priority table"):
        table_file.write(tmp_path / "none" / "below" / "priority.table", [1], [1])


JOB = {
    "job_id": 12,
    "uid": 0,
    "bits": REQUEUE | 64 << NODE_CPUS_SHIFT,
    "submit": 100,
    "time_limit_min": 30,
    "nodes": 2,
    "cpus": 8,
    "name": "näme",
    "account": "lab",
    "partition": "a,b",
    "qos": "normal",
    "reason": "Priority",
    "tres": "cpu=8,mem=4G,node=2,gres/gpu=4",
    "gres": "node=gres:gpu:a100:2",
    "flags": "ENERGY_POLICY=edp\nENERGY_CAP=200\nPATH=/evil",
    "shares_norm": 0.25,
    "site_factor": 0x80000000 + 700,
    "nice": 0x80000000 - 5,
}


def test_a_snapshot_becomes_columns(place):
    other = {"job_id": 13, "state": RUNNING, "bits": HELD, "uid": 2**32 - 7, "array_task_id": 4, "name": "x"}
    queue = put(place, snapshot([JOB, other], taken_unix_ns=5 * 10**9, gap=24)).read()
    assert (queue.count, queue.taken_unix_s, queue.job_id.tolist()) == (2, 5.0, [12, 13])
    assert queue.state.tolist() == [PENDING, RUNNING]
    assert (queue.held_cpus.tolist(), queue.memory_mib.tolist()) == ([2 * 64, 0], [4096, 0])
    assert (queue.held.tolist(), queue.requeue.tolist()) == ([False, True], [True, False])
    assert queue.array_task_id.tolist() == [-1, 4]
    assert (queue.site_factor.tolist(), queue.nice.tolist()) == ([700, 0], [-5, 0])
    assert queue.time_limit_s[0] == 1800
    assert (queue.submit_s[0], math.isnan(queue.submit_s[1]), queue.shares_norm[0]) == (100, True, 0.25)
    assert queue.user == ["root", str(2**32 - 7)]
    assert queue.name == ["näme", "x"]
    assert (queue.account[0], queue.partition[0], queue.qos[0]) == ("lab", "a,b", "normal")
    assert (queue.reason[0], queue.gpus.tolist(), queue.gpu_kind) == ("Priority", [4, 0], ["a100", ""])
    assert queue.flags == [{"ENERGY_POLICY": "edp", "ENERGY_CAP": "200"}, {}]


@pytest.mark.parametrize(
    ("tres", "gres", "gpus", "kind"),
    [
        ("cpu=1", "node=gpu:2", 4, ""),
        ("cpu=1", "job=gres/gpu:h100:3", 3, "h100"),
        ("cpu=1", "task=gres:gpu", 6, ""),
        ("cpu=1", "job=gres:gpu:a100:1,gres:gpu:h100:2", 3, "a100"),
        ("gres/gpu=5,gres/gpu:a100=5", "node=gres:gpu:2", 5, "a100"),
        ("", "node=gres:fpga:2", 0, ""),
        ("", "node=gres:gpumem:4000,gres:nogpu:8", 0, ""),
        ("", "node=gres:gpu:1g.5gb:3", 6, "1g.5gb"),
    ],
)
def test_requested_gpus_are_counted_over_all_nodes(place, tres, gres, gpus, kind):
    job = {"job_id": 1, "nodes": 2, "processes": 6, "tres": tres, "gres": gres}
    queue = put(place, snapshot([job])).read()
    assert (queue.gpus.tolist(), queue.gpu_kind) == ([gpus], [kind])


def test_the_journal_adds_and_changes_jobs(place):
    source = put(place, snapshot([JOB, {"job_id": 13, "name": "thirteen"}], generation=4))
    before = source.signature()
    put(journal_path(place), journal([{"job_id": 14, "name": "é"}, JOB | {"name": "new"}], generation=4))
    queue = source.read()
    assert (queue.job_id.tolist(), queue.name) == ([12, 13, 14], ["new", "thirteen", "é"])
    assert source.signature() != before


def test_a_journal_of_another_snapshot_is_ignored(place):
    source = put(place, snapshot([JOB], generation=4))
    for generation in (3, 5):
        put(journal_path(place), journal([{"job_id": 14}], generation=generation))
        assert source.read().job_id.tolist() == [12]


def test_a_truncated_journal_counts_up_to_its_end(place):
    source = put(place, snapshot([]))
    whole = journal([{"job_id": 1, "name": "first"}, {"job_id": 2, "name": "second"}])
    first = len(journal([{"job_id": 1, "name": "first"}]))
    for length in range(len(whole) + 1):
        put(journal_path(place), whole[:length])
        expected = [1, 2] if length == len(whole) else [1] if length >= first else []
        assert source.read().job_id.tolist() == expected


def test_a_snapshot_cut_off_anywhere_is_unavailable(place):
    whole = snapshot([JOB, {"job_id": 13, "name": "x"}])
    for length in range(len(whole)):
        with pytest.raises(UnavailableError):
            put(place, whole[:length]).read()


def _readable(source: QueueTableSource) -> None:
    try:
        queue = source.read()
    except UnavailableError as error:
        assert "\n" not in str(error)
    else:
        assert queue.count == len(queue.name) == len(queue.flags)


@ANYWHERE
@given(data=st.binary(max_size=400))
def test_any_bytes_are_a_queue_or_unavailable(place, data):
    _readable(put(place, data))
    put(place, snapshot([JOB]))
    put(journal_path(place), header(JOURNAL, 1).tobytes() + data)
    assert QueueTableSource(place).read().job_id.tolist() == [12]


NAMED = st.lists(st.tuples(st.integers(1, 4), st.text("aé", max_size=9)), max_size=5)


@ANYWHERE
@given(steps=st.lists(st.tuples(NAMED, st.booleans(), st.integers(4, 5), st.integers(0, 40)), max_size=6))
def test_a_reread_journal_equals_a_first_read(place, steps):
    """A reader that reads a changed journal again returns the same jobs as a new reader.

    The journal contains the changes of the queue since a snapshot. Between the two readings, the journal
    has grown, was truncated, or was replaced by another journal of the same snapshot.
    """
    source, jobs = put(place, snapshot([JOB], generation=4)), []
    for more, anew, generation, cut in steps:
        jobs = ([] if anew else jobs) + [{"job_id": job, "name": name} for job, name in more]
        whole = journal(jobs, generation)
        put(journal_path(place), whole[: len(whole) - cut])
        again, fresh = source.read(), QueueTableSource(place).read()
        assert (again.job_id.tolist(), again.name) == (fresh.job_id.tolist(), fresh.name)


def _numbers() -> st.SearchStrategy[dict[str, int]]:
    wide = {"<i8": (-(2**63), 2**63 - 1), "<u8": (0, 2**64 - 1)}
    fields = {
        name: ENTRY.fields[name][0].str for name in ENTRY.names if name not in ("lengths", "shares_norm")
    }
    numbers = {name: st.integers(*wide.get(kind, (0, 2**32 - 1))) for name, kind in fields.items()}
    return st.fixed_dictionaries({}, optional=numbers)


@ANYWHERE
@given(values=_numbers())
def test_any_numbers_with_true_checksums_are_columns_or_unavailable(place, values):
    place.with_name("queue.table.new").unlink(missing_ok=True)
    _readable(put(place, snapshot([JOB, {"job_id": 3} | values])))
    put(place, snapshot([JOB]))
    put(journal_path(place), journal([{"job_id": 3} | values]))
    _readable(QueueTableSource(place))


@ANYWHERE
@given(text=st.binary(max_size=200), lengths=st.lists(st.integers(0, 65535), min_size=8, max_size=8))
def test_any_strings_are_columns_or_unavailable(place, text, lengths):
    row, _ = entry(5)
    row["lengths"] = lengths
    whole = bytearray(snapshot([{"job_id": 5, "name": "n" * len(text)}]))
    whole[len(whole) - len(text) :] = text
    _readable(put(place, bytes(whole)))
    head = np.frombuffer(bytes(whole[:72]), header(1, 1).dtype).copy()
    head["checksum"] = 0
    head["checksum"] = checksum(np.frombuffer(head.tobytes() + row.tobytes(), "<u8"))
    _readable(put(place, head.tobytes() + row.tobytes() + text))


def test_strings_that_share_their_bytes_are_refused(place):
    """A table whose strings share bytes is refused.

    Otherwise a small file could contain a large number of strings.
    """
    rows = np.concatenate([entry(job, name="n" * 60000)[0] for job in (1, 2, 3)])
    for count in (1, 3):
        start = HEADER.itemsize + count * ENTRY.itemsize
        head = header(SNAPSHOT, 1, count=count, heap_offset=start, heap_bytes=60000)
        head["checksum"] = checksum(np.frombuffer(head.tobytes() + rows[:count].tobytes(), "<u8"))
        source = put(place, head.tobytes() + rows[:count].tobytes() + b"n" * 60000)
        if count == 1:
            assert source.read().name == ["n" * 60000]
        else:
            with pytest.raises(UnavailableError, match="outside"):
                source.read()


def test_only_files_of_slurmctld_are_read(place, tmp_path):
    good = snapshot([JOB])
    with pytest.raises(UnavailableError, match="No such file"):
        QueueTableSource(place).read()
    source = put(place, good)
    place.chmod(0o622)
    with pytest.raises(UnavailableError, match="could have written"):
        source.read()
    target = tmp_path / "elsewhere"
    place.rename(target)
    target.chmod(0o600)
    place.symlink_to(target)
    with pytest.raises(UnavailableError):
        source.read()
    place.unlink()
    os.mkfifo(place, 0o600)
    with pytest.raises(UnavailableError, match="regular file"):
        source.read()


def test_a_name_is_looked_up_once_and_an_unknown_one_again(place, monkeypatch):
    asked = []

    def lookup(uid):
        asked.append(uid)
        if uid == 4_000_001 and len(asked) < 4:
            raise KeyError(uid)
        return SimpleNamespace(pw_name=f"user{uid}")

    monkeypatch.setattr(pwd, "getpwuid", lookup)
    source = put(place, snapshot([JOB | {"uid": 4_000_000}, JOB | {"job_id": 13, "uid": 4_000_001}]))
    users = [source.read().user for _ in range(4)]
    assert users == [["user4000000", "4000001"]] * 2 + [["user4000000", "user4000001"]] * 2
    assert asked == [4_000_000, 4_000_001, 4_000_001, 4_000_001]


def test_finished_jobs_are_not_in_the_queue(place):
    jobs = [{"job_id": 1, "state": 3}, {"job_id": 2}]
    assert put(place, snapshot(jobs)).read().job_id.tolist() == [2]
    assert len(record(JOB)) % 8 == 0
