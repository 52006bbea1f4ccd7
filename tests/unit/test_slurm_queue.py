"""Tests of the reader of the queue (squeue) and of the writer of job changes (scontrol).

The reader gets recorded, truncated and hostile output of squeue. The writer gets replies of scontrol.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import resource
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import RECORDED_DELIMITER, squeue_delimiter, squeue_fields

from slurm_energy.errors import ConfigError, UnavailableError, UsageError
from slurm_energy.slurm.command import command_environment
from slurm_energy.slurm.queue.columns import PENDING, RUNNING
from slurm_energy.slurm.queue.comment_flags import parse_comment_flags
from slurm_energy.slurm.queue.job_update import SITE_FACTOR_MAX, JobUpdater
from slurm_energy.slurm.queue.priority_weights import check_weights
from slurm_energy.slurm.queue.running_jobs import read_job_nodes
from slurm_energy.slurm.queue.squeue_source import SqueueSource

RECORDED = Path(__file__).parent / "slurm_outputs"
RELEASES = ("22.05.8", "26.05.5")
SUBMITTED = {"22.05.8": 1795297140.0, "26.05.5": 1795297144.0}
FIELDS = 34
AWKWARD = "line\nbreak100% `q` ünï"


class Squeue:
    """A stand-in for squeue that prints one text with any delimiter; it stores the calls."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def __call__(self, argv):
        self.calls.append(argv)
        return self.answer.replace(RECORDED_DELIMITER, squeue_delimiter(argv))


def row(**changed):
    """Return one pending job as squeue prints it, with the given columns."""
    values = {"JobID": "7", "ArrayJobID": "7", "UserID": "0", "State": "PENDING", "PriorityLong": "1"}
    values |= {"NumNodes": "1", "NumCPUs": "1", "NumTasks": "1", "Name": "x"} | changed
    squeue = Squeue("")
    SqueueSource(squeue).read()
    names = squeue_fields(squeue.calls[0])
    assert len(names) == FIELDS and set(values) <= set(names)
    return "".join(values.get(name, "N/A") + RECORDED_DELIMITER for name in names) + "\n"


def read(answer, **arguments):
    return SqueueSource(Squeue(answer), **arguments).read()


def answered(release):
    """Return a recorded output of squeue, completed by the fields that the recording lacks.

    The added fields are BatchFlag (all jobs are batch jobs), Licenses and OverSubscribe.
    """
    *fields, rest = (RECORDED / f"squeue-queue-{release}.txt").read_text().split(RECORDED_DELIMITER)
    rows = [fields[at : at + FIELDS - 3] for at in range(0, len(fields), FIELDS - 3)]
    whole = [(*row[:10], "1", *row[10:-2], "(null)", row[-2], "OK", row[-1]) for row in rows]
    return RECORDED_DELIMITER.join([*(field for row in whole for field in row), rest])


@pytest.fixture(params=RELEASES)
def recorded(request):
    text = answered(request.param)
    submitted = SUBMITTED[request.param]
    return submitted, read(text, clock=lambda: submitted + 2)


def of(queue, name, **wanted):
    """Return the index of the queue row of the only job with the given name and values."""
    rows = [
        place
        for place in range(queue.count)
        if queue.name[place] == name and all(getattr(queue, k)[place] == v for k, v in wanted.items())
    ]
    assert len(rows) == 1, (name, wanted, rows)
    return rows[0]


def test_one_squeue_for_the_whole_queue():
    squeue = Squeue("")
    assert SqueueSource(squeue).read().count == 0
    assert len(squeue.calls) == 1 and squeue.calls[0][0] == "squeue"


def test_a_user_is_looked_up_once_a_call_even_if_nobody_knows_him(monkeypatch):
    asked = []
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: asked.append(uid) or {}[uid])
    jobs = "".join(row(JobID=str(job), ArrayJobID=str(job), UserID="4000000") for job in (7, 8, 9))
    source = SqueueSource(Squeue(jobs))
    assert [source.read().user for _ in range(2)] == [["4000000"] * 3] * 2
    assert asked == [4_000_000] * 2


NODES = (
    "NodeName=a CPUAlloc=0 CPUEfctv=64 CPUTot=64 State=IDLE Partitions=cpu,long\n"
    "NodeName=b CPUAlloc=0 CPUEfctv=96 CPUTot=96 State=IDLE Partitions=long\n"
)


def test_jobs_that_take_whole_nodes_hold_their_cpus():
    jobs = [
        row(JobID="1", Partition="cpu", OverSubscribe="OK"),
        row(JobID="2", Partition="cpu", OverSubscribe="NO", NumNodes="3", **{"tres-alloc": "cpu=3,mem=250G"}),
        row(JobID="3", Partition="cpu,long", OverSubscribe="USER"),
        row(JobID="4", Partition="unknown", OverSubscribe="MCS"),
        row(JobID="5", Partition="cpu", OverSubscribe="NO", State="RUNNING"),
    ]
    squeue, now, calls = Squeue("".join(jobs)), [0.0], []

    def run(argv):
        calls.append(argv[0])
        if argv[0] == "sinfo":
            return "slurm 25.11.2\n"
        if argv[0] == "scontrol":
            if now[0] > 1000:
                raise UnavailableError("slurmctld", "it does not answer")
            return NODES
        return squeue(argv)

    source = SqueueSource(run, clock=lambda: now[0])
    for now[0] in (0.0, 15.0, 2000.0):
        queue = source.read()
        assert queue.held_cpus.tolist() == [0, 3 * 64, 96, 0, 0]
    assert queue.memory_mib.tolist() == [0, 250 * 1024, 0, 0, 0]
    assert calls == ["squeue", "sinfo", "scontrol", "squeue", "squeue", "sinfo", "scontrol"]


def test_since_26_05_another_field_says_whether_jobs_take_whole_nodes():
    """From Slurm 26.05 on, the field OverSubscribe no longer shows which jobs take whole nodes.

    Its value is NO even for jobs that share nodes. Another field of squeue is therefore read.
    """
    asked = []

    def run(argv):
        if argv[0] == "sinfo":
            return "slurm-wlm 26.05.5\n"
        if argv[0] == "scontrol":
            return NODES
        fields = squeue_fields(argv)
        asked.append("Exclusive" in fields)
        values = ("NO", "NODE", "TOPO") if asked[-1] else ("NO", "NO", "NO")
        jobs = [
            row(JobID=str(number), Partition="cpu", OverSubscribe=value)
            for number, value in enumerate(values, 1)
        ]
        return "".join(jobs).replace(RECORDED_DELIMITER, squeue_delimiter(argv))

    source = SqueueSource(run, clock=lambda: 0.0)
    assert [source.read().held_cpus.tolist() for _ in range(3)] == [[0, 0, 0], [0, 64, 64], [0, 64, 64]]
    assert asked == [False, True, True]


def test_node_sizes_are_read_only_for_jobs_that_take_whole_nodes():
    squeue = Squeue(row(OverSubscribe="OK"))
    SqueueSource(squeue).read()
    assert len(squeue.calls) == 1


def test_large_user_ids_are_themselves(monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    queue = read(row(UserID="-7") + row(UserID="2147483647"))
    assert queue.uid.tolist() == [2**32 - 7, 2**31 - 1]
    assert queue.user == ["4294967289", "2147483647"]


def test_jobs_of_a_federation_have_places_and_those_of_other_clusters_none():
    asked = []
    answer = f"{63 << 26 | 1} n[1-2]\n7 n3\n8 \n12345678901 n4\n"
    places = read_job_nodes(lambda argv: asked.append(argv) or answer)
    assert places == {63 << 26 | 1: ("n1", "n2"), 7: ("n3",)}
    assert "--local" in asked[0]


def test_no_command_is_sent_to_other_clusters(monkeypatch):
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SQUEUE_SORT", "u")
    assert not {"SLURM_CLUSTERS", "SQUEUE_SORT"} & command_environment().keys()


def test_recorded_queue(recorded):
    submitted, queue = recorded
    assert queue.count == 17
    assert np.count_nonzero(queue.state == RUNNING) == 4
    assert set(queue.submit_s) == {submitted}
    assert set(queue.user) == {"root"} and set(queue.partition) == {"all"} and set(queue.account) == {""}


def test_recorded_held_job_with_deadline_and_flags(recorded):
    submitted, queue = recorded
    job = of(queue, "we|rd name,<x> %j\ttab")
    assert (queue.held[job], queue.dependent[job], queue.reason[job]) == (True, False, "JobHeldUser")
    assert queue.deadline_s[job] == submitted + 3600
    assert (queue.time_limit_s[job], queue.tasks[job], queue.array_job_id[job]) == (180.0, 1, 0)
    assert queue.flags[job] == {"ENERGY_POLICY": "edp", "ENERGY_CAP": "200"}
    assert math.isnan(queue.start_s[job]) and math.isnan(queue.eligible_s[job])


def test_recorded_range_of_nodes_nice_and_no_requeue(recorded):
    job = of(recorded[1], AWKWARD)
    queue = recorded[1]
    assert (queue.nodes[job], queue.cpus[job], queue.nice[job], queue.requeue[job]) == (2, 4, 50, False)
    assert queue.time_limit_s[job] == 26 * 3600 + 240
    assert queue.flags[job] == {}  # text from --comment is no flag


def test_recorded_array_is_one_row(recorded):
    queue = recorded[1]
    job = of(queue, "plain")
    assert (queue.tasks[job], queue.array_task_id[job], queue.array_job_id[job]) == (
        51,
        -1,
        queue.job_id[job],
    )
    running = of(queue, "wrap", array_task_id=1)
    assert queue.state[running] == RUNNING and queue.tasks[running] == 1
    waiting = of(queue, "wrap", tasks=2)
    assert queue.array_job_id[waiting] == queue.array_job_id[running] == queue.job_id[waiting]


def test_recorded_gpus(recorded):
    queue = recorded[1]
    found = {
        (int(gpus), kind, int(nodes))
        for gpus, kind, nodes in zip(queue.gpus, queue.gpu_kind, queue.nodes, strict=True)
        if gpus
    }
    assert found == {(4, "a100", 2), (3, "", 1), (3, "h100", 1)}


def test_recorded_waiting_and_running(recorded):
    submitted, queue = recorded
    begin = of(queue, "het.sh", reason="BeginTime")
    assert queue.dependent[begin] and queue.site_factor[begin] == 5000
    assert queue.eligible_s[begin] == submitted + 3600 and math.isnan(queue.start_s[begin])
    assert queue.dependent[of(queue, "het.sh", reason="Dependency")]
    running = of(queue, "(null)")  # a name that looks like a missing value
    assert queue.site_factor[running] == 7000 and queue.nice[running] == -7
    assert (queue.start_s[running], queue.end_s[running]) == (submitted, submitted + 300)


def test_what_squeue_expects_is_not_what_is(recorded):
    """The planned starts and ends that squeue shows for pending jobs are not stored as facts.

    squeue shows times that backfill has planned for the first pending jobs.
    """
    queue = recorded[1]
    waiting = queue.state == PENDING
    assert np.isnan(queue.start_s[waiting]).all() and np.isnan(queue.end_s[waiting]).all()
    assert "Resources" in queue.reason


def test_a_begin_time_that_has_come_holds_nobody_up():
    begin = row(EligibleTime="1000", Reason="BeginTime")
    for now, dependent in ((999.0, True), (1000.0, False)):
        assert read(begin, clock=lambda now=now: now).dependent.tolist() == [dependent]


def test_recorded_heterogeneous_job(recorded):
    queue = recorded[1]
    leaders = set(queue.het_job_id[queue.het_job_id > 0].tolist())
    assert len(leaders) == 1 and np.count_nonzero(queue.het_job_id) == 2
    assert leaders <= set(queue.job_id.tolist())


def test_slurm_requeues_batch_jobs_alone():
    """Only batch jobs count as jobs that Slurm can requeue.

    squeue also shows Requeue=1 for jobs of salloc and srun, but Slurm does not requeue them.
    """
    queue = read("".join(row(Requeue="1", BatchFlag=flag) for flag in ("0", "1", "2")))
    assert queue.requeue.tolist() == [False, True, True]


def test_no_request_is_too_large_to_be_a_number():
    gpus = ",".join(["gres:gpu:9999999"] * 1000)
    queue = read(row() + row(NumTasks="4294967294", **{"tres-per-task": gpus}))
    assert queue.gpus[0] == 0 < queue.gpus[1]


@given(name=st.text(), state=st.sampled_from(["PENDING", "RUNNING"]))
def test_no_name_breaks_a_row(name, state):
    queue = read(row(JobID="1") + row(JobID="2", Name=name, State=state) + row(JobID="3"))
    assert queue.name[1] == name
    assert queue.job_id.tolist() == [1, 2, 3]


@given(kept=st.integers(0, 4000), release=st.sampled_from(RELEASES))
def test_torn_answer_is_never_half_a_row(kept, release):
    whole = read(answered(release))
    try:
        queue = read(answered(release)[:kept])
    except UnavailableError:
        return
    assert queue.job_id.tolist() == whole.job_id.tolist()[: queue.count]
    assert queue.name == whole.name[: queue.count]


@given(st.lists(st.text(), min_size=FIELDS, max_size=FIELDS))
def test_any_text_is_read_or_refused(fields):
    try:
        queue = read("".join(field + RECORDED_DELIMITER for field in fields))
    except UnavailableError as error:
        assert "\n" not in str(error)
    else:
        assert queue.count <= 1


@given(st.sampled_from(["JobID", "PriorityLong", "Nice", "NumNodes", "UserID"]), st.text(min_size=1))
def test_a_number_that_is_none_is_refused_or_read(column, text):
    try:
        assert read(row(**{column: text})).count == 1
    except UnavailableError as error:
        assert str(error).startswith("squeue: ")


def test_other_states_are_left_out():
    queue = read(row(JobID="1", State="COMPLETING") + row(JobID="2"))
    assert queue.job_id.tolist() == [2] and queue.state.tolist() == [PENDING]


def test_reason_is_one_word():
    queue = read(row(Reason="ReqNodeNotAvail, UnavailableNodes:n1") + row(Reason="None"))
    assert queue.reason == ["ReqNodeNotAvail", ""]


def test_unknown_user_is_its_number():
    assert read(row(UserID="3999999999")).user == ["3999999999"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5:00", 300), ("1:00:00", 3600), ("2-00:00:01", 172801), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_time_limit(text, seconds):
    value = read(row(TimeLimit=text)).time_limit_s[0]
    assert math.isnan(value) if seconds is None else value == seconds


@pytest.mark.parametrize(
    ("columns", "gpus", "kind"),
    [
        ({"tres-alloc": "cpu=2,gres/gpu=4,gres/gpu:a100=4"}, 4, "a100"),
        ({"tres-alloc": "cpu=2,gres/gpu=4", "tres-per-node": "gres:gpu:h100:2"}, 4, "h100"),
        ({"tres-per-node": "gres/gpu:h100:2,craynetwork:1", "NumNodes": "3"}, 6, "h100"),
        ({"tres-per-job": "gres:gpu:a100:1,gres:gpu:h100:2"}, 3, "a100"),
        ({"tres-per-task": "cpu=2,gres/gpu=1", "NumTasks": "5"}, 5, ""),
        ({"tres-per-node": "gres:gpu"}, 1, ""),
        ({"tres-per-node": "gres:gpus:9,xgpu:3,gpu:"}, 0, ""),
    ],
)
def test_gpus(columns, gpus, kind):
    queue = read(row(**columns))
    assert (queue.gpus[0], queue.gpu_kind[0]) == (gpus, kind)


class TestSiteFactor:
    """Tests of how the reader of squeue's output determines the site factors of jobs.

    A site factor is the term of a job's priority that slurm-energy sets. squeue shows only the sum, the
    priority. The reader therefore remembers the site factors that slurm-energy has set. A priority that does
    not fit them was set by an administrator and counts as fixed.
    """

    @given(st.integers(-SITE_FACTOR_MAX, SITE_FACTOR_MAX), st.integers(-10000, 10000))
    def test_applied_factors_are_returned(self, factor, nice):
        priority = max(1, factor - nice)
        queue = read(row(PriorityLong=str(priority), Nice=str(nice)), applied_factors={7: factor})
        assert (queue.site_factor[0], queue.fixed[0], queue.held[0]) == (factor, False, False)

    def test_held_job_keeps_it(self):
        queue = read(row(PriorityLong="0"), applied_factors={7: 5000})
        assert (queue.site_factor[0], queue.fixed[0], queue.held[0]) == (5000, False, True)

    def test_after_a_restart_it_is_read_off(self):
        assert read(row(PriorityLong="4900", Nice="100")).site_factor.tolist() == [5000]

    @pytest.mark.parametrize(("priority", "nice"), [("1", "0"), ("1", "50"), ("7", "-7"), ("0", "0")])
    def test_job_without_one(self, priority, nice):
        assert read(row(PriorityLong=priority, Nice=nice)).site_factor.tolist() == [0]

    def test_priority_of_an_administrator_is_fixed(self):
        queue = read(row(PriorityLong="99"), applied_factors={7: 5000})
        assert queue.fixed.tolist() == [True] and queue.priority.tolist() == [99]

    def test_jobs_that_are_gone_are_forgotten(self):
        applied_factors = {7: 1, 8: 2}
        read(row(), applied_factors=applied_factors)
        assert applied_factors == {7: 1}

    def test_records_of_an_array_or_heterogeneous_job_share_it(self):
        tasks = row(JobID="14", ArrayJobID="2", ArrayTaskID="1", PriorityLong="900")
        queue = read(
            row(JobID="2", ArrayJobID="2", ArrayTaskID="3-5", PriorityLong="0")
            + tasks
            + row(JobID="21", HetJobID="20", PriorityLong="0"),
            applied_factors={2: 900, 20: 800},
        )
        assert queue.site_factor.tolist() == [900, 900, 800]
        assert queue.fixed.tolist() == [False, False, False]
        applied_factors = {2: 900}
        read(tasks, applied_factors=applied_factors)
        assert applied_factors == {2: 900}

    def test_a_failed_reading_forgets_nothing(self):
        applied_factors = {7: 1}
        with pytest.raises(UnavailableError):
            read("torn", applied_factors=applied_factors)
        assert applied_factors == {7: 1}


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", {}),
        ("ENERGY_POLICY=edp", {}),
        ("energy-flags: ENERGY_POLICY=edp", {"ENERGY_POLICY": "edp"}),
        (
            "x; energy-flags: ENERGY_MODEL=a/b:1,2 ENERGY_TAG=t; y",
            {"ENERGY_MODEL": "a/b:1,2", "ENERGY_TAG": "t"},
        ),
        ("energy-flags: ENERGY_TAG=mine; energy-flags: ENERGY_CAP=9", {"ENERGY_CAP": "9"}),
        ("energy-flags: PATH=/evil ENERGY_CAP=$(x) ENERGY_=1", {}),
    ],
)
def test_flags_in_admin_comment(text, flags):
    assert parse_comment_flags(text) == flags


@given(st.text())
def test_any_admin_comment_is_read(text):
    for name, value in parse_comment_flags("energy-flags:" + text).items():
        assert name.startswith("ENERGY_") and value.isascii() and not set(value) & set(" \n;=")


SCONTROL = """\
#!/bin/sh
echo "$$" >>{log}.pids
while read -r line; do
    case $line in
    senergy-*) ;;
    *) echo "$line" >>{log} ;;
    esac
    echo "scontrol: $line"
    case $line in
    senergy-*) echo "invalid keyword: $line" >&2 ;;
    *"JobId=99 "* | *" 99") echo "Invalid job id specified for job 99" >&2 ;;
    *JobId=98*) printf 'Access/permission denied for job 98\\nRequest aborted\\n' >&2 ;;
    *88_4*) echo "88_4: Job is not pending nor running" >&2 ;;
    *97_2*) echo "97_2: Requested operation is presently disabled" >&2 ;;
    *97_3*) echo "97_3: Job has already finished" >&2 ;;
    *JobId=97*) printf '97_1: Job has already finished\n97_2-5: No error\n' >&2 ;;
    *JobId=90*) printf '90_1-2: Job has already finished\n90_3-5: Access/permission denied\n' >&2 ;;
    *JobId=89*) echo "89_1-5: Job has already finished" >&2 ;;
    *"Incomplete 96"*) echo "Unable to contact slurm controller (connect failure) for job 96" >&2 ;;
    *JobId=96*) echo "slurm_update error: Unable to contact slurm controller (connect failure)" >&2 ;;
    *JobId=95*) exit 1 ;;
    *JobId=93*) echo "Unexpected message received for job 93" >&2 ;;
    *JobId=94*) exec sleep 600 ;;
    esac
done
"""


@pytest.fixture
def scontrol(tmp_path):
    """A program in place of scontrol, which replies as scontrol 22.05 and 26.05 do.

    The attribute `log` is the file of its received commands.
    """

    class Scontrol:
        log = tmp_path / "log"
        path = tmp_path / "scontrol"

        @property
        def lines(self):
            return self.log.read_text().splitlines() if self.log.exists() else []

        def updater(self, **arguments):
            return JobUpdater(1e6, command=[str(self.path)], **arguments)

    found = Scontrol()
    found.path.write_text(SCONTROL.format(log=found.log))
    found.path.chmod(stat.S_IRWXU)
    return found


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_one_scontrol_for_a_batch(scontrol):
    applied_factors = {}
    outcome = scontrol.updater(applied_factors=applied_factors).set_site_factors({5: 3000, 4: 2000, 6: -7})
    assert outcome.done == (5, 4, 6) and not outcome.gone and not outcome.refused and not outcome.remaining
    assert scontrol.lines == [
        "update JobId=5 SiteFactor=3000",
        "update JobId=4 SiteFactor=2000",
        "update JobId=6 SiteFactor=-7",
    ]
    assert len(Path(f"{scontrol.log}.pids").read_text().split()) == 1
    assert applied_factors == {5: 3000, 4: 2000, 6: -7}


@pytest.fixture
def many_descriptors():
    """Open more than a thousand files, so that new descriptors have high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in kept:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_daemon_with_many_connections_changes_jobs_too(scontrol, many_descriptors):
    assert scontrol.updater().set_site_factors({5: 3000}).done == (5,)


def test_a_list_of_licenses_that_is_not_valid_does_not_keep_other_jobs_from_theirs(scontrol):
    long = ",".join(f"license{number}" for number in range(150))
    lists = {1: "watts:1", 2: long, 3: "m:'1',watts:3", 98: "watts:5", 4: "watts:2"}
    outcome = scontrol.updater().set_licenses(lists, {job: str(job) for job in lists})
    assert outcome.done == (1, 4) and set(outcome.refused) == {2, 3, 98}
    assert f"{len(long) + 2 * 150} characters" in outcome.refused[2]
    assert scontrol.lines == [f"update JobId={job} Licenses={lists[job]}" for job in (1, 98, 4)]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"m:{'0' * 1020}1,watts:400", "m:1,watts:400"),
        ("m: 1,watts:3", "m:1,watts:3"),
        ("m:\n+2;m=\t0003,m,watts:3", "m:6,watts:3"),
        (f"{'m,' * 600}watts:3", "m:600,watts:3"),
        (f"x@server:1,m:{'0' * 1020}1", "x@server:1,m:1"),
        (f"m:4294967298,n:-4294967295,k:{'0' * 1020}0", "m:2,n:1,k:0"),
    ],
)
def test_padded_lists_of_licenses_keep_their_counts(scontrol, text, plain):
    assert scontrol.updater().set_licenses({1: text}, {1: "1"}).done == (1,)
    assert scontrol.lines == [f"update JobId=1 Licenses={plain}"]


def test_who_is_refused_every_job_does_not_ask_for_all(scontrol):
    outcome = scontrol.updater().set_site_factors(dict.fromkeys(range(9800, 9850), 1))
    assert (len(outcome.refused), outcome.remaining) == (20, tuple(range(9820, 9850)))
    outcome = scontrol.updater().set_site_factors(dict.fromkeys([1, *range(9800, 9850)], 1))
    assert len(outcome.refused) == 50


def test_each_reply_belongs_to_its_job(scontrol):
    applied_factors = {}
    outcome = scontrol.updater(applied_factors=applied_factors).set_site_factors(
        {1: 1, 99: 2, 98: 3, 97: 4, 2: 5}
    )
    assert outcome.done == (1, 97, 2)  # 97 is an array of which one task has ended
    assert outcome.gone == (99,)
    assert outcome.refused == {98: "Access/permission denied for job 98"}
    assert applied_factors == {1: 1, 97: 4, 2: 5}


def test_what_scontrol_says_of_slurm_conf_is_about_no_job(scontrol):
    said = "scontrol: error: Ignoring ControlMachine since SlurmctldHost is set."
    script = scontrol.path.read_text()
    scontrol.path.write_text(script.replace("while read", f'echo "{said}" >&2\nwhile read', 1))
    outcome = scontrol.updater().set_site_factors({1: 1, 98: 2})
    assert (outcome.done, list(outcome.refused)) == ((1,), [98])


def test_an_array_of_which_no_task_was_changed_is_not_done(scontrol):
    applied_factors = {}
    outcome = scontrol.updater(applied_factors=applied_factors).set_site_factors({1: 1, 90: 2, 89: 3})
    assert (outcome.done, outcome.gone) == (
        (1, 89),
        (),
    )  # for array 89, a later release reports only the tasks that have ended
    assert outcome.refused == {90: "Access/permission denied"}
    assert applied_factors == {1: 1, 89: 3}


@pytest.mark.parametrize("trouble", [96, 95, 93])
def test_without_slurmctld_the_batch_ends(scontrol, trouble):
    applied_factors = {}
    with pytest.raises(UnavailableError):
        scontrol.updater(applied_factors=applied_factors).set_site_factors({1: 1, trouble: 2, 3: 3})
    assert applied_factors == {1: 1} and len(scontrol.lines) == 2


def test_no_scontrol():
    with pytest.raises(UnavailableError, match="not found"):
        JobUpdater(1.0, command=["/nonexistent/scontrol"]).set_site_factors({1: 1})


def test_nothing_to_do_starts_nothing():
    assert JobUpdater(1.0, command=["/nonexistent/scontrol"]).set_site_factors({}).done == ()


def test_what_time_does_not_suffice_for_is_left(scontrol):
    updater = JobUpdater(1e6, batch_s=0.0, command=[str(scontrol.path)])
    outcome = updater.set_site_factors({1: 1, 2: 2, 3: 3})
    assert (outcome.done, outcome.remaining) == ((1,), (2, 3))


def test_not_more_changes_than_allowed(scontrol):
    begin = time.monotonic()
    outcome = JobUpdater(20.0, command=[str(scontrol.path)]).set_site_factors(dict.fromkeys(range(1, 6), 1))
    assert len(outcome.done) == 5
    assert time.monotonic() - begin >= 4 / 20.0


def test_a_stopped_updater_leaves_nothing_running(scontrol):
    updater = scontrol.updater()
    stopping = threading.Thread(target=lambda: (until(lambda: scontrol.lines), updater.stop()))
    stopping.start()
    with pytest.raises(UnavailableError, match="shutting down"):
        updater.set_site_factors({94: 1})
    stopping.join()
    with pytest.raises(UnavailableError, match="shutting down"):
        updater.set_site_factors({1: 1})
    pid = int(Path(f"{scontrol.log}.pids").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_scontrol_ends_with_a_killed_senergyctld(scontrol):
    changes = "dict.fromkeys(range(1, 90), 1)"
    code = f"from {JobUpdater.__module__} import JobUpdater\n"
    code += f"JobUpdater(0.01, batch_s=1e9, command=[{str(scontrol.path)!r}]).set_site_factors({changes})"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        until(lambda: len(scontrol.lines) == 1)
        child.kill()
    pid = int(Path(f"{scontrol.log}.pids").read_text())
    until(lambda: not running(pid))
    assert len(scontrol.lines) == 1


@pytest.mark.parametrize("value", [SITE_FACTOR_MAX + 1, -SITE_FACTOR_MAX - 1])
def test_site_factor_out_of_range(scontrol, value):
    with pytest.raises(UsageError):
        scontrol.updater().set_site_factors({1: 1, 2: value})
    assert scontrol.lines == []


def test_finished_jobs_are_not_run_again(scontrol):
    outcome = scontrol.updater().requeue({5: "5", 99: "99"})
    assert (outcome.done, outcome.gone) == ((5,), (99,))
    assert scontrol.lines == ["requeue Incomplete 5", "requeue Incomplete 99"]


def test_what_was_requeued_before_slurmctld_went_away_is_told(scontrol):
    outcome = scontrol.updater().requeue({5: "5", 99: "99", 96: "96", 7: "7"})
    assert (outcome.done, outcome.gone, outcome.remaining) == ((5,), (99,), (7,))
    assert list(outcome.refused) == [96] and "Unable to contact" in outcome.refused[96]
    with pytest.raises(UnavailableError):
        scontrol.updater().requeue({96: "96", 7: "7"})


def test_the_reply_to_one_task_of_an_array_is_its_own(scontrol):
    outcome = scontrol.updater().requeue({97: "97_1", 92: "97_2", 91: "97_3", 88: "88_4"})
    assert (outcome.done, outcome.gone) == ((97,), (91, 88))
    assert outcome.refused == {92: "Requested operation is presently disabled"}
    assert scontrol.updater().set_fields(91, {"Gres": "gpu:1"}, 0, "97_3").gone == (91,)


def test_fields_of_a_pending_job(scontrol):
    assert scontrol.updater().set_fields(5, {"Gres": "gpu:h100:2", "NumNodes": "1"}, 0).done == (5,)
    assert scontrol.lines == ["update JobId=5 Gres=gpu:h100:2 NumNodes=1"]


def test_an_owner_without_a_name_is_a_refusal(scontrol, monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(UsageError, match="the owner, uid 4000, is unknown"):
        scontrol.updater().set_fields(5, {"Gres": "gpu:1"}, 4000)
    assert scontrol.lines == []


@pytest.mark.parametrize("value", ["gpu:1\nshutdown", "a b", "\t", "gpu:1;x", "ü"])
def test_no_second_command_in_a_value(scontrol, value):
    with pytest.raises(UsageError):
        scontrol.updater().set_fields(5, {"Gres": value}, 0)
    assert scontrol.lines == []


CONFIG = """\
Configuration data as of 2026-11-21T21:54:35
PriorityFlags           = {flags}
PriorityType            = {kind}
PriorityWeightAge       = {age}
PriorityWeightTRES      = {tres}
PrioritySiteFactorPlugin = {plugin}
"""
GOOD = {"flags": "", "kind": "priority/multifactor", "age": "0", "tres": "(null)", "plugin": "(null)"}


@pytest.fixture
def slurm_conf(tmp_path):
    """Return the path of a slurm.conf that the test writes."""
    path = tmp_path / "slurm.conf"
    path.write_text("ClusterName=Lab\n")
    return path


def test_weights_of_nothing_but_zeros_are_fine(slurm_conf):
    check_weights(lambda argv: CONFIG.format(**GOOD), lambda: slurm_conf)
    other = GOOD | {"tres": "CPU=0.0,Mem=0", "flags": "CALCULATE_RUNNING"}
    check_weights(lambda argv: CONFIG.format(**other), lambda: slurm_conf)


@pytest.mark.parametrize(
    "text",
    [
        "PrioritySiteFactorPlugin=site_factor/other",
        "  prioritysitefactorplugin = site_factor/other  # ours",
        'PriorityType=priority/multifactor PrioritySiteFactorPlugin="site_factor/other"',
        "PrioritySite\\\nFactorPlugin=site_factor/other",
        "PrioritySiteFactorPlugin=site_factor/none\nPrioritySiteFactorPlugin=site_factor/other",
        "Include other.conf",
        "include  {dir}/other.conf",
        "Include more/%c.conf",
    ],
)
def test_a_site_factor_plugin_is_found_in_slurm_conf(slurm_conf, text):
    """The reader finds the key PrioritySiteFactorPlugin in slurm.conf, however it is written.

    `scontrol show config` shows (null) for this key, because slurmctld of 22.05 to 26.05 never sends the
    value.
    """
    folder = slurm_conf.parent
    (folder / "more").mkdir()
    (folder / "other.conf").write_text("PrioritySiteFactorPlugin=site_factor/other\n")
    (folder / "more" / "lab.conf").write_text("Include deeper.conf\n")
    (folder / "more" / "deeper.conf").write_text("PrioritySiteFactorPlugin=site_factor/other\n")
    slurm_conf.write_text(f"ClusterName=Lab\n{text.replace('{dir}', str(folder))}\nNodeName=n1 CPUs=4\n")
    with pytest.raises(ConfigError, match="PrioritySiteFactorPlugin=site_factor/other: it sets"):
        check_weights(lambda argv: CONFIG.format(**GOOD), lambda: slurm_conf)


@pytest.mark.parametrize(
    "text",
    [
        "# PrioritySiteFactorPlugin=site_factor/other",
        "PrioritySiteFactorPlugin=site_factor/other\nPrioritySiteFactorPlugin=site_factor/none",
        "NodeName=n1 PrioritySiteFactorPlugin=site_factor/other",
    ],
)
def test_what_is_no_site_factor_plugin_is_fine(slurm_conf, text):
    slurm_conf.write_text(f"{text}\n")
    check_weights(lambda argv: CONFIG.format(**GOOD), lambda: slurm_conf)


@pytest.mark.parametrize("plugin", ["site_factor/nonesuch", "site_factor/not_none", "nonesuch"])
def test_a_plugin_whose_name_contains_none_is_a_plugin(slurm_conf, plugin):
    slurm_conf.write_text(f"PrioritySiteFactorPlugin={plugin}\n")
    with pytest.raises(ConfigError, match=f"PrioritySiteFactorPlugin={plugin}: it sets"):
        check_weights(lambda argv: CONFIG.format(**GOOD), lambda: slurm_conf)


def test_without_slurm_conf_nothing_is_set(slurm_conf):
    slurm_conf.write_text("Include gone.conf\n")
    for path in (slurm_conf, slurm_conf.parent / "absent.conf"):
        with pytest.raises(ConfigError, match="PrioritySiteFactorPlugin is unknown"):
            check_weights(lambda argv: CONFIG.format(**GOOD), lambda path=path: path)
    text = CONFIG.format(**GOOD) + f"SLURM_CONF              = {slurm_conf.parent}/told.conf\n"
    with pytest.raises(ConfigError, match=r"told\.conf: No such file"):
        check_weights(lambda argv: text, lambda: None)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("kind", "priority/basic", "PriorityType=priority/basic"),
        ("age", "1000", "PriorityWeightAge=1000"),
        ("tres", "CPU=0,GRES/gpu=0.5", "PriorityWeightTRES=CPU=0,GRES/gpu=0.5"),
        ("flags", "INCR_ONLY,FAIR_TREE", "PriorityFlags=INCR_ONLY"),
        ("plugin", "site_factor/other", "PrioritySiteFactorPlugin=site_factor/other"),
    ],
)
def test_what_would_move_jobs_from_their_places_is_named(key, value, named):
    with pytest.raises(ConfigError) as caught:
        check_weights(lambda argv: CONFIG.format(**GOOD | {key: value}), lambda: None)
    assert str(caught.value).startswith(f"{named}: ")


def test_another_priority_plugin_takes_a_restart():
    with pytest.raises(ConfigError, match="then restart slurmctld"):
        check_weights(lambda argv: CONFIG.format(**GOOD | {"kind": "priority/basic"}), lambda: None)


@given(st.text())
def test_any_configuration_is_read_or_refused(text):
    with contextlib.suppress(ConfigError):
        check_weights(lambda argv: text, lambda: None)
