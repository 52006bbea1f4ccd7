"""Test how the simulator reads traces of jobs.

The tests select jobs from traces, compute the offered load, and read damaged, compressed or unusually
encoded files.
"""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples
from scipy.optimize import linprog

from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.simulator.inputs import WorkloadFormat, line_reader, read_workload
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.scenario_schema import TraceSection
from slurm_energy.simulator.workloads.offered_load import offered_load, unit_seconds, with_load
from slurm_energy.simulator.workloads.workload import workload
from slurm_energy.simulator.workloads.workload_statistics import statistics

CSV = "job_id,user,name,partition,account,state,submit_s,time_s,units\n" + "".join(
    f"{i},u{i % 3},train-{i % 2},p{i % 2},a,COMPLETED,{100 * i},{10 + i},{1 + i % 4}\n" for i in range(20)
)
TEXT = "submit_s,time_s,units\n" + "".join(f"{i},10,1\n" for i in range(50))
SACCT = "JobIDRaw|User|Submit|Elapsed|Timelimit|NNodes|AllocTRES|ConsumedEnergy|State|Partition\n"


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def selected(tmp_path, seed=0, **keys):
    return read_workload(put(tmp_path, "w.csv", CSV), ["n"], selection=TraceSection(**keys), seed=seed)


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({"users": ["u1"]}, 7),
        ({"users": ["u[01]"]}, 14),
        ({"users": ["!u1"]}, 13),
        ({"users": ["u.*", "!u1"], "partitions": ["p0"]}, 7),
        ({"names": ["train-1"]}, 10),
        ({"states": ["COMPLETED"], "accounts": ["a"]}, 20),
        ({"begin": "500"}, 15),
        ({"begin": "5m", "end": "10m"}, 3),
        ({"min_units": 2}, 15),
        ({"max_units": 2, "max_time_s": 15.0}, 4),
        ({"max_jobs": 7}, 7),
    ],
)
def test_a_selection_keeps_the_jobs_that_it_describes(tmp_path, keys, count):
    loaded = selected(tmp_path, **keys)
    assert loaded.workload.count == count
    assert [note.startswith(f"[trace] uses {count} of 20 jobs") for note in loaded.notes()] == (
        [True] if count < 20 else []
    )


def test_clipped_jobs_keep_their_power_per_unit(tmp_path):
    path = put(tmp_path, "w.csv", "submit_s,time_s,units,power_watts\n0,100,8,800\n1,5,1,90\n")
    section = TraceSection(max_units=4, max_time_s=60.0, min_time_s=10.0, outliers="clip")
    loaded = read_workload(path, ["n"], selection=section)
    assert list(loaded.workload.units) == [4, 1] and list(loaded.workload.time_s) == [60, 10]
    assert list(loaded.workload.power_watts) == [400, 90]
    assert "max_units, clipped 1" in loaded.notes()[0]


def test_a_sample_depends_on_both_seeds_only(tmp_path):
    def sample(seed, sample_seed):
        return selected(tmp_path, seed, sample=0.5, sample_seed=sample_seed).workload.time_s.tolist()

    assert sample(0, 0) == sample(0, 0) != sample(1, 0) != sample(0, 1)
    assert 0 < len(sample(0, 0)) < 20


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"users": ["("]}, "users: not a regular expression"),
        ({"users": ["nobody"]}, "users: no job is left of 20"),
        ({"qos": ["x"]}, "qos: the workload file has no such column"),
        ({"begin": "yesterday"}, "begin: 'yesterday' is not a time"),
    ],
)
def test_an_impossible_selection_is_one_line(tmp_path, keys, message):
    with pytest.raises(UsageError, match=rf"^\[trace\] {message}"):
        selected(tmp_path, **keys)


def test_dates_bound_the_window_of_sacct_output(tmp_path):
    text = SACCT + "".join(
        f"{d}|ann|2026-01-0{d}T12:00:00|10:00|20:00|2||1.5K|COMPLETED|p\n" for d in range(1, 6)
    )
    path = put(tmp_path, "w.txt", text)
    section = TraceSection(begin="2026-01-02", end="2026-01-04T12:00:00")
    work = read_workload(path, ["n"], selection=section).workload
    assert work.count == 2 and list(work.power_watts) == [2.5, 2.5]


def test_dates_bound_the_window_of_swf_files(tmp_path):
    def swf(name, head):
        rows = "".join(f"{n} {86_400 * n} 5 30 4 -1 -1 4 60 -1 1 7 -1 -1 0 -1 -1 -1\n" for n in range(1, 6))
        return put(tmp_path, name, f"; Version: 2.2\r\n{head}\n;\n{rows}")

    dated = swf("dated.swf", ";  UnixStartTime: 833000000 ")  # 1996-05-25T04:53Z
    late, early = TraceSection(begin="1996-05-28T00:00Z"), TraceSection(end="1996-05-28T00:00Z")
    for section, count in ((late, 3), (early, 2), (TraceSection(begin="2d"), 3)):
        loaded = read_workload(dated, ["n"], selection=section)
        assert loaded.workload.count == count and loaded.workload.submit_s[-1] == 86_400 * (count - 1)
    assert statistics(loaded)["period"]["begin"].startswith("1996-05-28T")
    undated, other = swf("undated.swf", ""), swf("other.swf", "; UnixStartTime: 900000000")
    for paths in ([undated], [dated, other]):
        with pytest.raises(UsageError, match=r"^\[trace\] end: is a date, but the workload files state no"):
            read_workload(paths, ["n"], selection=early)
    assert statistics(read_workload(undated, ["n"]))["period"]["begin"] is None
    how = WorkloadFormat(appended=True)
    assert read_workload([dated, other, undated], ["n"], how, selection=early).workload.count == 2


def test_unix_times_in_swf_files_are_dates_whatever_the_header_states(tmp_path):
    rows = "".join(
        f"{n} {833_000_000 + 86_400 * n} 5 30 4 -1 -1 4 60 -1 1 7 -1 -1 0 -1 -1 -1\n" for n in range(1, 6)
    )
    path = put(tmp_path, "w.swf", f"; UnixStartTime: 833000000\n{rows}")
    loaded = read_workload(path, ["n"], selection=TraceSection(end="1996-05-28T00:00Z"))
    assert loaded.workload.count == 2
    assert statistics(loaded)["period"]["begin"].startswith("1996-05-26T")


def test_sacct_sizes_with_suffixes_and_gpus(tmp_path):
    text = (
        SACCT
        + "1|ann|2026-01-01T00:00:00|1-00:00:10|UNLIMITED|1.50K|cpu=4,gres/gpu=3,node=1|2M|CANCELLED by 5|p\n"
    )
    path = put(tmp_path, "w.txt", text)
    work = read_workload(path, ["n"], selection=TraceSection(states=["CANCELLED"])).workload
    assert (
        work.units[0] == 1500
        and work.time_s[0] == 86410
        and work.power_watts[0] == pytest.approx(2e6 / 86410)
    )
    assert read_workload(path, ["n"], WorkloadFormat(units="gpus")).workload.units[0] == 3


def test_gpus_that_slurm_counts_only_by_type(tmp_path):
    row = "1|ann|2026-01-01T00:00:00|60|5:00|1|cpu=4,gres/gpu:a100=2,gres/gpu:h100=1,gres/nic:x=9||FAILED|p\n"
    gpus = WorkloadFormat(units="gpus")
    assert read_workload(put(tmp_path, "w.txt", SACCT + row), ["n"], gpus).workload.units[0] == 3
    job = {"job_id": 1, "time": {"submission": 5, "elapsed": 60}}
    names = {"gpu:a100": 2, "gpu:h100": 1, "nic:x": 9}
    allocated = [{"type": "gres", "name": name, "count": count} for name, count in names.items()]
    text = json.dumps({"jobs": [job | {"tres": {"allocated": allocated}}]})
    assert read_workload(put(tmp_path, "w.json", text), ["n"], gpus).workload.units[0] == 3


def test_licenses_and_gpus_come_from_the_same_column(tmp_path):
    head = "JobIDRaw|Submit|ElapsedRaw|NNodes|AllocTRES|ReqTRES\n"
    tres = "|cpu=4,gres/gpu=3|cpu=4,gres/gpu=2,license/matlab=5\n"
    path = put(tmp_path, "w.txt", f"{head}1|2026-01-01T00:00:00|60|1{tres}")
    for units, size in (("nodes", 1), ("gpus", 3)):
        work = read_workload(path, ["n"], WorkloadFormat(units=units)).workload
        assert work.license_names == ("matlab",) and work.licenses[0, 0] == 5 and work.units[0] == size


def test_a_dot_marks_a_step_only_in_the_job_id(tmp_path):
    head, times = "User|Submit|ElapsedRaw|NNodes\n", "|2026-01-01T00:00:00|600|1\n"
    path = put(tmp_path, "w.txt", f"{head}ann.smith{times}bob{times}")
    assert read_workload(path, ["n"]).workload.users == ("ann.smith", "bob")
    path = put(tmp_path, "steps.txt", f"JobID|{head}7|ann.smith{times}7.0|{times}")
    assert read_workload(path, ["n"]).workload.users == ("ann.smith",)


def test_several_files_are_merged_on_one_clock_or_appended(tmp_path):
    first = put(tmp_path, "a.csv", "submit_s,time_s,units,user\n100,1,1,ann\n200,2,1,bob\n")
    second = put(tmp_path, "b.csv", "submit_s,time_s,units,deadline_s\n150,3,1,500\n")
    work = read_workload([first, second], ["n"]).workload
    assert list(work.submit_s) == [0, 50, 100] and list(work.time_s) == [1, 3, 2]
    assert work.deadline_s[1] == 400 and work.users == ("ann", "bob", "nobody")
    work = read_workload([first, second], ["n"], WorkloadFormat(appended=True)).workload
    assert list(work.submit_s) == [0, 100, 100] and work.deadline_s[2] == 450


def test_dates_bound_the_window_of_appended_files(tmp_path):
    def dump(name, *days):
        rows = "".join(f"{day[1:]}|ann|2026-{day}T12:00:00|10:00|20:00|2|||COMPLETED|p\n" for day in days)
        return put(tmp_path, name, SACCT + rows)

    paths = [dump("first.txt", "01-01", "01-03"), dump("second.txt", "07-09")]
    for keys, count in (({"begin": "2026-01-02"}, 2), ({"end": "2026-01-02"}, 1)):
        how, section = WorkloadFormat(appended=True), TraceSection(**keys)
        assert read_workload(paths, ["n"], how, selection=section).workload.count == count


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(1, 1e4), st.integers(1, 9)), min_size=2, max_size=20),
    st.floats(0.01, 20),
)
@example([(0.0, 1.0, 9), (1.0, 1.0, 9)], 1.0)
@examples(50)
def test_the_offered_load_is_reached(tmp_path_factory, jobs, load):
    text = "submit_s,time_s,units,deadline_s\n" + "".join(f"{s!r},{t!r},{u},{s + t!r}\n" for s, t, u in jobs)
    work = read_workload(put(tmp_path_factory.getbasetemp(), "load.csv", text), ["n"]).workload
    units = np.array([8])
    if work.submit_s[-1] < 1e-6 or not np.any(np.isfinite(unit_seconds(work, units))):
        with pytest.raises(UsageError, match=r"^workload\.load: "):
            with_load(work, units, load)
        return
    scaled = with_load(work, units, load)
    assert offered_load(scaled, units) == pytest.approx(load, rel=1e-6)
    np.testing.assert_allclose(
        scaled.deadline_s - scaled.submit_s, work.deadline_s - work.submit_s, atol=1e-3
    )
    assert np.all(np.diff(scaled.submit_s) >= 0) and np.array_equal(scaled.time_s, work.time_s)


def optimum(seconds, units):
    """Return the lowest utilisation that the busiest kind of nodes can have, by linear programming.

    The work of each job may be divided between the kinds of nodes.
    """
    count, kinds = seconds.shape
    use = np.zeros((kinds, count * kinds + 1))
    for kind in range(kinds):
        use[kind, kind:-1:kinds] = np.where(np.isfinite(seconds), seconds, 0.0)[:, kind] / units[kind]
    use[:, -1] = -1
    whole = np.zeros((count, count * kinds + 1))
    for job in range(count):
        whole[job, job * kinds : (job + 1) * kinds] = 1
    bounds = [(0, 1 if math.isfinite(value) else 0) for value in seconds.ravel()] + [(0, None)]
    goal = np.append(np.zeros(count * kinds), 1.0)
    return linprog(goal, use, np.zeros(kinds), whole, np.ones(count), bounds).fun


@pytest.mark.parametrize("seed", range(6))
def test_the_load_of_several_kinds_is_the_least_possible_utilisation(seed):
    random = np.random.default_rng(seed)
    count, kinds = int(random.integers(1, 40)), int(random.integers(2, 5))
    seconds = np.exp(random.normal(0, 1.5, (count, kinds)))
    seconds[random.random((count, kinds)) < 0.3] = np.inf
    seconds[np.arange(count), random.integers(0, kinds, count)] = 1.0
    units = random.integers(1, 50, kinds)
    work = workload(
        np.arange(count + 1) * kinds,
        {"submit_s": np.linspace(0.0, 10.0, count) if count > 1 else [0.0]},
        {
            "units": np.where(np.isfinite(seconds), 1, 100).ravel(),  # too large for the kind
            "time_s": np.where(np.isfinite(seconds), seconds, 1.0).ravel(),
            "hardware": np.tile(np.arange(kinds), count),
        },
    )
    if count > 1:
        least = optimum(seconds, units) / 10.0
        assert least * (1 - 1e-9) <= offered_load(work, units) <= least * 1.01


def test_a_load_of_one_does_not_count_all_jobs_on_the_few_fastest_gpus():
    """The offered load of jobs counts all GPUs, not only the few fastest ones.

    The load is 1 if the GPUs can just complete the jobs that arrive. In the test, one GPU is fast, and
    nine slow GPUs take twice the time. Together they complete 5.5 jobs per second. Jobs arrive at this
    rate, so the load is 1.
    """
    work = workload(
        np.arange(56) * 2,
        {"submit_s": np.linspace(0.0, 10.0, 55)},
        {"units": np.ones(110), "time_s": np.tile([1.0, 2.0], 55), "hardware": np.tile([0, 1], 55)},
    )
    assert offered_load(work, np.array([1, 9])) == pytest.approx(1.0, rel=0.01)


def test_more_rows_than_the_bound_are_refused(tmp_path):
    text = "submit_s,time_s,units\n" + "0,1,1\n" * 50
    csv = put(tmp_path, "w.csv", text)
    swf = put(tmp_path, "w.swf", "1 0 0 10 2 -1 -1 2 20 -1 1 1 1 -1 1 -1 -1 -1\n" * 50)
    for files in ([csv], [swf], [csv, swf]):
        with pytest.raises(UsageError, match="more than 49 rows"):
            read_workload(files, ["n"], WorkloadFormat(max_rows=49))
    assert read_workload(csv, ["n"], WorkloadFormat(max_rows=50)).workload.count == 50


ENCODED = {
    "utf-8-sig": TEXT.encode("utf-8-sig"),
    "utf-16": TEXT.encode("utf-16"),
    "utf-16-be": TEXT.encode("utf-16-be"),
    "utf-16-le": TEXT.encode("utf-16-le"),
    "utf-32": TEXT.encode("utf-32"),
    "crlf": TEXT.replace("\n", "\r\n").encode(),
    "cr": TEXT.replace("\n", "\r").encode(),
    "semicolons": TEXT.replace(",", ";").encode(),
    "tabs": TEXT.replace(",", "\t").encode(),
    "quoted": TEXT.replace(",10,", ',"10",').encode(),
    "gzip": gzip.compress(TEXT.encode()),
    "bzip2": bz2.compress(TEXT.encode()),
    "xz": lzma.compress(TEXT.encode()),
    "gzip of utf-16": gzip.compress(TEXT.encode("utf-16")),
}


@pytest.mark.parametrize("form", ENCODED)
def test_every_encoding_and_compression_gives_the_same_jobs(tmp_path, form):
    loaded = read_workload(put(tmp_path, "w.csv", ENCODED[form]), ["n"], strict=True)
    assert loaded.workload.submit_s.tolist() == list(range(50)) and loaded.notes() == []


def test_zstandard(tmp_path):
    path = put(tmp_path, "w.csv.zst", b"\x28\xb5\x2f\xfd" + b"x" * 20)
    if importlib.util.find_spec("zstandard") is None:
        with pytest.raises(EnergyError, match=r"needs the package zstandard: .*zstd -d w.csv.zst"):
            read_workload(path, ["n"])
        pytest.skip("the package zstandard is not installed")
    import zstandard

    path.write_bytes(zstandard.compress(TEXT.encode()))
    assert read_workload(path, ["n"]).workload.count == 50


def test_the_lines_before_a_damage_are_used(tmp_path):
    text = "submit_s,time_s,units\n" + "".join(f"{i},{i * 7919 % 1009 + 1},1\n" for i in range(40_000))
    whole = gzip.compress(text.encode())
    loaded = read_workload(put(tmp_path, "w.csv.gz", whole[: len(whole) // 2]), ["n"])
    assert 5_000 < loaded.workload.count < 35_000
    assert any("the compressed data are damaged here" in note for note in loaded.notes())


@pytest.mark.slow
def test_compressed_blank_lines_take_no_objects_and_count_as_lines(tmp_path):
    blank = 20 << 20
    content = b"submit_s,time_s,units\n0,10,1\n" + b"\n" * blank + b"5,6\n7,20,1\n"
    path = put(tmp_path, "w.csv.gz", gzip.compress(content, 1))
    loaded = read_workload(path, ["n"])
    assert loaded.workload.submit_s.tolist() == [0, 7]
    assert any(f":{blank + 3}" in note for note in loaded.notes()), loaded.notes()
    assert sum(len(lines) for _, lines in line_reader.line_blocks(path, InputProblems(path))) < 10_000


LINES = {
    b"x" * (line_reader.MAX_LINE_BYTES + 5) + b"\n": "longer than 1048576 bytes",
    b"\0\1\2,\0\n": "not text: it contains a NUL byte",
    b'1,"2,3\n': "a quotation mark is not closed",
    b'1,"2"x,3\n': "not CSV",
    b"5,6\n": "not as many columns",
    b"1e300,10,1\n": "the time of submission is beyond",
    b"253402300799,10,1\n": "the time of submission is beyond 1e.11 s$",
    b"1,-5,1\n": "the run time is negative",
    b"1,nan,1\n": "the run time is missing",
    b"1,inf,1\n": "the run time is infinite",
    b"1,5,2.5\n": "the size is not a whole number",
    b"1,5,1" + b"0" * 400 + b"\n": "the size is above",
    b"1,5,0x10\n": "units is not a number",
}


@pytest.mark.parametrize("line", LINES)
def test_a_bad_line_is_skipped_with_file_and_line(tmp_path, line):
    path = put(tmp_path, "w.csv", TEXT.encode() + line + b"60,10,1\n")
    loaded = read_workload(path, ["n"])
    assert loaded.workload.count == 51 and loaded.problems.skipped == 1
    (note,) = loaded.notes()
    assert note.startswith(f"{path}:52: ")
    assert re.search(LINES[line], note)


def test_bytes_that_are_not_utf_8_are_replaced_and_reported(tmp_path):
    text = b"submit_s,time_s,units,user\n1,2,3,J\xf6rg\n"
    loaded = read_workload(put(tmp_path, "w.csv", text), ["n"])
    assert loaded.workload.users == ("J\ufffdrg",)
    assert loaded.notes()[0].endswith(":2: bytes that are not UTF-8 are replaced")


def test_milliseconds_are_recognised(tmp_path):
    path = put(tmp_path, "w.csv", "submit_s,time_s,units\n1700000000000,60000,1\n1700000060000,60000,1\n")
    with pytest.raises(UsageError, match=r"milliseconds\? set time_scale = 0.001"):
        read_workload(path, ["n"])
    assert list(read_workload(path, ["n"], WorkloadFormat(time_scale=1e-3)).workload.submit_s) == [0, 60]


def test_a_wrong_date_does_not_stretch_the_simulation(tmp_path):
    lines = "".join(f"{1.7e9 + i},10,1\n" for i in range(300))
    path = put(tmp_path, "w.csv", "submit_s,time_s,units\n" + lines + "0,10,1\n9e9,10,1\n")
    loaded = read_workload(path, ["n"])
    assert loaded.workload.count == 300 and loaded.workload.submit_s[-1] == 299
    assert any(":302: submitted more than a year" in note for note in loaded.notes())


def test_repeated_jobs_are_skipped_and_reused_ids_reported(tmp_path):
    text = "job_id,submit_s,time_s,units\n1,0,5,1\n2,1,5,1\n1,0,5,1\n2,9,7,1\n3,3,3,1\n3,3,2,2\n"
    path = put(tmp_path, "w.csv", text)
    loaded = read_workload([path, path], ["n"])
    assert loaded.workload.count == 4 and list(np.diff(loaded.workload.first)) == [1, 1, 2, 1]
    assert loaded.problems.skipped == 1 + 6
    assert f"{path}:4: the same job as on an earlier line (and 6 more)" in loaded.notes()
    assert f"{path}:5: the job id occurs before: taken as another job" in loaded.notes()


def test_jobs_of_the_same_id_are_shapes_of_one_job_only_with_the_same_user_and_submission(tmp_path):
    lines = ["5,ann,0,600,1", "5,ann,0,400,2", "5,bob,0,400,2", "5,bob,90000,7200,4"]
    text = "\n".join(["job_id,user,submit_s,time_s,units", *lines])
    loaded = read_workload(put(tmp_path, "w.csv", text), ["n"])
    work = loaded.workload
    assert list(np.diff(work.first)) == [2, 1, 1] and list(work.time_s) == [600, 400, 400, 7200]
    assert [work.users[user] for user in work.user] == ["ann", "bob", "bob"]
    assert loaded.notes()[0].endswith(":4: the job id occurs before: taken as another job (and 1 more)")


def damaged(draw, content: bytes) -> bytes:
    """Return a file content with random damage: bytes are replaced, removed, inserted or cut off."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 6))):
        position = draw(st.integers(0, max(0, len(data) - 1)))
        change = draw(st.sampled_from(["byte", "cut", "insert", "drop"]))
        if change == "byte" and data:
            data[position] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[position:]
        elif change == "insert":
            extra = [b'"', b"\n", b",", b"|", b"\0", b"1e999", b"-", b"nan", b"\xff", b"[", b"{", b"9" * 400]
            data[position:position] = draw(st.sampled_from(extra))
        else:
            del data[position : position + draw(st.integers(1, 9))]
    return bytes(data)


EXAMPLES = {
    "w.swf": b"; c\n" + b"1 10 -1 100 4 -1 -1 4 60 -1 1 7 -1 -1 0 2 -1 -1\n" * 3,
    "w.csv": CSV[:400].encode(),
    "w.txt": (SACCT + "7|ann|2026-01-01T00:00:00|100|2|3|cpu=1|60K|FAILED|p\n" * 2).encode(),
    "w.json": b'{"jobs": [{"job_id": 5, "user": "a", "allocation_nodes": 2, '
    b'"state": {"current": ["FAILED"]}, "time": {"submission": 1, "elapsed": {"set": true, "number": 60}, '
    b'"limit": 10}}, {"job_id": 6}]}',
    "w.csv.gz": gzip.compress(CSV.encode()),
    "w.csv.xz": lzma.compress(CSV.encode()),
}


@given(st.data())
@examples(200)
def test_a_damaged_file_gives_a_workload_or_one_line(tmp_path_factory, data):
    name = data.draw(st.sampled_from(sorted(EXAMPLES)))
    path = put(tmp_path_factory.getbasetemp(), name, damaged(data.draw, EXAMPLES[name]))
    units = data.draw(st.sampled_from(["nodes", "cpus", "gpus"]))
    try:
        loaded = read_workload(path, ["n"], WorkloadFormat(units=units))
    except EnergyError as error:
        assert len(error.lines) == 1 and "\n" not in str(error)
    else:
        work = loaded.workload
        assert work.count > 0 and np.all(np.isfinite(work.submit_s)) and np.all(work.time_s > 0)
        assert all(note.startswith(f"{path}:") for note in loaded.notes())


@pytest.mark.slow
def test_a_line_without_end_takes_bounded_memory(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(TEXT.encode())
        for _ in range(100):
            file.write(b"9" * (1 << 20))
    tracemalloc.start()
    loaded = read_workload(path, ["n"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert loaded.workload.count == 50 and peak < 60 << 20
    assert "longer than" in loaded.notes()[0]


def test_partitions_and_qos_become_columns(tmp_path):
    text = (
        SACCT
        + "1|a|2026-01-01T00:00:00|10|5|1|||COMPLETED|gpu\n2|a|2026-01-01T00:00:01|10|5|1|||COMPLETED|\n"
    )
    work = read_workload(put(tmp_path, "w.txt", text), ["n"]).workload
    assert work.partitions == ("gpu",) and list(work.partition) == [0, -1] and list(work.qos) == [-1, -1]
