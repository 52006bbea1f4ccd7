"""Test two C functions of the plugin: the reader of priority.table and the writer of queue.table.

The code runs under sanitizers and without Slurm.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UnavailableError
from slurm_energy.priority import table_file
from slurm_energy.slurm.queue.table_source import QueueTableSource, journal_path

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
DRIVER = Path(__file__).parent / "native" / "tables_driver.c"
GOOD, UNREADABLE, LINK, NOT_PLAIN, UNSAFE, FOREIGN, VERSION, TORN, STALE, AHEAD = map(str, range(10))
NOBODY = 65534
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a table is believed only if it is root's"),
]
ANYWHERE = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    program = tmp_path_factory.mktemp("tables") / "driver"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [PLUGINS / "priority_table.c", PLUGINS / "queue_writer.c", DRIVER]
    subprocess.run(["gcc", *flags, "-I", PLUGINS, "-o", program, *sources], check=True, timeout=60)
    return program


class Plugin:
    """Test process in which the plugin runs and keeps its state from one command to the next."""

    def __init__(self, program: Path, **arguments: object) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([program], text=True, **pipes, **arguments)

    def __call__(self, *words: object) -> list[str]:
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the driver ended"
        return answer.split()

    def close(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def plugin(program):
    plugin = Plugin(program)
    yield plugin
    plugin.close()


@pytest.fixture
def path(tmp_path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path / "priority.table"


@ANYWHERE
@given(jobs=st.dictionaries(st.integers(1, 2**32 - 1), st.integers(-(2**31) + 4, 2**31 - 4), max_size=60))
def test_the_plugin_reads_tables_written_by_python(plugin, path, jobs):
    table_file.write(path, list(jobs), list(jobs.values()), default=-3)
    others = [1, 2, 2**32 - 1, *(job + 1 for job in jobs if job < 2**32 - 1)]
    asked = [*others, *jobs, *sorted(jobs)]
    assert plugin("read", path, *asked) == [GOOD, "1", "-3", *(str(jobs.get(job, "-")) for job in asked)]


def test_the_last_valid_table_stays_when_the_file_becomes_invalid(plugin, path):
    table_file.write(path, [7], [70])
    whole = path.read_bytes()
    assert plugin("read", path, 7)[:4] == [GOOD, "1", "0", "70"]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert plugin("read", path, 7)[:4] == [TORN, "1", "0", "70"]
    path.write_bytes(b"x" * 100)
    assert plugin("read", path, 7)[:4] == [FOREIGN, "1", "0", "70"]
    path.write_bytes(whole[:8] + b"\x63" + whole[9:])
    assert plugin("read", path, 7)[0] == VERSION
    path.unlink()
    assert plugin("read", path, 7)[:4] == [UNREADABLE, "1", "0", "70"]
    table_file.write(path, [7], [71])
    assert plugin("read", path, 7)[:4] == [GOOD, "1", "0", "71"]


def test_an_invalid_table_stays_invalid_until_it_is_read_again(plugin, path):
    """While the plugin has paused after an invalid table, it still reports the table as invalid.

    The plugin pauses after a slow read and reads no table during the pause. If it reported success during
    the pause, it would print a second error message for the same table later.
    """
    table_file.write(path, [7], [70])
    assert plugin("read", path, 7)[:4] == [GOOD, "1", "0", "70"]
    table_file.write(path, range(1, 1 << 20), [9] * ((1 << 20) - 1))
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    result = plugin("read", path, 7)
    assert result[:4] == [TORN, "1", "0", "70"]
    assert plugin("look", path, 7) == result
    table_file.write(path, [7], [71])
    assert plugin("read", path, 7)[:4] == [GOOD, "1", "0", "71"]
    assert plugin("look", path, 7)[:4] == [GOOD, "1", "0", "71"]


def test_a_table_of_slurm_user_is_accepted_if_slurmctld_runs_as_it(program):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        path, driver = Path(folder) / "priority.table", shutil.copy(program, folder)
        Path(driver).chmod(0o755)
        table_file.write(path, [7], [70])
        for owner, trouble in ((0, GOOD), (NOBODY, GOOD), (NOBODY - 1, UNSAFE)):
            os.chown(path, owner, owner)
            done = subprocess.run(
                [driver], input=f"read {path} 7\n", user=NOBODY, capture_output=True, text=True, check=True
            )
            assert done.stdout.split()[0] == trouble


def test_tables_that_other_users_could_write_are_refused(plugin, path, tmp_path):
    table_file.write(path, [7], [70])
    os.chown(path, NOBODY, NOBODY)
    assert plugin("read", path)[0] == UNSAFE
    os.chown(path, 0, 0)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        assert plugin("read", path)[0] == UNSAFE
    path.chmod(0o644)
    target = tmp_path / "elsewhere"
    path.rename(target)
    path.symlink_to(target)
    assert plugin("read", path)[:2] == [LINK, "0"]
    path.unlink()
    os.mkfifo(path)
    assert plugin("read", path)[0] == NOT_PLAIN
    path.unlink()
    path.mkdir()
    assert plugin("read", path)[0] == NOT_PLAIN


@pytest.mark.parametrize("age_s", [61, -90, 2**62, -(2**62)])  # seconds may pass before it is read
def test_a_stale_or_future_table_is_not_used(plugin, path, age_s):
    now = int(time.time())
    table_file.write(path, [7], [70], stale_s=60, written_unix_s=now - age_s)
    assert plugin("read", path, 7)[:2] == [STALE if age_s > 0 else AHEAD, "0"]
    table_file.write(path, [7], [70], stale_s=60, written_unix_s=now - (age_s > 0) * 30)
    assert plugin("read", path, 7)[:2] == [GOOD, "1"]
    table_file.write(path, [7], [71], stale_s=60, written_unix_s=now - age_s)
    assert plugin("read", path, 7)[1:4] == ["1", "0", "70"]  # the last valid one


@pytest.mark.slow
def test_changed_bytes_are_never_accepted(plugin, path, tmp_path):
    table_file.write(path, range(1, 40), range(39))
    assert plugin("fuzz", path, tmp_path / "scratch", 20000) == ["0"]


def test_a_constantly_replaced_table_is_read_completely(plugin, path):
    stop = threading.Event()
    table_file.write(path, range(1, 2000), [1] * 1999)
    written = 0

    def replace() -> None:
        nonlocal written
        while not stop.is_set():
            written += 1
            table_file.write(path, range(1, 2000), [written] * 1999)

    def spoil() -> None:
        """Damage the table for a test: overwrite the file in place, and then cut it off.

        A correct writer never writes in place, but replaces the whole file.
        """
        while not stop.is_set():
            data = table_file.encode(
                range(1, 2000), [-1] * 1999, sequence=time.time_ns(), written_unix_s=time.time()
            )
            with path.open("r+b") as file:
                file.write(data)
                file.truncate(1000)

    threads = [threading.Thread(target=replace), threading.Thread(target=spoil)]
    for thread in threads:
        thread.start()
    believed = torn = 0
    try:
        while not believed:  # the file may have been damaged for as long as both threads were suspended
            believed, found = (int(word) for word in plugin("hammer", path, 3000))
            torn += found
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert torn == 0


@pytest.mark.parametrize(("count", "room"), [(0, 0), (1, 1), (3000, 3000), (3000, 5000), (50, 20)])
def test_python_reads_the_queue_that_the_plugin_wrote(plugin, tmp_path, count, room):
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    assert plugin("write", path, count, room) == ["ok"]
    queue = QueueTableSource(path).read()
    ids = list(range(1, min(count, room) + 1))
    assert queue.job_id.tolist() == ids
    assert queue.name == [f"{job:040}"[: job % 41] for job in ids]
    assert abs(queue.taken_unix_s - time.time()) < 60
    assert [file.name for file in tmp_path.iterdir()] == ["queue.table"]


@pytest.fixture
def while_read(monkeypatch):
    """Return a function that registers an action to run in the middle of a read of the queue file.

    The tests use such actions to change the file while it is read.
    """
    happens, fdopen = [], os.fdopen

    def slow_open(*arguments):
        file = fdopen(*arguments)

        def read(most: int) -> bytes:
            data = file.raw.read(1000)
            happens[0]()
            return data + file.raw.readall()[:most]

        return mock.Mock(wraps=file, read=read, __enter__=lambda me: me, __exit__=lambda *_: file.close())

    monkeypatch.setattr(os, "fdopen", slow_open)
    return happens.append


@pytest.mark.parametrize("times", [1, 99])
def test_a_queue_overwritten_during_a_read_is_read_completely(plugin, tmp_path, while_read, times):
    """A reader gets the complete queue although the plugin overwrites the table during the read.

    The overwrite moves the strings of the table to other offsets, and no checksum covers the strings. The
    reader must therefore notice the change and read again. If the table changes during each read, the read
    fails with an error.
    """
    tmp_path.chmod(0o755)
    path, counts = tmp_path / "queue.table", itertools.count(3001)
    assert plugin("write", path, 3000, 3000) == ["ok"]
    assert plugin("write", path, 3000, 3000) == ["ok"]

    def two_passes() -> None:
        if (count := next(counts)) <= 3000 + times:
            plugin("write", path, 3000, count)
            plugin("write", path, 3000, count)

    while_read(two_passes)
    if times == 1:
        assert QueueTableSource(path).read().name == [f"{job:040}"[: job % 41] for job in range(1, 3001)]
    else:
        with pytest.raises(UnavailableError, match="changed during each read"):
            QueueTableSource(path).read()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["queue.table", "queue.table.spare"]


def _a_link(spare: Path, elsewhere: Path) -> None:
    spare.symlink_to(elsewhere)


def _the_same_file(spare: Path, elsewhere: Path) -> None:
    os.link(elsewhere, spare)


def _of_a_user(spare: Path, elsewhere: Path) -> None:
    spare.write_bytes(b"x" * 10_000)
    spare.chmod(0o600)
    os.chown(spare, NOBODY, NOBODY)


def _a_fifo(spare: Path, elsewhere: Path) -> None:
    os.mkfifo(spare)


def _half_a_snapshot(spare: Path, elsewhere: Path) -> None:
    """Create the files that remain when a slurmctld is killed while it writes the queue table."""
    spare.write_bytes(elsewhere.read_bytes()[:500] + b"x" * 500_000)
    spare.chmod(0o600)


@pytest.mark.parametrize("put", [_a_link, _the_same_file, _of_a_user, _a_fifo, _half_a_snapshot])
def test_the_queue_is_complete_whatever_file_is_in_place_of_the_spare(plugin, tmp_path, put):
    tmp_path.chmod(0o755)
    path, elsewhere = tmp_path / "queue.table", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"y" * 1000)
    elsewhere.chmod(0o600)
    put(path.with_name("queue.table.spare"), elsewhere)
    for count in (30, 20, 40):
        assert plugin("write", path, count, count) == ["ok"]
        assert QueueTableSource(path).read().count == count
        status = path.lstat()
        assert (status.st_uid, status.st_mode, status.st_nlink) == (0, 0o100600, 1)
    assert elsewhere.read_bytes() == b"y" * 1000


def test_the_journal_follows_a_snapshot(plugin, tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    assert plugin("open", path, 5, 7) == ["ok"]  # there is none yet: an empty one is created
    assert QueueTableSource(path).read().job_id.tolist() == [5, 6, 7]
    plugin("write", path, 3, 3)
    assert QueueTableSource(path).read().job_id.tolist() == [1, 2, 3]
    plugin("note", path, 3, 9)
    queue = QueueTableSource(path).read()
    assert queue.job_id.tolist() == list(range(1, 10))
    assert queue.account[8] == "0" * 9
    plugin("open", path, 20, 20)  # a restarted plugin, with the snapshot of the previous one
    assert QueueTableSource(path).read().job_id.tolist() == [1, 2, 3, 20]


def test_a_lost_snapshot_or_journal_is_recreated(plugin, tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    plugin("write", path, 3, 3)
    plugin("note", path, 4, 5)
    source = QueueTableSource(path)
    assert source.read().job_id.tolist() == [1, 2, 3, 4, 5]
    path.unlink()
    plugin("note", path, 6, 6)
    assert source.read_last().job_id.tolist() == [1, 2, 3, 4, 5, 6]
    journal_path(path).unlink()
    plugin("note", path, 7, 7)  # into a new journal: the old one is unlinked
    assert source.read_last().job_id.tolist() == [1, 2, 3, 4, 5, 7]
    plugin("write", path, 8, 8)
    assert source.read().job_id.tolist() == list(range(1, 9))


@pytest.mark.slow
def test_the_journal_is_bounded(plugin, tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    assert plugin("open", path, 1, 60000) == ["ok"]
    assert journal_path(path).stat().st_size <= 8 << 20
    assert QueueTableSource(path).read().count > 10000


def test_the_plugin_reports_unwritable_files(plugin, tmp_path):
    assert plugin("write", tmp_path / "none" / "queue.table", 3, 3)[0] == "error"
    assert plugin("open", tmp_path / "none" / "queue.table", 3, 3)[0] == "error"
    path = tmp_path / "queue.table"
    assert plugin("write", path, 3, 3) == ["ok"]
    path.unlink()
    path.mkdir()
    assert plugin("write", path, 3, 3)[0] == "error"


@pytest.fixture
def small_files(program):
    """A plugin process that cannot write beyond 4096 bytes of a file, as on a full disk.

    The limit ends when the test calls the returned function.
    """

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    plugin = Plugin(program, preexec_fn=limit)
    pid = plugin.process.pid
    everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    yield plugin, lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, everything)
    plugin.close()


def test_after_a_snapshot_without_disk_space_new_jobs_join_the_last_one(plugin, small_files, tmp_path):
    tmp_path.chmod(0o755)
    path = tmp_path / "queue.table"
    assert plugin("write", path, 3, 3) == ["ok"]
    started_again, make_room = small_files
    assert started_again("write", path, 3000, 3000)[0] == "error"
    make_room()
    assert started_again("note", path, 20, 20) == ["ok"]
    assert QueueTableSource(path).read().job_id.tolist() == [1, 2, 3, 20]
