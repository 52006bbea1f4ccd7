"""Tests of the periods into which the agent divides the energy of a node.

Every joule belongs to exactly one period, whatever happens to jobs, agent and clock.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from shared_node import HandCounter, SharedNode

from slurm_energy.accounting.records.periods import read_periods
from slurm_energy.config import AgentConfig, Config
from slurm_energy.node_period import NodePeriod
from slurm_energy.records import EnergyRecord

POWER = {"cpu": 90.0, "dram": 11.0, "other": 33.0}
HOUR_S = 3600


def periods(node: SharedNode) -> list[NodePeriod]:
    """Return the energy periods of the node that are stored for delivery, in the order of time.

    Reading a period also checks that its energies add up.
    """
    node.manager.housekeeping()
    spooled = node.manager.period_spool.items(10**9, 10_000)
    return sorted((NodePeriod.from_json(item.record) for item in spooled), key=lambda p: p.start)


def measured_uj(made: list[NodePeriod]) -> Counter[str]:
    return sum(
        (Counter({name: e.measured_uj for name, e in period.components.items()}) for period in made),
        Counter[str](),
    )


def job_uj(made: list[NodePeriod]) -> dict[tuple[int, int], Counter[str]]:
    total: dict[tuple[int, int], Counter[str]] = {}
    for period in made:
        for job in period.jobs:
            total.setdefault((job.job_id, job.restart_count), Counter()).update(job.energy_uj)
    return total


def record_uj(records: list[EnergyRecord]) -> dict[tuple[int, int], Counter[str]]:
    total: dict[tuple[int, int], Counter[str]] = {}
    for record in records:
        if record.step is None:
            energy = {c.name: round((c.energy_joules or 0) * 1e6) for c in record.components}
            energy.pop("node", None)
            total.setdefault((record.job_id, record.restart_count), Counter()).update(energy)
    return total


def stop(node: SharedNode) -> list[NodePeriod]:
    """Stop the agent in an orderly way and start another one.

    Return the undelivered energy reports of both agents. A report contains the energy of one period.
    """
    node.manager.stop()
    node._open.pop_all()
    node.manager = node.start()
    return periods(node)


def use(
    node: SharedNode,
    seconds: float,
    power: Mapping[str, float] = POWER,
    busy: Mapping[int, float] | None = None,
    system: float = 0.0,
) -> None:
    """Let a node run for some time, with power samples at realistic times.

    The simulated time advances in steps of at most 40 s. A sample is taken after each step and at each full
    hour.
    """
    while seconds > 0:
        part = min(seconds, 40.0, max(0.001, node.manager._meter.periods.seconds_left))
        use_unseen(node, part, power, busy, system)
        node.manager.sample()
        seconds -= part


def use_unseen(
    node: SharedNode,
    seconds: float,
    power: Mapping[str, float] = POWER,
    busy: Mapping[int, float] | None = None,
    system: float = 0.0,
) -> None:
    """Advance the clock and the energy counters of the node while senergyd takes no sample.

    Args:
        node: the emulated node.
        seconds: time that passes.
        power: watts by name of the component.
        busy: CPUs that each job keeps busy, by job id.
        system: CPUs that the system keeps busy.
    """
    node.clock.now += seconds
    for name, watts in power.items():
        node.move(name, round(watts * seconds * 1e6))
    work = {job: Fraction(cpus * seconds) for job, cpus in (busy or {}).items()}
    node.work(work, Fraction(system * seconds))


def to_boundary_s(node: SharedNode) -> float:
    return HOUR_S - node.clock.unix() % HOUR_S


def test_a_period_ends_on_the_hour_and_the_next_one_starts_there(tmp_path: Path) -> None:
    node = SharedNode(tmp_path)
    start = int(node.clock.unix())
    node.begin(1, 4)
    use(node, to_boundary_s(node) + 5, POWER, {1: 4})
    (first,) = periods(node)
    assert (first.start, first.end) == (start, -(-start // HOUR_S) * HOUR_S)
    assert (first.cluster, first.node) == ("lab", "n1")
    use(node, 2 * HOUR_S, POWER, {1: 4})
    made = periods(node)
    assert [(p.start, p.end) for p in made[1:]] == [
        (first.end + n * HOUR_S, first.end + (n + 1) * HOUR_S) for n in range(2)
    ]
    assert all(p.uncertain_seconds == 0 and p.late_seconds < 1 for p in made)
    expected = {name: round(watts * HOUR_S * 1e6) for name, watts in POWER.items()}
    assert measured_uj(made[1:2]) == expected


def test_the_next_sample_is_due_at_the_end_of_the_period(tmp_path: Path) -> None:
    node = SharedNode(tmp_path)
    use(node, to_boundary_s(node) - 4.25, POWER)
    assert node.manager.sampling_interval_s == pytest.approx(4.25, abs=1e-3)
    use(node, 4.25, POWER)
    assert len(periods(node)) == 1
    assert node.manager.sampling_interval_s == 10.0


def test_energy_of_a_slow_meter_is_in_the_period_in_which_it_is_charged(tmp_path: Path) -> None:
    node = SharedNode(tmp_path, slow={"node": 20.0})
    use(node, to_boundary_s(node) - 30, POWER)
    node.counters["node"].silent = True
    node.begin(1, 4)
    use(node, 31, POWER, {1: 2})
    node.counters["node"].silent = False
    use(node, HOUR_S, POWER, {1: 2})
    made = periods(node)
    total = measured_uj(made)
    accounts = node.accounts()
    # What is charged after the last boundary is in the open period.
    assert all(total[name] <= accounts[name]["measured"] for name in POWER)
    assert made[-1].late_seconds >= 20


def test_a_component_that_could_not_be_read_is_unknown_and_not_zero(tmp_path: Path) -> None:
    node = SharedNode(tmp_path, components=("cpu", "gpu[0]"))
    power = {"cpu": 90.0, "gpu[0]": 50.0}
    node.begin(1, 4, gpus="0")
    use(node, to_boundary_s(node) - 100, power, {1: 4})
    node.counters["gpu[0]"].silent = True
    use(node, 100 + HOUR_S, power, {1: 4})
    partly, missing = periods(node)
    assert partly.uncertain_seconds == pytest.approx(100, abs=1)
    assert list(missing.components) == ["cpu"] == list(missing.jobs[0].energy_uj)
    assert missing.uncertain_seconds == pytest.approx(HOUR_S, abs=1)
    node.counters["gpu[0]"].silent = False
    use(node, HOUR_S, power, {1: 4})
    late = periods(node)[-1]
    assert late.late_seconds == pytest.approx(HOUR_S + 100, abs=1)
    assert late.components["gpu[0]"].measured_uj == round(50e6 * (2 * HOUR_S + 100))


def test_a_counter_that_has_been_broken_for_years_spoils_no_period(tmp_path: Path) -> None:
    node = SharedNode(tmp_path, components=("cpu", "gpu[0]"))
    use(node, 10, {"cpu": 90.0, "gpu[0]": 50.0})
    node.counters["gpu[0]"].silent = True
    use_unseen(node, 700 * 86400, {"cpu": 0.0})
    node.manager.sample()
    use(node, 2 * HOUR_S, {"cpu": 90.0})
    last = periods(node)[-1]
    assert last.late_seconds == 365 * 86400
    assert read_periods([{"period": last.to_json()}], now=node.clock.unix())[1] == []


def test_a_node_meter_that_never_responds_makes_nothing_late_or_uncertain(tmp_path: Path) -> None:
    node = SharedNode(tmp_path, components=("cpu", "dram"))
    node.counters["node"] = HandCounter("node")
    node.counters["node"].silent = True
    node.kill()
    node.begin(1, 4)
    use(node, 3 * HOUR_S, POWER, {1: 2})
    made = periods(node)
    assert len(made) >= 3
    for period in made:
        assert set(period.components) == {"cpu", "dram"}
        assert (period.late_seconds, period.uncertain_seconds) == (0, 0)


class TestJobs:
    def test_a_job_that_spans_periods(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        use(node, 600, POWER)
        node.begin(1, 3)
        node.begin(2, 2)
        use(node, 3 * HOUR_S, POWER, {1: 2.5, 2: 0.5}, system=0.2)
        node.end(1)
        use(node, 100, POWER, {2: 1})
        node.end(2)
        records = node.all_records()
        made = stop(node)
        assert len([p for p in made if p.jobs]) == 4
        assert job_uj(made) == record_uj(records)

    @pytest.mark.slow
    def test_many_short_jobs_with_steps_in_one_period(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        use(node, to_boundary_s(node) + 1, POWER)
        for job in range(1, 251):
            node.begin(job, 4)
            node.manager.step("start", job, "0")
            use(node, 0.5, POWER, {job: 4})
            node.manager.step("end", job, "0")
            node.end(job)
        records = node.all_records()
        use(node, to_boundary_s(node) + 1, POWER)
        period = periods(node)[-1]
        assert len(period.jobs) == 250
        assert job_uj([period]) == record_uj(records)

    def test_more_jobs_than_a_period_may_have_end_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("slurm_energy.agent.metering.node_periods._MAX_ENDED_JOBS", 5)
        node = SharedNode(tmp_path)
        for job in range(1, 31):
            node.begin(job, 4)
            use(node, 2, POWER, {job: 4})
            node.end(job)
        records = node.all_records()
        made = stop(node)
        assert len(made) > 4
        assert max(len(p.jobs) for p in made) < 10
        assert job_uj(made) == record_uj(records)

    def test_a_period_ends_when_500_jobs_have_ended_in_it(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        (session,) = node.manager._sessions.values()
        made = node.manager._meter.periods
        for _ in range(499):
            made.finish_job(session)
        assert made.seconds_left > 0
        made.finish_job(session)
        assert made.seconds_left == 0

    def test_runs_of_a_requeued_job_are_apart(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        for restart in range(2):
            env = {**node.env(7, 4), "SLURM_JOB_RESTART_COUNT": str(restart)}
            node.manager.begin(env)
            use(node, 20, POWER, {7: 4})
            node.manager.end(env)
        records = node.all_records()
        made = stop(node)
        assert set(job_uj(made)) == {(7, 0), (7, 1)}
        assert job_uj(made) == record_uj(records)

    def test_a_lost_session_is_unattributed_in_its_last_period(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        use(node, to_boundary_s(node) + 10, POWER, {1: 4})
        node.manager.housekeeping()
        node.die()
        (tmp_path / "state/sessions/1.0.json").unlink()
        node.manager = node.start()
        use(node, 60, POWER)
        made = stop(node)
        assert [len(p.jobs) for p in made] == [1, 0]
        assert all(
            measured_uj(made)[name] == account["measured"] for name, account in node.accounts().items()
        )


class TestFaults:
    @pytest.mark.slow
    def test_kill_and_restart_lose_and_repeat_nothing(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        ids: set[str] = set()
        for _ in range(30):
            use(node, 333, POWER, {1: 4})
            node.kill()
            ids |= {p.period_id for p in periods(node)}
        node.end(1)
        records = node.all_records()
        made = stop(node)
        assert len({p.start for p in made}) == len(made) == len(ids | {p.period_id for p in made})
        assert all(one.end == two.start for one, two in itertools.pairwise(made))
        assert job_uj(made) == record_uj(records)
        assert measured_uj(made) == {name: a["measured"] for name, a in node.accounts().items()}

    def test_a_crash_between_checkpoint_and_spool(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = SharedNode(tmp_path)
        use(node, to_boundary_s(node), POWER)
        spool = node.manager.period_spool
        monkeypatch.setattr(spool, "add", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
        assert periods(node) == []
        monkeypatch.undo()
        node.kill()
        (one,) = periods(node)
        node.kill()  # the checkpoint on disk may still list the period
        assert [p.period_id for p in periods(node)] == [one.period_id]

    def test_a_closed_period_is_encoded_once_while_the_spool_cannot_store_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = SharedNode(tmp_path)
        encoded: list[int] = []
        to_json = NodePeriod.to_json

        def encode_period(period: NodePeriod) -> dict[str, object]:
            encoded.append(period.start)
            return to_json(period)

        monkeypatch.setattr(NodePeriod, "to_json", encode_period)
        monkeypatch.setattr(
            node.manager.period_spool, "add", lambda *_: (_ for _ in ()).throw(OSError(28, "no space"))
        )
        checkpoint = tmp_path / "state/accounts.json"
        for count in (1, 2):
            use(node, to_boundary_s(node), POWER)
            for _ in range(3):  # each writes a checkpoint
                node.manager.housekeeping()
            closed = json.loads(checkpoint.read_text())["checkpoint"]["periods"]["closed"]
            assert len(encoded) == len(set(encoded)) == len(closed) == count
        monkeypatch.undo()
        node.kill()
        assert [period.start for period in periods(node)] == encoded

    def test_a_reboot_leaves_a_gap_and_no_zeros(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        use(node, 100, POWER, {1: 4})
        node.manager.housekeeping()
        last = node.clock.unix()
        node.die()
        node.clock.boot_id = "another"
        node.clock.now, node.clock.wall_step = 50.0, node.clock.wall_step + node.clock.now + 4 * HOUR_S
        for counter in node.counters.values():
            counter.value_uj = 0
        node.manager = node.start()
        boot = node.clock.unix()
        use(node, 100, POWER)
        before, after = stop(node)
        assert before.end == int(last) and after.start == int(boot)
        assert [job.job_id for job in before.jobs] == [1] and not after.jobs
        assert measured_uj([before]) == {name: round(w * 100e6) for name, w in POWER.items()}
        assert job_uj([before]) == record_uj(node.all_records())

    def test_energy_that_was_read_before_a_reboot_and_not_divided_is_unattributed(
        self, tmp_path: Path
    ) -> None:
        node = SharedNode(tmp_path)
        for job in (1, 2):
            node.begin(job, 4)
        node.use(7, POWER, {1: 3, 2: 1})  # `other` is divided after ten seconds
        node.manager.housekeeping()
        assert node.accounts()["other"]["measured"] == 0
        node.die()
        node.clock.boot_id = "another"
        node.manager = node.start()
        account = node.accounts()["other"]
        assert account["measured"] == account["unattributed"] == round(POWER["other"] * 7e6)
        assert measured_uj(periods(node)) == {name: round(w * 7e6) for name, w in POWER.items()}

    def test_the_energy_while_the_agent_was_stopped_is_in_one_long_period(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        use(node, 100, POWER)
        node.manager.stop()
        node._open.pop_all()
        stopped = int(node.clock.unix())
        use_unseen(node, 3 * HOUR_S)
        node.manager = node.start()
        made = periods(node)
        assert [(p.start, p.end) for p in made[1:]] == [(stopped, stopped + 3 * HOUR_S)]
        assert measured_uj(made[1:]) == {name: round(w * 3 * HOUR_S * 1e6) for name, w in POWER.items()}

    @pytest.mark.parametrize("step_s", [-40 * 86400.0, -5000.0, -3600.0, -30.0, 30.0, 3600.0, 5000.0, 4e8])
    def test_steps_of_the_clock(self, tmp_path: Path, step_s: float) -> None:
        node = SharedNode(tmp_path)
        use(node, to_boundary_s(node) + 1000, POWER)
        node.manager.housekeeping()
        node.clock.wall_step += step_s
        use(node, 10)
        node.manager.housekeeping()
        use(node, 3 * HOUR_S, POWER)
        made = stop(node)
        assert len({p.start for p in made}) == len(made)
        assert all(p.end - p.start <= HOUR_S + 10 for p in made)
        assert measured_uj(made) == {name: a["measured"] for name, a in node.accounts().items()}
        for period in made:  # mean power stays plausible
            watts = period.components["cpu"].measured_uj / 1e6 / (period.end - period.start)
            assert watts == pytest.approx(90, rel=0.02), (period.start, period.end)

    def test_a_component_that_vanishes_with_a_restart(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path, components=("cpu", "gpu[0]"))
        power = {"cpu": 90.0, "gpu[0]": 50.0}
        node.begin(1, 4, gpus="0")
        use(node, 100, power, {1: 4})
        node.manager.housekeeping()
        node.die()
        gpu = node.counters.pop("gpu[0]")
        use_unseen(node, 30, {"cpu": 90.0}, {1: 4})
        node.manager = node.start()
        use(node, 50, {"cpu": 90.0}, {1: 4})
        node.die()
        node.counters["gpu[0]"] = gpu
        node.manager = node.start()
        use(node, 20, power, {1: 4})
        node.end(1)
        records = node.all_records()
        made = stop(node)
        expected = {"cpu": round(90e6 * 200), "gpu[0]": round(50e6 * 120)}
        assert measured_uj(made) == expected
        assert job_uj(made) == record_uj(records)
        assert [list(p.components) for p in made] == [["cpu", "gpu[0]"], ["cpu", "gpu[0]"]]

    def test_a_checkpoint_of_an_older_release(self, tmp_path: Path) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        use(node, 50, POWER, {1: 4})
        node.manager.housekeeping()
        node.die()
        for path in (tmp_path / "state/accounts.json", tmp_path / "state/sessions/1.0.json"):
            data = json.loads(path.read_text())
            del data["checkpoint"]["periods"]
            path.write_text(json.dumps(data))
        node.manager = node.start()
        use(node, 50, POWER, {1: 4})
        (period,) = stop(node)
        assert measured_uj([period]) == {name: round(w * 50e6) for name, w in POWER.items()}

    @pytest.mark.parametrize("damage", [None, {}, {"open": 5}, {"closed": [{"schema": 1}]}])
    def test_a_damaged_checkpoint_of_periods_costs_nothing_else(self, tmp_path: Path, damage: object) -> None:
        node = SharedNode(tmp_path)
        node.begin(1, 4)
        use(node, 50, POWER, {1: 4})
        node.manager.housekeeping()
        node.die()
        for path in (tmp_path / "state/accounts.json", tmp_path / "state/sessions/1.0.json"):
            data = json.loads(path.read_text())
            data["checkpoint"]["periods"] = damage
            path.write_text(json.dumps(data))
        node.manager = node.start()
        use(node, 50, POWER, {1: 4})
        assert node.accounts()["cpu"]["measured"] == round(POWER["cpu"] * 100e6)
        assert len(stop(node)) == 1


def test_the_length_of_periods_is_configurable_and_divides_a_day(tmp_path: Path) -> None:
    node = SharedNode(tmp_path)
    node.manager.reconfigure(Config(agent=AgentConfig(period_s=900)))
    use(node, to_boundary_s(node) + 1, POWER)
    assert [p.end % 900 for p in periods(node)] == [0] * len(periods(node)) != []


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[str, int, float]]:
    """Return a list of random actions, each with a job and the seconds until the next action."""
    what = st.sampled_from(["begin", "begin", "end", "end", "kill", "stop", "nothing"])
    times = st.sampled_from([0.0, 0.3, 1.0, 7.5, 61.0, 700.0])
    return draw(st.lists(st.tuples(what, st.integers(1, 6), times), min_size=3, max_size=25))


@given(schedules())
@examples(25)
def test_the_periods_of_a_job_add_up_to_its_record(tmp_path_factory, schedule) -> None:
    node = SharedNode(tmp_path_factory.mktemp("node"), idle_watts={"cpu": 20.0})
    node.manager.reconfigure(Config(agent=AgentConfig(period_s=300, idle_watts={"cpu": 20.0})))
    running: set[int] = set()
    restarts: Counter[int] = Counter()

    def env(job: int) -> dict[str, str]:
        return {**node.env(job, 2), "SLURM_JOB_RESTART_COUNT": str(restarts[job])}

    for what, job, seconds in schedule:
        if what == "begin" and job not in running and len(running) < 4:
            node.manager.begin(env(job))
            running.add(job)
        elif what == "end" and job in running:
            node.manager.end(env(job))
            running.discard(job)
            restarts[job] += 1
        elif what == "kill":
            node.kill()
            node.manager.reconfigure(Config(agent=AgentConfig(period_s=300)))
        elif what == "stop":
            stop(node)
            node.manager.reconfigure(Config(agent=AgentConfig(period_s=300)))
        use(node, seconds, POWER, dict.fromkeys(running, 1.3), system=0.1)
    use(node, 2, POWER)
    for job in running:
        node.manager.end(env(job))
    records = node.all_records()
    made = stop(node)
    known = {key: energy for key, energy in record_uj(records).items() if energy.total()}
    assert {key: energy for key, energy in job_uj(made).items() if energy.total()} == known
    assert measured_uj(made) == Counter({name: a["measured"] for name, a in node.accounts().items()})
    node.die()
