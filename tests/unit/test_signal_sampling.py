"""Tests of how the agent handles the signals and the reported steps of jobs.

The tests check the sampling, the recording, a restart of the agent, the spool (records to be sent), and the
limits of what a user may report.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import random
import threading
from array import array
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from test_job_manager import Node, env

from slurm_energy.agent.jobs import progress_reports
from slurm_energy.agent.signals import loop as loop_module
from slurm_energy.agent.signals import observation as observation_module
from slurm_energy.agent.signals import step_reports
from slurm_energy.agent.signals.loop import SignalLoop
from slurm_energy.agent.signals.node_reader import SignalPass, _readings_of
from slurm_energy.agent.signals.observation import node_observation, observation_json
from slurm_energy.agent.signals.recording import MAX_SERIES, SignalRecording
from slurm_energy.agent.signals.sampling import SignalSampling
from slurm_energy.agent.signals.step_reports import MAX_REPORT_BYTES, StepReports
from slurm_energy.agent.sockets import messages
from slurm_energy.agent.worker_thread import WorkerThread
from slurm_energy.config import AgentConfig, Config
from slurm_energy.devices.cpu.process_tree import NS_PER_TICK
from slurm_energy.devices.signal_sensor import SignalReading
from slurm_energy.diagnosis.json_codec import node_from_json, rank_to_json
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import MAX_POINTS
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps
from slurm_energy.errors import ForbiddenError, UsageError
from slurm_energy.protocol.live_reports import LiveReport

GROUP = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_{}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(made.die)
        yield made


def write_group(node: Node, job_id: int, cpu_s: float, *, used: int = 1000) -> None:
    folder = GROUP.format(job_id)
    node.tree.put(f"{folder}/cpu.stat", f"usage_usec {round(cpu_s * 1e6)}")
    node.tree.put(f"{folder}/memory.current", used)
    node.tree.put(f"{folder}/memory.stat", "inactive_file 0\nactive_file 0\npgmajfault 0")
    node.tree.put(f"{folder}/io.stat", f"8:0 rbytes={round(cpu_s * 1e3)} wbytes=0 rios=0 wios=0")


def run(node: Node, seconds: float, interval_s: float = 10.0, *jobs: int, cores: float = 2.0) -> None:
    """Let time pass on the node and sample the signals of jobs after every interval.

    In this time each job keeps `cores` CPUs busy.
    """
    for _ in range(round(seconds / interval_s)):
        node.clock.now += interval_s
        for job_id in jobs or (5,):
            write_group(node, job_id, node.clock.now * cores)
        node.manager.signals.sample()


def begin(node: Node, job_id: int = 5, cpus: str = "4", **flags: str) -> None:
    write_group(node, job_id, node.clock.now * 2)
    node.manager.begin(env(job_id, cpus=cpus, **flags))
    node.manager.signals.sample()


def observed(node: Node) -> dict[int, NodeObservation]:
    """Return the observations of the ended jobs by job id."""
    items = [item for item in node.items() if item.record.get("step") is None]
    return {item.record["job_id"]: node_from_json(item.observation) for item in items if item.observation}


def by_name(observation: NodeObservation) -> dict[str, array[float]]:
    return {series.name + series.part: series.values for series in observation.series}


def test_the_signals_of_a_job_are_part_of_its_delivery(node: Node) -> None:
    begin(node)
    run(node, 60)
    node.manager.end(env())
    observation = observed(node)[5]
    series = by_name(observation)
    assert list(series["cpu_busy_cores"]) == pytest.approx([2.0] * 6)
    assert list(series["memory_used_bytes"]) == [1000.0] * 6
    assert list(series["cpu_allocated_cores"]) == [4.0] * 6
    assert list(series["block_read_bytes_per_s"]) == pytest.approx([2000.0] * 6, rel=1e-3)
    (one,) = {(item.start_s, item.interval_s, item.node) for item in observation.series}
    (item,) = node.items()
    assert one == (pytest.approx(item.record["start"]), 10.0, "n1")
    assert not [name for name in series if name.startswith(("gpu", "network", "infiniband", "io_pressure"))]


def test_flag_and_site_decide_whether_and_how_often(tmp_path: Path) -> None:
    for site, flag, expected in (
        ("10s", None, 10.0),
        ("off", None, None),
        ("off", "1m", 60.0),
        ("10s", "off", None),
        ("10s", "1s", 1.0),
        ("10s", "nonsense", 10.0),  # the job runs, and its record says why
    ):
        config = Config(agent=AgentConfig(sampling_hz=1.0, signals_interval=site))
        node = Node(tmp_path / f"{site}-{flag}", config)
        begin(node, **({"signals": flag} if flag else {}))
        assert node.manager.signals.interval_s == expected
        run(node, 120, 60.0)
        node.manager.end(env())
        assert bool(observed(node)) == (expected is not None)
        (item,) = node.items()
        assert any("--energy-signals" in note for note in item.record["notes"]) == (flag == "nonsense")
        assert item.record["requested"] == ({"signals": flag} if flag else {})
        node.die()


def test_all_jobs_are_read_in_one_pass_at_the_shortest_interval(node: Node) -> None:
    begin(node, 5, cpus="2")
    begin(node, 6, cpus="2", signals="1s")
    assert node.manager.signals.interval_s == 1.0
    run(node, 20, 1.0, 5, 6)
    opened = node.tree.open_files()
    for job_id in (5, 6):
        node.manager.end(env(job_id))
    lengths = {job: len(by_name(one)["cpu_busy_cores"]) for job, one in observed(node).items()}
    assert lengths == {5: 2, 6: 20}
    assert node.manager.signals.interval_s is None
    node.manager.signals.sample()
    assert node.tree.open_files() <= opened - 6  # the files of both groups are closed


def test_a_restart_of_the_agent_keeps_signals_and_steps(node: Node) -> None:
    begin(node)
    run(node, 30)
    report(node, "rank0", STEPS)
    node.stop()
    node.clock.now += 100
    node.manager = node.start()
    run(node, 20)
    node.manager.end(env())
    observation = observed(node)[5]
    busy = list(by_name(observation)["cpu_busy_cores"])
    assert busy[:3] == pytest.approx([2.0] * 3)
    assert all(math.isnan(value) for value in busy[3:13])  # not measured: unknown, not 0
    assert busy[-1] == pytest.approx(2.0)
    assert [rank.rank for rank in observation.ranks] == [0]


def test_the_first_step_of_a_job_is_sampled_at_once_without_control_groups(node: Node) -> None:
    """senergyd samples a job's signals at once when its first step has started, even without cgroups.

    Without Slurm's control groups, senergyd reads the processes of the job. Thus a short job has its signals
    as well.
    """
    page, second = os.sysconf("SC_PAGE_SIZE"), 10**9 // NS_PER_TICK
    sampling = node.manager.signals
    node.manager.begin(env())
    assert sampling.has_new_job
    sampling.sample()
    assert not sampling.has_new_job

    def process(cpu_s: float, read: int) -> None:
        fields = f"S 1 1 1 0 -1 0 10 0 0 0 {round(cpu_s * second)} 0 0 0 20 0 1 0 5 99 7 0 0"
        node.tree.put("proc/321/stat", f"321 (python) {fields}")
        node.tree.put("proc/321/io", f"read_bytes: {read}\nwrite_bytes: 0")

    process(5.0, 1000)
    node.manager.step("start", 5, "batch", pid=321)
    assert sampling.has_new_job
    sampling.sample()
    assert not sampling.has_new_job
    node.clock.now += 4.0
    process(10.0, 9000)
    sampling.sample()
    node.manager.end(env())
    values = by_name(observed(node)[5])
    assert list(values["cpu_busy_cores"]) == [1.25]
    assert list(values["block_read_bytes_per_s"]) == [2000.0]
    assert list(values["memory_used_bytes"]) == [7.0 * page]


def test_damaged_files_of_signals_do_not_hold_up_the_agent(node: Node) -> None:
    begin(node)
    run(node, 30)
    report(node, "rank0", STEPS)
    node.stop()
    for path in (node.folder / "state/sessions").glob("*.s*"):
        path.write_bytes(path.read_bytes()[:-5] + b"x")
    node.manager = node.start()
    node.manager.end(env())
    (item,) = node.items()
    assert item.observation is None


def test_the_agent_counts_the_cost_of_sampling(node: Node) -> None:
    assert node.manager.status()["signals"] == {
        "jobs": 0,
        "interval_s": None,
        "passes": 0,
        "cpu_percent": None,
        "pass_cpu_s": None,
        "pass_duration_s": None,
    }
    begin(node)
    state = node.manager.status()["signals"]
    assert (state["jobs"], state["interval_s"], state["passes"]) == (1, 10.0, 1)
    assert 0 < state["pass_cpu_s"] <= state["pass_duration_s"] * 1.5
    assert state["cpu_percent"] == pytest.approx(10 * state["pass_cpu_s"])


def test_live_reports_show_the_latest_signals_without_single_cpus(node: Node) -> None:
    begin(node)
    run(node, 20)
    report = node.manager.queries.report("n1", "lab")
    again = LiveReport.from_json(json.loads(json.dumps(report.to_json())))
    signals = {(name, part): value for name, part, value in dict(again.records[0].extra)["signals"]}
    assert signals["cpu_busy_cores", ""] == pytest.approx(2.0)
    assert signals["memory_used_bytes", ""] == 1000.0
    assert not [part for _, part in signals if part.startswith("cpu[")]
    begin(node, 6, signals="off")  # ends job 5, which has the whole node
    assert "signals" not in dict(node.manager.queries.report("n1", "lab").records[0].extra)


STEPS = rank_to_json(
    RankSteps("n1", 0, 1, 77, {"step": PhaseStatistics.of([0.1, 0.2])}, samples=64, hints={"batch_size": 32})
)


def report(
    node: Node, process: str, steps: Any, *, reader: int | None = None, pid: int = 0, **more: Any
) -> Any:
    message = {"op": "progress", "job_id": 5, "process": process, "steps": steps, **more}
    parsed = messages.progress(messages.parse(json.dumps(message).encode()))
    return node.manager.progress.receive(parsed, reader, pid)


def test_processes_report_steps_and_the_last_report_counts(node: Node) -> None:
    begin(node)
    report(node, "rank0", STEPS | {"samples": 1}, reader=1001, pid=4711)
    answer = report(node, "rank0", STEPS, reader=1001, pid=4711, units=3)
    assert (answer["units"], answer["interval_s"], answer["steps_bytes"]) == (3, 10.0, MAX_REPORT_BYTES)
    report(node, "rank1", STEPS | {"rank": 1}, reader=1001)
    with pytest.raises(ForbiddenError, match="another user"):
        report(node, "rank0", STEPS, reader=1002)
    run(node, 10)
    node.manager.end(env())
    ranks = observed(node)[5].ranks
    assert [(rank.rank, rank.pid, rank.samples, rank.node) for rank in ranks] == [
        (0, 4711, 64.0, "n1"),  # the kernel's process id, whatever the text says
        (1, 77, 64.0, "n1"),
    ]
    assert ranks[0].hints == {"batch_size": 32}


def test_malformed_steps_cost_nothing_but_themselves(node: Node) -> None:
    begin(node)
    report(node, "bad", {"phases": {"step": {"count": -5}}, "pid": 1})
    report(node, "deep", {"phases": {"x" * 5000: 1}})
    report(node, "good", STEPS)
    run(node, 10)
    node.manager.end(env())
    observation = observed(node)[5]
    assert [rank.samples for rank in observation.ranks] == [64.0]
    assert by_name(observation)


@pytest.mark.parametrize("steps", ["x", 5, [], True])
def test_steps_are_an_object(node: Node, steps: Any) -> None:
    begin(node)
    with pytest.raises(UsageError, match="steps"):
        report(node, "rank0", steps)
    with pytest.raises(UsageError, match="neither or both"):
        report(node, "rank0", None)


def test_the_memory_for_reports_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reports, chance = StepReports(), random.Random(1)
    with pytest.raises(UsageError, match="bytes, more than"):
        reports.put("a", STEPS | {"x": "y" * MAX_REPORT_BYTES}, 1)
    monkeypatch.setattr(step_reports, "MAX_TOTAL_BYTES", 30_000)
    noise = {"x": "".join(chance.choices("0123456789abcdef", k=20_000))}
    reports.put("a", STEPS | noise, 1)
    with pytest.raises(UsageError, match="exceed 30000 bytes"):
        reports.put("b", STEPS | noise, 2)
    with pytest.raises(
        UsageError, match="exceed 30000 bytes"
    ):  # text that repeats needs memory at the end, too
        reports.put("b", STEPS | {"x": "y" * 20_000}, 2)
    reports.put("a", STEPS, 1)
    reports.put("b", STEPS | noise, 2)
    monkeypatch.setattr(step_reports, "MAX_PROCESSES", 2)
    with pytest.raises(UsageError, match="more than 2 processes"):
        reports.put("c", STEPS, 3)
    assert len(reports.ranks("n1")[0]) == 2
    data = b"".join(reports.parts())
    assert StepReports.load(data).ranks("n1") == reports.ranks("n1")
    for damaged in (data[:-3], data + b"x", b"[[1]]", b""):
        with pytest.raises((ValueError, TypeError)):
            StepReports.load(damaged)
    assert StepReports.load(data[:-3] + b"xyz").ranks("n1")[1] == 1  # one report cannot be unpacked
    monkeypatch.setattr(step_reports, "MAX_TOTAL_BYTES", 1000)  # an older release permitted more
    assert len(StepReports.load(data)) == 1


def test_units_count_also_where_the_steps_are_refused(node: Node) -> None:
    begin(node)
    with pytest.raises(UsageError, match="bytes, more than"):
        report(node, "rank0", STEPS | {"x": "y" * MAX_REPORT_BYTES}, units=3)
    (units,) = [one.units for one in node.manager.progress.collect((5, 0))]
    assert units == 3


def test_the_memory_for_reports_of_all_jobs_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_reports, "MAX_NODE_STEPS_BYTES", 20_000)
    chance = random.Random(1)
    noise = {"x": "".join(chance.choices("0123456789abcdef", k=20_000))}
    begin(node, cpus="2")
    begin(node, 6, cpus="2")
    for process in ("a", "b"):
        report(node, process, STEPS | noise)
    with pytest.raises(UsageError, match="all jobs on this node exceed 20000 bytes"):
        report(node, "c", STEPS | noise)
    report(node, "a", STEPS, job_id=6)  # the other job keeps its share


def test_an_observation_that_is_too_large_loses_details_first(monkeypatch: pytest.MonkeyPatch) -> None:
    recording, chance = SignalRecording(0.0, 1.0), random.Random(2)
    for second in range(200):
        readings = [
            SignalReading("cpu_busy_percent", f"cpu[{cpu}]", chance.random(), "s") for cpu in range(20)
        ]
        recording.add(second, second + 1.0, [SignalReading("cpu_mhz", "", 1.0, "s"), *readings])
    reports = StepReports()
    for rank in range(20):
        reports.put(str(rank), STEPS | {"rank": rank, "hints": {f"h{rank}": "x" * 60}}, 1)
    observation = node_observation("n1", recording, reports, lambda time_s: time_s)
    for max_bytes, series, ranks in ((50_000, 21, 20), (15_000, 1, 20), (4_000, 1, 10), (100, None, None)):
        monkeypatch.setattr(observation_module, "MAX_BYTES", max_bytes)
        data = observation_json(observation)
        assert (data is None) == (series is None)
        if data is not None:
            assert len(json.dumps(data)) <= max_bytes
            parsed = node_from_json(data)
            assert (len(parsed.series), len(parsed.ranks)) == (series, ranks)
            assert "cpu_mhz" in by_name(parsed)


class Passes:
    """Stand-in for the reader of signals. The test decides when it reads (a pass).

    Every pass takes `cpu_s` seconds of CPU time.
    """

    def __init__(self, cpu_s: float = 0.0) -> None:
        self.cpu_s = cpu_s
        self.interval_s: float | None = None
        self.has_new_job = False
        self.passes: list[int] = []
        self.reader = self

    def jobs(self) -> tuple[list[int], str]:
        self.has_new_job = False
        return [5] if self.interval_s else [], "n1"

    def read(self, jobs: list[int], node: str) -> SignalPass:
        assert threading.current_thread().name == "signals"
        self.passes.append(len(jobs))
        return SignalPass(None, 0.0, {}, self.cpu_s, self.cpu_s)

    def add(self, result: SignalPass) -> None:
        pass

    def begin(self, interval_s: float) -> None:
        self.interval_s, self.has_new_job = interval_s, True


def looped(sampling: Passes, story: Callable[[SignalLoop], Awaitable[None]]) -> None:
    """Run the test coroutine `story` while the agent's loop samples signals in a worker thread."""

    async def run_story() -> None:
        async def work(function: Callable[..., Any], *arguments: Any) -> Any:
            return function(*arguments)

        thread = WorkerThread("signals")
        loop = SignalLoop(cast("SignalSampling", sampling), work, thread)
        task = asyncio.create_task(loop.run())
        try:
            async with asyncio.timeout(30):
                await story(loop)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            thread.shutdown()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_MAX_DELAY_S", 0.05)
        asyncio.run(run_story())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_passes_begin_with_a_job_and_end_with_the_last_one() -> None:
    sampling = Passes()

    async def story(loop: SignalLoop) -> None:
        await until(lambda: sampling.passes == [0])
        sampling.begin(300.0)
        loop.wake()
        await until(lambda: sampling.passes == [0, 1])
        loop.wake()  # no new job: the next pass is due in 300 s
        sampling.begin(0.02)
        loop.wake()
        await until(lambda: sampling.passes.count(1) >= 4)
        sampling.interval_s = None
        await until(lambda: sampling.passes[-1] == 0)

    looped(sampling, story)


def test_expensive_passes_become_rarer() -> None:
    """The agent samples signals less often if a sampling pass needs much CPU time.

    After a pass that used 10 s of CPU time, the next one starts only after 500 s, unless a job begins.
    """
    sampling = Passes(cpu_s=10.0)

    async def story(loop: SignalLoop) -> None:
        sampling.begin(0.01)
        loop.wake()
        await until(lambda: 1 in sampling.passes)
        await asyncio.sleep(0.2)  # twenty intervals
        assert sampling.passes == [1]
        sampling.begin(0.01)
        loop.wake()
        await until(lambda: sampling.passes == [1, 1])

    looped(sampling, story)


def test_jobs_that_begin_together_share_a_pass() -> None:
    sampling = Passes(cpu_s=10.0)

    async def story(loop: SignalLoop) -> None:
        sampling.begin(300.0)
        loop.wake()
        await until(lambda: 1 in sampling.passes)
        for _ in range(5):
            sampling.has_new_job = True
            loop.wake()
            await asyncio.sleep(0)
        await until(lambda: sampling.passes.count(1) == 2)
        await asyncio.sleep(0.05)
        assert sampling.passes.count(1) == 2

    looped(sampling, story)


def test_a_job_that_ends_at_once_costs_no_pass_over_sensors() -> None:
    sampling = Passes()

    async def story(loop: SignalLoop) -> None:
        await until(lambda: sampling.passes == [0])
        sampling.begin(10.0)
        loop.wake()
        await asyncio.sleep(0)
        sampling.interval_s = None
        await until(lambda: len(sampling.passes) == 2)
        assert sampling.passes == [0, 0]

    looped(sampling, story)


def readings_of(values: dict[str, float]) -> list[SignalReading]:
    return [SignalReading(name, "", value, "test") for name, value in values.items()]


@examples(40)
@given(
    st.lists(st.tuples(st.floats(0.2, 40.0), st.floats(0, 1e12)), min_size=1, max_size=60),
    st.sampled_from([1.0, 10.0]),
)
def test_a_recording_keeps_the_integral(steps: list[tuple[float, float]], interval_s: float) -> None:
    recording, now = SignalRecording(100.0, interval_s), 100.0
    total = 0.0
    for length_s, value in steps:
        recording.add(now, now + length_s, readings_of({"cpu_busy_cores": value}))
        now, total = now + length_s, total + length_s * value
    (series,) = recording.series("n1", lambda time_s: time_s)
    column = recording._columns["cpu_busy_cores", ""]
    assert math.fsum(column.integrals) == pytest.approx(total, rel=1e-9, abs=1e-6)
    assert math.fsum(column.seconds) == pytest.approx(now - 100.0)
    assert len(series.values) <= MAX_POINTS
    again = SignalRecording.load(b"".join(recording.parts()))
    assert again.series("n1", float) == recording.series("n1", float)
    assert min(v for _, v in steps) * 0.999 <= min(series.known()) <= max(v for _, v in steps) * 1.001 + 1e-6


def test_a_long_job_has_at_most_720_points() -> None:
    recording = SignalRecording(0.0, 10.0)
    for second in range(0, 100_000, 10):
        recording.add(second, second + 10.0, readings_of({"cpu_mhz": float(second)}))
    (series,) = recording.series("n1", float)
    assert series.interval_s == 160.0
    assert len(series.values) == 625
    assert series.values[0] == pytest.approx(75.0)


def test_a_recording_is_bounded_and_marks_shared_devices() -> None:
    recording = SignalRecording(0.0, 1.0)
    many = [SignalReading("cpu_busy_percent", f"cpu[{n}]", 1.0, "s") for n in range(MAX_SERIES + 50)]
    recording.add(0.0, 1.0, [*many, SignalReading("cpu_mhz", "", math.nan, "s")])
    assert len(recording.series("n1", float)) == MAX_SERIES
    shared = SignalRecording(0.0, 1.0)
    for second, source in enumerate(("nvml", "nvml (shared GPU)", "nvml")):
        shared.add(second, second + 1, [SignalReading("gpu_busy_percent", "gpu[0]", 1.0, source)])
    assert [series.source for series in shared.series("n1", float)] == ["nvml (shared GPU)"]


@pytest.mark.parametrize(
    "data", [b"", b"{}\n", b'{"start":0,"interval_s":1,"points":2,"columns":[["a","",""]]}\nx']
)
def test_a_damaged_recording_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        SignalRecording.load(data)


@pytest.mark.parametrize(("site", "expected"), [("10s", {"gpu[0]", "gpu[1]", "eth0"}), ("off", {"gpu[0]"})])
def test_without_sampling_by_the_site_a_job_gets_no_shared_signals(
    tmp_path: Path, site: str, expected: set[str]
) -> None:
    node = Node(tmp_path, Config(agent=AgentConfig(signals_interval=site)))
    node.manager.begin(env(5, cpus="2", signals="10s"))
    (job,), _ = node.manager.signals.jobs()
    job = dataclasses.replace(job, gpus=(0, 1), shared_gpus=frozenset({1}), has_node=False)
    parts = {
        "gpu[0]": "gpu_busy_percent",
        "gpu[1]": "gpu_busy_percent",
        "eth0": "network_receive_bytes_per_s",
    }
    readings = [SignalReading(signal, part, 1.0, "s") for part, signal in parts.items()]
    assert {reading.part for reading in _readings_of(job, readings)} == expected
    node.die()
