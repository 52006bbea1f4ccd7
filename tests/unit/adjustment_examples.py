"""Example data for tests of adjustments, which are values that the diagnosis advises.

The module has a database of senergyctld with trials, and training jobs whose loader is too slow.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import diagnosis_examples
from store_examples import Accounting, job

from slurm_energy import config as configuration
from slurm_energy.accounting.history import run_history
from slurm_energy.controller.diagnosis.adjustment_loop import AdjustmentLoop
from slurm_energy.controller.diagnosis.adjustment_routes import AdjustmentRoutes
from slurm_energy.controller.diagnosis.adjustment_trials import AdjustmentTrials
from slurm_energy.controller.diagnosis.run_diagnosis import RunDiagnosis
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender, Verdict
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.queue.running_jobs import AllocatedJob
from slurm_energy_lab.diagnosis_corpus.observe import observe
from slurm_energy_lab.diagnosis_corpus.planted import training_job
from slurm_energy_lab.diagnosis_corpus.training_loop import step_times

FINGERPRINT = "0123456789abcdef"
ALICE, MALLORY = Rights(2001, "alice"), Rights(2002, "mallory")
OPERATOR = Rights(3000, "olga", everything=True)
SENDER = Sender("10.0.0.1")
_START = 1_700_000_000.0
_ELAPSED_S = 1800.0


class _Hosts:
    """Stub of the check of node addresses: every sender may report for every node."""

    async def verdicts(self, nodes, sender, mode):
        return dict.fromkeys(nodes, Verdict.ALLOWED)


def slow_loader(workers=1, *, speedup=True):
    """Return a training job whose data loader is too slow for its one worker.

    The job would need four workers. If `speedup` is false, more workers do not help.
    """
    shape = training_job(Random(5), max_ranks=1)
    loop = shape.loop
    loop.cpus = shape.cpus = 16
    compute_s = step_times(loop)[0].compute
    loop.sample_cpu_s = compute_s / loop.batch * 3.0
    loop.workers = workers if speedup else 1
    steps = 1000
    shape.elapsed_s = shape.startup_s + steps * step_times(loop)[0].step
    return shape


class Site:
    """A fake site for tests: the parts of senergyctld that try adjusted values for programs.

    It contains the trials, the HTTP handlers and the periodic task. Finished runs are delivered one after
    the other.

    Args:
        directory: directory of the database.
        monkeypatch: replaces squeue.
        settings: section `[diagnosis]` of the configuration.
    """

    def __init__(self, directory, monkeypatch, settings=""):
        text = f'[cluster]\nname = "c1"\n[diagnosis]\n{settings}'
        self.config = configuration.parse(text)
        self.accounting = Accounting(directory)
        self.store = Store(self.accounting.path)
        self.jobs, self.now, self.last_job = {}, _START, 100
        monkeypatch.setattr(
            "slurm_energy.controller.running_jobs.read_running_jobs", lambda run: dict(self.jobs)
        )
        monkeypatch.setattr("slurm_energy.controller.running_jobs.MIN_AGE_S", -1.0)
        advisor = TuningAdvisor(lambda: self.config, self.store, _Hosts(), RunningJobCache(None))
        diagnosis = RunDiagnosis(lambda: self.config, self.store)
        clock = lambda: self.now  # noqa: E731
        self.trials = AdjustmentTrials(lambda: self.config, self.store, diagnosis, clock)
        self.routes = AdjustmentRoutes(lambda: self.config, self.store, self.trials, advisor, clock)
        failures = RepeatedFailureLog(logging.getLogger("test"))
        self.loop = AdjustmentLoop(lambda: self.config, self.store, self.trials, failures, clock)

    def begin(self, rights=ALICE, fingerprint=FINGERPRINT):
        """Start a job of a user on node n1 and return its id."""
        self.last_job += 1
        self.now += 60.0
        flags = {"ENERGY_FINGERPRINT": fingerprint} if fingerprint else {}
        self.jobs[self.last_job] = AllocatedJob(self.last_job, rights.uid, 0, "cpu", "n1", flags)
        return self.last_job

    async def request(self, job_id, *names, restarts=0):
        """Request the values `names` of a job from the fake controller, and return the values.

        The request is the one that senergyd of node n1 sends when a program in the job asks for its adjusted
        values.
        """
        self.jobs[job_id] = self.jobs[job_id]._replace(restart_count=restarts)
        query = {"node": "n1", "job_id": str(job_id), "restart_count": str(restarts)}
        query["requested"] = ",".join(names)
        return (await self.routes.values(query, SENDER))["values"]

    def end(self, job_id, shape, rights=ALICE, *, policy="monitor", state="COMPLETED", restarts=0):
        """End a job of the test site and deliver its data. `restarts` is the number of its earlier requeues.

        The record, the power trace and the observation are those of a training job with parameters `shape`.
        """
        del self.jobs[job_id]
        observation = observe(shape, Random(job_id), start_s=self.now)
        observation = replace(observation, context=replace(observation.context, state=state, job_id=job_id))
        answers = diagnosis_examples.answers(observation, job_id)
        nodes = {node["node"]: node for node in answers[f"/v1/jobs/{job_id}/observation"]["nodes"]}
        for data in answers[f"/v1/jobs/{job_id}"]["records"]:
            trace = data.pop("trace")
            data.pop("job")
            data |= {"uid": rights.uid, "user": rights.name, "policy": policy, "cluster": "c1"}
            data |= {"fingerprint": FINGERPRINT, "restart_count": restarts, "model": None}
            entry = {"record": data, "trace": trace, "observation": nodes[data["node"]]}
            self.accounting.deliver(entry, now=self.now)
        start, end = observation.context.start_s, observation.context.start_s + observation.context.elapsed_s
        self.now = end + 60.0
        facts = job(
            job_id,
            start=start,
            end=end,
            submit=start - 5,
            state=state,
            user=rights.name,
            elapsed_s=end - start,
        )
        self.accounting.learn(facts, now=self.now)
        with self.accounting.connect() as connection:
            run_history.store_finished_runs(connection, self.now)

    async def run(self, shape_of, *names, rights=ALICE, **options):
        """Run a job whose program requests adjusted values, and return its job id and these values.

        `names` contains the names of the requested values. `shape_of` is a function. It gets the received
        values, and returns the parameters of the synthetic job that then runs.
        """
        job_id = self.begin(rights)
        values = await self.request(job_id, *names) if names else {}
        self.end(
            job_id, shape_of({name: values[name] for name in names if name in values}), rights, **options
        )
        return job_id, values

    async def trial_states(self, rights=ALICE):
        """Return the states of all trials of adjustments that a user may see, oldest first."""
        answer = await self.routes.show({}, rights)
        return [trial["state"] for trial in answer["trials"]]


def with_workers(values):
    """Return the recorded steps of a training job whose number of loader workers is adjusted.

    More workers make the job faster.

    Args:
        values: adjusted values by name; `workers` is 1 if absent.
    """
    return slow_loader(values.get("workers", 1))


def without_effect(values):
    """Return a training run on which a change of the number of loader workers has no effect.

    The run always has a slow data loader with one worker, whatever `values` states.
    """
    shape = slow_loader(1)
    if "workers" in values:
        shape.loop.workers = 1
    return shape
