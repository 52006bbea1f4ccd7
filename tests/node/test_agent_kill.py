"""Test that kill -9 of senergyd at any instant does no damage.

All settings are restored, no record is lost or doubled, and no energy is invented. A round runs one to three
jobs, kills senergyd at least once and restarts it. Half of the kills happen at a random time, the other half
before a random change of a file. These environment variables control the test:

- `SENERGY_KILL_ROUNDS`: number of rounds. With 300 rounds or more, the test also kills
  senergyd before each file change at the begin and at the end of a job.
- `SENERGY_KILL_SEED`: seed of the random sequence.
- `SENERGY_KILL_ONLY`: number of the only round to run.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from crashing_agent import HOOK, CrashingAgent

SEED = int(os.environ.get("SENERGY_KILL_SEED", "20261121"))
ROUNDS = int(os.environ.get("SENERGY_KILL_ROUNDS", "15"))
ONLY = os.environ.get("SENERGY_KILL_ONLY")
PATIENCE_S = 120.0
CHANGES = {"begin": 20, "end": 20, "step": 10, "set": 10, "sample": 1, "start": 20}
SECONDS = {"begin": 0.02, "end": 0.02, "step": 0.03, "set": 0.02, "sample": 0.03, "start": 0.12}
"""Changes of files and duration of an operation, until the first of its kind and policy was measured."""
CORES = {1: ["0-19"], 2: ["0-9", "10-19"], 3: ["0-5", "6-9", "10-19"]}
"""Cores of each of one to three jobs: the first two of three share a package and its power limit."""
POLICIES = ("powersave", "performance", "edp", "cap", "monitor")

pytestmark = [pytest.mark.node, pytest.mark.root, pytest.mark.timeout(300 + 5 * ROUNDS)]


@pytest.fixture(scope="module")
def agent(emulate: Callable[..., Any]) -> Iterator[CrashingAgent]:
    agent = CrashingAgent(emulate("xeon-4210-rtx6000"))
    try:
        yield agent.start()
    finally:
        agent.remove()


@dataclass
class Job:
    """One job of a round of the test: what the test does with it, and what senergyd answers about it."""

    job_id: int
    cores: str
    env: dict[str, str]
    by_hook: bool
    begun: bool = False
    stepped: bool = False


class Round:
    """One round of the test that kills senergyd: it runs jobs, and kills senergyd at random times.

    After the round, the settings, records and energies on the node are checked.
    """

    usual: ClassVar[dict[tuple[str, str], tuple[int, float]]] = {}
    """Changes and seconds of operations by kind and policy, as measured where senergyd lived on."""
    in_force = 0
    """Deaths at which settings were journaled."""

    def __init__(self, agent: CrashingAgent, number: int) -> None:
        self.agent = agent
        self.deaths = agent.deaths
        self.chance = random.Random(f"{SEED}/{number}")
        self.timers: list[threading.Timer] = []
        count = self.chance.randint(1, 3)
        self.jobs = [self._job(3 * number + index + 1, index, count) for index in range(count)]
        self.story: list[str] = []

    def play(self) -> None:
        agent = self.agent
        before = agent.settings()
        truth = agent.truth()["energy_joules"]
        acts = self._acts()
        victims = self.chance.sample(range(len(acts)), k=self.chance.choice([1, 1, 2]))
        for number, (kind, job, name) in enumerate(acts):
            policy, condemned, deaths = job.env["SPANK_ENERGY_POLICY"], number in victims, agent.deaths
            if condemned:
                self._condemn(kind, policy)
            self.story.append(f"{kind} {job.job_id} {name}")
            begun = time.monotonic()
            getattr(self, f"_{kind}")(job, name)
            if not condemned and agent.deaths == deaths and not self.timers:
                self.usual[kind, policy] = agent.changes(), time.monotonic() - begun
                agent.arm(0)
        if agent.deaths == self.deaths:
            self._stop_timers()
            agent.kill()
            self._mourn(certain=True)
        self._come_to_rest()
        assert agent.settings() == before
        self._check_records()
        self._check_energy(truth)

    def _job(self, job_id: int, index: int, count: int) -> Job:
        cores = CORES[count][index]
        first, last = map(int, cores.split("-"))
        env = {**self.agent.env(job_id), "SLURM_JOB_CPUS_PER_NODE": str(2 * (last - first + 1))}
        env["SLURM_JOB_GPUS"] = "0" if count == 1 else str(index % max(1, self.agent.gpus()))
        env["SPANK_ENERGY_POLICY"] = self.chance.choice(POLICIES)
        env |= {"SPANK_ENERGY_MODEL": "xception", "SPANK_ENERGY_TUNING": "off"}  # for edp: a published cap
        if env["SPANK_ENERGY_POLICY"] == "cap" or self.chance.random() < 0.5:
            env["SPANK_ENERGY_CAP"] = str(self.chance.randrange(250, 500))
        return Job(job_id, cores, env, by_hook=HOOK.exists() and self.chance.random() < 0.3)

    def _acts(self) -> list[tuple[str, Job, str]]:
        """Return the steps of the test with all jobs, in a random order.

        A step begins, samples, changes or ends a job. The steps of one job keep their order.
        """
        queues = []
        for job in self.jobs:
            acts = [("begin", job, ""), ("sample", job, ""), ("end", job, "")]
            if self.chance.random() < 0.5:
                acts[2:2] = [("set", job, "")]
            if self.chance.random() < 0.7:
                acts[1:1] = [("step", job, "start")]
                acts[-1:-1] = [("step", job, "end")]
            queues.append(acts)
        mixed = []
        while queues:
            queue = self.chance.choice(queues)
            mixed.append(queue.pop(0))
            queues = [left for left in queues if left]
        return mixed

    def _condemn(self, kind: str, policy: str) -> None:
        """Arrange that senergyd is killed during the next action.

        The kill happens at random either before a given change or after a random delay.
        """
        changes, seconds = self.usual.get((kind, policy), (CHANGES[kind], SECONDS[kind]))
        if self.chance.random() < 0.5:
            calls = self.chance.randint(1, max(1, changes))
            self.story.append(f"die before change {calls} in")
            self.agent.arm(calls)
        else:
            seconds = self.chance.uniform(0, seconds)
            self.story.append(f"die {seconds * 1e3:.1f} ms into")
            self.timers.append(self.agent.kill_after(seconds))

    def _begin(self, job: Job, _name: str) -> None:
        if job.by_hook:
            self.agent.hook("begin", job.env)
            self._mourn()
        else:
            self._ask(op="begin", env=job.env)
        job.begun = self._is_listed(job)
        deadline = time.monotonic() + PATIENCE_S
        while job.by_hook and not job.begun:  # the hook did not wait: its message is processed a little later
            assert time.monotonic() < deadline, "a hook's message was lost"
            time.sleep(0.01)
            job.begun = self._is_listed(job)

    def _is_listed(self, job: Job) -> bool:
        listed = self._ask(op="status")
        while listed is None:
            listed = self._ask(op="status")
        return job.job_id in [entry["job_id"] for entry in listed["jobs"]]

    def _end(self, job: Job, _name: str) -> None:
        if job.by_hook:
            self.agent.hook("end", job.env)
            self._mourn()
            return
        while self._ask(op="end", env=job.env) is None:
            continue

    def _step(self, job: Job, event: str) -> None:
        where = {"cpus": job.cores, "job_cpus": job.cores}
        answer = self._ask(op="step", event=event, job_id=job.job_id, step="0", pid=1, **where)
        if event == "start":
            time.sleep(self.chance.uniform(0, 0.03))  # settings for its CPUs follow the response
        job.stepped = job.stepped or (answer is not None and answer["known"])

    def _set(self, job: Job, _name: str) -> None:
        self._ask(op="set", job_id=job.job_id, cap_watts=self.chance.choice([None, 300, 400]))

    def _sample(self, job: Job, _name: str) -> None:
        time.sleep(self.chance.uniform(0, 0.06))
        self._ask(op="energy", job_id=job.job_id, fresh=True)

    def _ask(self, **message: Any) -> dict[str, Any] | None:
        """Send a request and return the response.

        The result is None if senergyd died during the request. In this case senergyd has been
        restarted.
        """
        try:
            return self.agent.ask(**message)
        except (OSError, ValueError):
            self._mourn(certain=True)
            return None

    def _mourn(self, *, certain: bool = False) -> None:
        """Restart senergyd if it is dead, and check its settings journal.

        Sometimes the new senergyd is also killed during its start.
        """
        if certain:
            self.agent.wait_dead()
        elif self.agent.is_dead():
            self.agent.deaths += 1
        else:
            return
        self.story.append("dead")
        self._stop_timers()
        Round.in_force += bool(self.agent.journal())
        if self.chance.random() < 0.2:
            self.agent.arm(self.chance.randint(1, CHANGES["start"]))
            self.agent.begin_start()
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                if self.agent.is_dead():
                    self.story.append("dead at start")
                    break
                time.sleep(0.002)
            else:
                self.agent.kill()
                self.agent.wait_dead()
            self.agent.arm(0)
            self.agent.journal()
        self.agent.start()

    def _stop_timers(self) -> None:
        self.agent.arm(0)
        for timer in self.timers:
            timer.cancel()
            timer.join()
        self.timers.clear()

    def _come_to_rest(self) -> None:
        """Stop killing senergyd, and wait until senergyd has no pending work."""
        self._stop_timers()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            status = self._ask(op="status")
            if status and not status["jobs"] and not status["spooled"] and not self.agent.left():
                return
            time.sleep(0.01)
        raise AssertionError(f"left: {self.agent.left()}, {status}")

    def _check_records(self) -> None:
        for job in self.jobs:
            records = self.agent.controller.of_job(job.job_id)
            whole = [record for record in records if record.step is None]
            assert len(whole) == 1 or (not whole and not job.begun), (job, records)
            names = [record.step for record in records if record.step is not None]
            assert names == ["0"] or (not names and not job.stepped), (job, records)
            for setting in (setting for record in whole for setting in record.applied):
                assert setting.restored or setting.applied is None or setting.note, (job, setting)

    def _check_energy(self, before: dict[str, float]) -> None:
        """Check that the jobs together got no more energy than the node used.

        The tolerance is the energy by which a counter may lag behind.
        """
        after = self.agent.truth()
        totals: dict[str, float] = {}
        for job in self.jobs:
            for record in self.agent.controller.of_job(job.job_id):
                parts = [part for part in record.components if part.energy_joules is not None]
                assert all(part.energy_joules >= 0 for part in parts), record
                for part in parts if record.step is None else []:
                    totals[part.name] = totals.get(part.name, 0.0) + part.energy_joules
        self._check_accounts()
        for name, joules in totals.items():
            used = after["energy_joules"][name] - before[name]
            assert joules <= used + 0.03 * after["power_watts"][name], (name, joules, used)

    def _check_accounts(self) -> None:
        """Check the energy accounts of the agent against the records that it has delivered.

        For each component, the charged energy (jobs, idle and unattributed) must equal the measured energy.
        The energy that is charged to jobs must equal the sum over all records of jobs.
        """
        recorded: dict[str, float] = {}
        for record in self.agent.controller.records.values():
            for part in record.components if record.step is None else ():
                if part.energy_joules is not None and part.name != "node":
                    recorded[part.name] = recorded.get(part.name, 0.0) + part.energy_joules
        accounts = self.agent.ask(op="status")["energy_accounts"]
        assert accounts.keys() >= recorded.keys()
        for name, line in accounts.items():
            assert line["jobs"] + line["idle"] + line["unattributed"] == line["measured"], (name, line)
            assert line["jobs"] / 1e6 == pytest.approx(recorded.get(name, 0.0), abs=1e-3), (name, line)


def test_kill_9_at_random_instants(agent: CrashingAgent) -> None:
    deaths = agent.deaths
    numbers = [int(ONLY)] if ONLY else list(range(ROUNDS))
    print(f"seed {SEED}, {len(numbers)} rounds")
    for number in numbers:
        played = Round(agent, number)
        try:
            played.play()
        except Exception:
            print(f"SENERGY_KILL_SEED={SEED} SENERGY_KILL_ONLY={number}: {'; '.join(played.story)}")
            print("\n".join(json.dumps(job.env) for job in played.jobs))
            print(agent.log()[-4000:])
            raise
    died = agent.deaths - deaths
    print(f"senergyd died {died} times, {Round.in_force} of them with settings in force")
    assert died >= len(numbers)
    assert ONLY or Round.in_force >= len(numbers) // 3


def test_kill_9_while_hooks_come_together(agent: CrashingAgent) -> None:
    agent.come_to_rest()
    before = agent.settings()
    chance = random.Random(f"{SEED}/together")
    for number in range(1, max(5, ROUNDS // 10) + 1):
        jobs = []
        for index, cores in enumerate(CORES[3]):
            first, last = map(int, cores.split("-"))
            env = {**agent.env(40_000 + 3 * number + index), "SLURM_JOB_GPUS": str(index)}
            env["SLURM_JOB_CPUS_PER_NODE"] = str(2 * (last - first + 1))
            jobs.append(env | {"SPANK_ENERGY_POLICY": "cap", "SPANK_ENERGY_CAP": str(250 + 50 * index)})
        for operation in ("begin", "end"):
            with ThreadPoolExecutor(len(jobs)) as pool:
                hooks = [pool.submit(agent.hook, operation, env) for env in jobs]
                time.sleep(chance.uniform(0, 0.03))
                agent.kill()
                assert [hook.result().returncode for hook in hooks] == [0] * len(jobs)
            agent.wait_dead()
            agent.revive(dead=True)
        agent.come_to_rest()
        assert agent.settings() == before
        for env in jobs:
            assert len(agent.controller.of_job(int(env["SLURM_JOB_ID"]))) == 1


@pytest.mark.parametrize("operation", ["begin", "end"])
def test_kill_9_before_each_change(agent: CrashingAgent, operation: str) -> None:
    """The hook's message about a job is never lost if senergyd is killed before a change of a file.

    The job has a policy that changes settings of CPUs, packages and GPUs. senergyd is killed before one
    change after another during the begin or the end of the job.
    """
    agent.come_to_rest()
    before = agent.settings()
    env = {**agent.env(0), "SPANK_ENERGY_POLICY": "powersave", "SPANK_ENERGY_CAP": "500"}
    base = 10_000 if operation == "begin" else 20_000
    last, step = _changes_of(agent, operation, env, base), 1
    if ROUNDS < 300:
        step = last // 5
    for number in range(1 + SEED % step, last + 1, step):
        job = {**env, "SLURM_JOB_ID": str(base + number)}
        for each in ("begin", "end"):
            if each == operation:
                agent.arm(number)
            agent.hook(each, job)
            if agent.revive() and each == "end":
                assert agent.settings() == before, f"right after the start, {number} of {last}"
        try:
            agent.come_to_rest()
            agent.arm(0)
            agent.come_to_rest()  # a resting senergyd still writes periodically, and may have died of that
        except (OSError, ValueError):
            agent.wait_dead()
            agent.revive(dead=True)
            agent.come_to_rest()
        assert agent.settings() == before, f"{operation}, before change {number} of {last}"
        (record,) = agent.controller.of_job(base + number)
        assert all(setting.restored for setting in record.applied)


def _changes_of(agent: CrashingAgent, operation: str, env: dict[str, str], job_id: int) -> int:
    """Return the number of file changes that senergyd makes in an operation (`begin` or `end`).

    For `end`, the changes are counted until senergyd has no pending work.
    """
    counts = {}
    for each in ("begin", "end"):
        agent.arm(0)
        agent.hook(each, {**env, "SLURM_JOB_ID": str(job_id)})
        if each == "end":
            agent.come_to_rest()
        counts[each] = agent.changes()
    return counts[operation]


def test_kill_9_before_each_change_of_restore_by_hand(agent: CrashingAgent) -> None:
    agent.come_to_rest()
    before = agent.settings()
    env = {**agent.env(0), "SPANK_ENERGY_POLICY": "powersave", "SPANK_ENERGY_CAP": "500"}
    number, step, last = 1, 1 if ROUNDS >= 300 else 30, 1_000_000
    while number <= last:
        job = {**env, "SLURM_JOB_ID": str(30_000 + number)}
        agent.hook("begin", job)
        agent.kill()
        agent.wait_dead()
        agent.arm(number)
        agent.begin_start("--restore")
        agent.wait_dead()
        last = number if agent.changes() < number else last  # it had no pending work
        agent.arm(0)
        agent.journal()
        agent.begin_start("--restore")
        agent.wait_dead()
        assert agent.settings() == before, number
        assert agent.journal() == []
        agent.start()
        agent.hook("end", job)
        agent.come_to_rest()
        assert agent.settings() == before
        (record,) = agent.controller.of_job(30_000 + number)
        assert all(setting.restored for setting in record.applied), record.applied
        number += step
