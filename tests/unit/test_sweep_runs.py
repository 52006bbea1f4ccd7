"""Tests of runs of `senergy sweep`.

The tests check the order of the runs, the saved state, the sbatch commands, the use of energy records, and
the continuation after an interrupt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_energy.errors import AlreadyRunningError, UnavailableError, UsageError
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy.reports.usage import AccountedRecord
from slurm_energy.slurm.job_state import JobStatus, find_own_jobs, read_job_states
from slurm_energy.slurm.sbatch import RefusedError
from slurm_energy.sweep import state as states
from slurm_energy.sweep.runner import RECORD_WAIT_S, SweepCluster, SweepLimits, SweepRunner
from slurm_energy.sweep.submission import Submitter, read_given_options
from slurm_energy.tuning.sweep.design import build_points
from slurm_energy.tuning.sweep.factors import make_factor, parse_factor, parse_variable, read_factors
from slurm_energy.tuning.sweep.result import sweep_result
from slurm_energy.tuning.sweep.runs import RunStatus, schedule_runs

SCRIPT = b"#!/bin/bash\n#SBATCH -p gpu\nsleep 1\n"


def new_state(*factors, options: Sequence[str] = ()) -> states.SweepState:
    points = build_points(factors or [parse_factor("gpu-cap", "150,200,250")])
    return states.SweepState(
        "train", "senergy-sweep/train", states.digest(SCRIPT), tuple(options), (), points
    )


class EmulatedCluster:
    """Stand-in for a Slurm cluster in tests of sweeps.

    Its jobs end at once. Their time and energy depend on the GPU power limit.
    """

    def __init__(self, state: states.SweepState) -> None:
        self.state = state
        self.jobs: dict[int, tuple[str, str]] = {}
        self.names: list[str] = []
        self.ended_as: dict[int, str] = {}
        self.silent: set[int] = set()
        self.has_counters = True
        self.nodes: int | None = 1
        self.tags: dict[int, str] = {}
        self.max_in_flight = 0
        self.now = 0.0
        self.saved = 0

    def submit(self, point, job_name: str) -> int:
        assert job_name not in self.names
        self.names.append(job_name)
        self.jobs[len(self.jobs) + 101] = (job_name, point.value("gpu-cap") or "300")
        self.max_in_flight = max(self.max_in_flight, len(self.state.in_flight))
        return len(self.jobs) + 100

    def find(self, names):
        return {name: job_id for job_id, (name, _) in self.jobs.items() if name in names}

    def read_states(self, job_ids):
        return {job_id: JobStatus(self.ended_as.get(job_id, "COMPLETED"), self.nodes) for job_id in job_ids}

    def records(self, job_ids):
        found = []
        for job_id in job_ids:
            if job_id in self.silent:
                continue
            cap = float(self.jobs[job_id][1])
            seconds = 10.0 + max(0.0, 250.0 - cap) ** 2 / 200.0
            joules = seconds * cap
            record = EnergyRecord(
                "c", "n1", job_id, 0, "cap", 100.0, 100.0 + seconds,
                (ComponentEnergy("node", joules if self.has_counters else None, "powercap:psys"),),
                tag=self.tags.get(job_id, "senergy-sweep/train"),
            )  # fmt: skip
            found.append(AccountedRecord(record))
        return found

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def save(self) -> None:
        self.saved += 1

    def runner(self, repetitions: int = 2, in_flight: int = 2, **more) -> SweepRunner:
        access = SweepCluster(self.submit, self.find, self.read_states, self.records)
        limits = SweepLimits(repetitions, in_flight, **more)
        return SweepRunner(self.state, access, limits, self.save, sleep=self.sleep, clock=lambda: self.now)


def test_a_sweep_measures_every_point_and_drops_dominated_ones() -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    cluster.runner().run()
    result = sweep_result(state.name, state.points, state.runs, 2)
    # 150 W takes 60 s and 9 kJ: slower and more energy than 300 W with 10 s and 3 kJ.
    assert [(p.is_dominated, p.summary.runs) for p in result.points] == [
        (False, 2),
        (True, 1),
        (True, 1),
        (False, 2),
    ]
    assert result.is_complete
    assert result.best["energy"] == result.best["edp"] == 3
    assert cluster.max_in_flight == 2
    exhaustive = EmulatedCluster(new_state())
    exhaustive.runner(exhaustive=True).run()
    assert len(exhaustive.jobs) == 8


def test_an_interrupted_sweep_continues_and_repeats_no_run(tmp_path: Path) -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    submit = cluster.submit

    def interrupted(point, job_name: str) -> int:
        if len(cluster.jobs) == 2:
            submit(point, job_name)  # the job exists, and its id is not stored
            raise KeyboardInterrupt
        return submit(point, job_name)

    cluster.submit = interrupted  # type: ignore[method-assign]
    path = tmp_path / "state.json"
    runner = cluster.runner(in_flight=4)
    runner._save = lambda: states.save(state, path)
    with pytest.raises(KeyboardInterrupt):
        runner.run()
    continued = states.load(path)
    assert continued is not None
    assert [run.status for run in continued.runs] == [RunStatus.SUBMITTED] * 2 + [RunStatus.SUBMITTING]
    cluster.state, cluster.submit = continued, submit  # type: ignore[method-assign]
    cluster.runner().run()
    assert schedule_runs(continued.runs, 4, 2).is_complete
    assert len(cluster.jobs) == len(continued.runs) == 6
    # More repetitions later continue from there.
    assert not schedule_runs(continued.runs, 4, 3).is_complete


def test_every_second_repetition_is_in_reverse_order() -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    cluster.runner(repetitions=2, in_flight=1, exhaustive=True).run()
    assert [(run.repetition, run.point) for run in state.runs] == [
        *((1, point) for point in (0, 1, 2, 3)),
        *((2, point) for point in (3, 2, 1, 0)),
    ]


def test_no_job_starts_after_the_deadline() -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    cluster.runner(repetitions=1, in_flight=1, deadline_s=3.0).run()
    assert len(state.runs) == 2
    assert not state.in_flight


def test_failed_jobs_are_tried_again_once() -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    cluster.ended_as = {102: "FAILED", 105: "TIMEOUT", 103: "FAILED"}
    cluster.runner(repetitions=1, in_flight=4).run()
    result = sweep_result(state.name, state.points, state.runs, 1)
    assert [p.is_failed for p in result.points] == [False, True, False, False]
    assert result.points[1].notes == ("the job ended as FAILED", "the job ended as TIMEOUT")
    assert result.points[2].summary.runs == 1
    assert result.is_complete
    assert not result.is_successful


def test_a_job_without_records_fails_after_a_while() -> None:
    state = new_state(parse_factor("gpu-cap", "250"))
    cluster = EmulatedCluster(state)
    cluster.silent = {102, 103}
    cluster.tags = {101: "senergy-sweep/train+0123abcd"}
    cluster.runner(repetitions=1).run()
    assert cluster.now > 2 * RECORD_WAIT_S
    assert [run.status.value for run in state.runs] == ["measured", "failed", "failed"]
    assert "is senergyd running" in state.runs[1].note


def test_jobs_without_energy_fail_as_soon_as_their_records_arrive() -> None:
    state = new_state(parse_factor("gpu-cap", "250"))
    cluster = EmulatedCluster(state)
    cluster.has_counters = False
    cluster.runner(repetitions=1).run()
    assert cluster.now < 60.0
    assert {run.note.partition(" (")[0] for run in state.runs} == {"the node measures no energy"}


def test_energy_of_other_nodes_is_awaited_if_their_number_is_unknown() -> None:
    state = new_state(parse_factor("gpu-cap", "250"))
    cluster = EmulatedCluster(state)
    cluster.has_counters, cluster.nodes = False, None
    runner = cluster.runner(repetitions=1)

    def sleep(seconds: float) -> None:
        cluster.sleep(seconds)
        cluster.has_counters = cluster.now > 100.0  # stands for the record of a second node

    runner._sleep = sleep
    runner.run()
    assert {run.status for run in state.runs} == {RunStatus.MEASURED}


def test_a_record_of_another_job_with_the_same_id_does_not_count() -> None:
    state = new_state(parse_factor("gpu-cap", "250"))
    cluster = EmulatedCluster(state)
    cluster.tags = {101: "senergy-sweep/training"}
    cluster.runner(repetitions=1).run()
    assert state.runs[0].status is RunStatus.FAILED


def test_a_limit_on_submitted_jobs_is_respected() -> None:
    state = new_state()
    cluster = EmulatedCluster(state)
    submit = cluster.submit

    def limited(point, job_name: str) -> int:
        if len(state.in_flight) > 2:
            raise RefusedError("sbatch", "QOSMaxSubmitJobPerUserLimit")
        return submit(point, job_name)

    cluster.submit = limited  # type: ignore[method-assign]
    cluster.runner(repetitions=1, in_flight=4).run()
    assert [run.status for run in state.runs] == [RunStatus.MEASURED] * 4


def test_a_long_outage_ends_the_sweep() -> None:
    cluster = EmulatedCluster(new_state())

    def gone(job_ids):
        raise UnavailableError("controller", "no answer")

    cluster.records = gone  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        cluster.runner().run()
    assert len(cluster.jobs) == 2


def test_one_process_per_state_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with states.locked(path), pytest.raises(AlreadyRunningError), states.locked(path):
        pass
    with states.locked(path):
        pass


def test_state_files(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    state = new_state()
    assert states.load(path) is None
    states.save(state, path)
    loaded = states.load(path)
    assert loaded == state
    loaded.refuse_other(new_state(), path)
    with pytest.raises(UsageError, match="factors"):
        loaded.refuse_other(new_state(parse_factor("cap", "1")), path)
    with pytest.raises(UsageError, match="sbatch options"):
        loaded.refuse_other(new_state(options=["-pcpu"]), path)
    data = state.to_json()
    for change in (
        {"version": 2},
        {"points": []},
        {"points": [[["a"]]]},
        {"points": [[["gpu-cap", 3]]]},
        {"runs": [{}]},
        {"runs": [{"point": 9, "repetition": 1, "job_name": "x", "status": "failed"}]},
        {"runs": [{"point": 0, "repetition": 1, "job_name": "x", "status": "measured", "time_s": -1.0}]},
        {"runs": [{"point": 0, "repetition": 1, "job_name": "x", "status": "failed", "x": 1}]},
        {"runs": [3]},
        {"runs": [{"point": 0, "repetition": 1, "job_name": "x", "status": "failed", "unmeasured": 3}]},
        {"runs": [{"point": 0, "repetition": 1, "job_name": "x", "status": "failed", "quality": 3}]},
        {"name": "a b"},
        {"options": [1]},
    ):
        path.write_text(json.dumps(data | change))
        with pytest.raises(UsageError):
            states.load(path)
    for text in ("", "[]", "{", "[" * 100000):
        path.write_text(text)
        with pytest.raises(UsageError):
            states.load(path)


def submitter(state: states.SweepState, script: bytes = SCRIPT) -> Submitter:
    return Submitter(state, "job.sh", read_given_options("job.sh", script, state.options, state.points))


def test_commands_of_runs() -> None:
    state = new_state(parse_factor("gpu-cap", "200"), parse_factor("threads", "4,8"), options=["-p", "a100"])
    jobs = submitter(state)
    assert jobs.command(state.points[0], "x") == [
        "sbatch", "--parsable", "-p", "a100", "--energy-policy=monitor", "--energy-tag=senergy-sweep/train",
        "--job-name=x", "job.sh",
    ]  # fmt: skip
    assert jobs.environment(state.points[0]) == {"OMP_NUM_THREADS": "4"}
    capped = jobs.command(state.points[2], "x")
    assert capped[4:6] == ["--energy-gpu-cap=200", "--energy-policy=cap"]
    (tag,) = (word.removeprefix("--energy-tag=") for word in capped if word.startswith("--energy-tag="))
    assert tag.startswith("senergy-sweep/train+")
    assert len(tag) <= 64
    same_program = jobs.command(state.points[1], "x")
    assert "--energy-tag=senergy-sweep/train" in same_program


def test_sbatch_options_and_energy_flags_of_a_file_are_factors() -> None:
    text = b'policy = "energy"\n[sbatch]\nnodes = [1, 2]\nenergy-slowdown = [3, 5]\n'
    state = new_state(*read_factors(text, "f.toml"))
    jobs = submitter(state)
    assert str(state.points[0]) == "policy=monitor sbatch.nodes=1 sbatch.energy-slowdown=none"
    assert "--energy-slowdown=5" not in jobs.command(state.points[0], "x")
    last = jobs.command(state.points[-1], "x")
    assert {"--energy-policy=energy", "--nodes=2", "--energy-slowdown=5"} < set(last)
    with pytest.raises(UsageError, match="job-name"):
        submitter(new_state(make_factor("sbatch.job-name", ["x"])))


def test_energy_options_of_a_file_take_effect() -> None:
    state = new_state(*read_factors(b'[sbatch]\nenergy-policy = ["powersave", "edp"]\n', "f.toml"))
    commands = [submitter(state).command(point, "x") for point in state.points]
    assert [[word for word in command if word.startswith("--energy-policy")] for command in commands] == [
        ["--energy-policy=monitor"],
        ["--energy-policy=powersave"],
        ["--energy-policy=edp"],
    ]
    capped = new_state(make_factor("sbatch.energy-gpu-cap", [150]))
    command = submitter(capped).command(capped.points[1], "x")
    assert {"--energy-gpu-cap=150", "--energy-policy=cap"} < set(command)


def test_export_is_not_varied_together_with_variables() -> None:
    export = make_factor("sbatch.export", ["NONE", "ALL"])
    with pytest.raises(UsageError, match=r"sbatch\.export"):
        submitter(new_state(export, parse_variable("LR=1,2")))
    state = new_state(export)
    assert "--export=NONE" in submitter(state).command(state.points[0], "x")


def test_export_keeps_the_variables_of_factors(monkeypatch) -> None:
    script = b"#!/bin/sh\n#SBATCH --export=HOME,PATH --energy-policy=powersave\n"
    state = new_state(parse_variable("LR=1,2"))
    command = submitter(state, script).command(state.points[1], "x")
    assert "--export=HOME,PATH,LR" in command
    assert not [word for word in command if word.startswith("--energy-policy")]
    with pytest.raises(UsageError, match="export"):
        submitter(state, b"#!/bin/sh\n#SBATCH --export=NONE\n")
    monkeypatch.setenv("SBATCH_EXPORT", "HOME")
    assert "--export=HOME,LR" in submitter(state, script).command(state.points[1], "x")
    state = new_state(parse_variable("LR=1,2"), options=["--export=PATH"])
    assert "--export=PATH,LR" in submitter(state, script).command(state.points[1], "x")


@pytest.mark.parametrize(
    "line",
    ["--array=1-3", "--energy-gpu-cap=100", "--energy-cap=300", "--energy-tag=mine", "--wait", "hetjob"],
)
def test_options_that_a_sweep_cannot_use(line: str) -> None:
    with pytest.raises(UsageError):
        submitter(new_state(), b"#!/bin/sh\n#SBATCH " + line.encode() + b"\n")


def test_states_of_several_jobs_need_two_commands_at_most() -> None:
    asked: list[list[str]] = []

    def run(argv) -> str:
        asked.append(list(argv))
        if argv[0] == "squeue":
            delimiter = argv.environment["SQUEUE_FORMAT"].removeprefix("%A").partition("%T")[0]
            return "".join(delimiter.join(row) + delimiter + "\n" for row in (["7", "RUNNING", "2"],))
        return f"{'8':<20} {'CANCELLED by 0':<40} {'1':<12} \n"

    assert read_job_states([], run) == {}
    assert read_job_states([7, 8, 9], run) == {7: JobStatus("RUNNING", 2), 8: JobStatus("CANCELLED", 1)}
    assert [argv[0] for argv in asked] == ["squeue", "sacct"]


@pytest.mark.parametrize("state", ["EXPEDITING", "RESV_DEL_HOLD", "REQUEUE_FED"])
def test_jobs_that_wait_for_another_start_are_active(state: str) -> None:
    assert JobStatus(state).is_active


def test_names_of_jobs_cannot_be_forged() -> None:
    def run(argv) -> str:
        delimiter = argv.environment["SQUEUE_FORMAT"].removeprefix("%A").partition("%j")[0]
        rows = [["7", "a\n8 sweep-1"], ["9", "sweep-1"]]
        return "".join(delimiter.join(row) + delimiter + "\n" for row in rows)

    assert find_own_jobs(["sweep-1"], run) == {"sweep-1": 9}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo 17; exit 0", None),
        ("echo '17;cluster'", None),
        ("echo '17 forged'", "exit status 0"),
        ("echo >&2 'sbatch: error: Invalid account'; exit 1", "Invalid account"),
        (
            "echo >&2 \"sbatch: unrecognized option '--x'\"; echo >&2 'Try \"sbatch --help\" '; exit 1",
            "unrecognized option",
        ),
        ("exit 3", "exit status 3"),
        ("echo >&2 'sbatch: error: Unable to contact slurm controller'; exit 1", "Unable to contact"),
    ],
)
def test_answers_of_sbatch(script: str, error: str | None, tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    state = new_state()
    if error is None:
        assert submitter(state).submit(state.points[0], "x") == 17
        return
    expected = UnavailableError if "contact" in error else RefusedError
    with pytest.raises(expected, match=error):
        submitter(state).submit(state.points[0], "x")
