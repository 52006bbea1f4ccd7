"""Test the controller's tuning advice to agents and the routes of `senergy tune`.

The tests check that users see and change only their own programs, and that requests for jobs of other
nodes are refused. They also check that only one run of a program at a time tries new settings
(explores).
"""

from __future__ import annotations

import asyncio
import logging

import pytest
from fake_controller import install
from store_examples import NOW, Accounting, item, job

from slurm_energy import config as configuration
from slurm_energy.accounting import engine
from slurm_energy.accounting.history import run_history
from slurm_energy.cli.main import main
from slurm_energy.controller import running_jobs
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender, Verdict
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.advisor import TuningAdvisor
from slurm_energy.controller.tuning.learner import TuningLearner
from slurm_energy.controller.tuning.routes import TuningRoutes
from slurm_energy.errors import EnergyError, ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.protocol.tuning_advice import AdviceRequest
from slurm_energy.records import AppliedSetting, ComponentEnergy, EnergyRecord, JobDevice
from slurm_energy.slurm.queue.running_jobs import AllocatedJob, read_running_jobs
from slurm_energy.tuning.response_curve import CurveSource, ResponseCurve, ResponsePoint

pytestmark = pytest.mark.slow

A40 = "NVIDIA A40"
DIGEST, OTHER = "0123456789abcdef", "fedcba9876543210"
UIDS = {"root": 0, "alice": 2001, "mallory": 2002}
ALICE, MALLORY = (Rights(UIDS[name], name) for name in ("alice", "mallory"))
OPERATOR = Rights(3000, "olga", everything=True)
SENDER = Sender("10.0.0.1")
CONFIG = configuration.parse('[cluster]\nname = "c1"\n')


class Hosts:
    """Stand-in for the address check of nodes.

    Each node gets the verdict that the test specifies, and is allowed without a specified verdict.
    """

    def __init__(self, **verdicts):
        self.verdict_of = verdicts

    async def verdicts(self, nodes, sender, mode):
        return {node: self.verdict_of.get(node, Verdict.ALLOWED) for node in nodes}


class Site:
    """A controller for tests of tuning: a database with learner, advisor and HTTP routes.

    The test decides which jobs run in Slurm.
    """

    def __init__(self, directory, monkeypatch, hosts=None):
        lookups = {
            f"slurm_energy.controller.{module}": names
            for module, names in (
                ("tuning.learner", ("uid_of",)),
                ("tuning.advisor", ("name_of",)),
                ("tuning.routes", ("uid_of", "name_of")),
            )
        }
        of_uid = {uid: name for name, uid in UIDS.items()}
        for module, names in lookups.items():
            for name in names:
                monkeypatch.setattr(f"{module}.{name}", {"uid_of": UIDS.get, "name_of": of_uid.get}[name])
        self.accounting = Accounting(directory)
        self.store = Store(self.accounting.path)
        self.jobs = {}
        self.running = RunningJobCache(None)
        monkeypatch.setattr(
            "slurm_energy.controller.running_jobs.read_running_jobs", lambda run: dict(self.jobs)
        )
        self.advisor = TuningAdvisor(lambda: CONFIG, self.store, hosts or Hosts(), self.running)
        self.routes = TuningRoutes(self.store, self.advisor)
        failures = RepeatedFailureLog(logging.getLogger("test"))
        self.learner = TuningLearner(self.store, failures, lambda: frozenset({0}), lambda: 365.0)
        self.ended = 0

    def start(self, job_id, user="alice", nodes="n1", flags=None, restarts=0):
        self.jobs[job_id] = AllocatedJob(job_id, UIDS[user], restarts, "gpu", nodes, flags or {})
        self.running._read_at_s = float("-inf")

    def end(self, job_id):
        del self.jobs[job_id]
        self.running._read_at_s = float("-inf")

    def finish(self, job_id, user="alice", uid=None, limit=None, seconds=200.0, watts=300.0, nodes=1, **more):
        """Deliver the record of a finished job, and its data in Slurm's accounting."""
        self.ended += 1
        applied = ()
        if limit is not None:
            applied = (AppliedSetting("nvml.power_limit[gpu0]", "300 W", f"{limit} W", f"{limit} W", True),)
        start = 1000.0 * self.ended
        record = EnergyRecord(
            *("c1", "n1", job_id, UIDS[user] if uid is None else uid, "cap"),
            start=start,
            end=start + seconds,
            components=(ComponentEnergy("gpu[0]", watts * seconds, "nvml"),),
            devices=(JobDevice("gpu[0]", A40, 100.0, 300.0),),
            applied=applied,
            gpus=(0,),
            **{"fingerprint": DIGEST, **more},
        )
        self.accounting.deliver(item(record.to_json()))
        facts = job(job_id, start=start, end=start + seconds, submit=start - 1, user=user, nodes=nodes)
        self.accounting.learn(facts)

    def learn(self):
        with engine.connect(self.accounting.path) as connection:
            run_history.store_finished_runs(connection, NOW)
        return asyncio.run(self.learner.learn())

    def advise(self, job_id, node="n1", hardware=A40, objective="edp", **more):
        request = AdviceRequest(node, job_id, more.pop("restart_count", 0), hardware, objective, **more)
        parsed = AdviceRequest.from_query(request.parameters())
        assert parsed == request
        return asyncio.run(self.routes.advise(request.parameters(), SENDER))

    def show(self, rights, **query):
        return asyncio.run(self.routes.show(query, rights))["programs"]

    def change(self, action, rights, **body):
        return asyncio.run(getattr(self.routes, action)(body, rights))


@pytest.fixture
def site(tmp_path, monkeypatch):
    made = Site(tmp_path, monkeypatch)
    yield made
    made.store.close()


def trained(site, repeats=3):
    """Let senergyctld learn runs of a program of the user alice, with and without a power limit.

    A limit of 200 W saves a third of the power and costs 2 % of the time.
    """
    for number in range(repeats):
        site.finish(100 + 2 * number)
        site.finish(101 + 2 * number, limit=200, seconds=204.0, watts=200.0)
    assert site.learn() == 2 * repeats


class TestLearning:
    def test_runs_at_fixed_caps_become_a_curve_once(self, site):
        trained(site)
        (program,) = site.show(ALICE)
        assert (program["user"], program["workload"], program["hardware"]) == ("alice", DIGEST, A40)
        point = next(one for one in program["curve"]["points"] if one["point"])
        assert point["point"] == {"gpu_limit_watts": 200.0} and point["count"] == 3
        assert point["time_ratio"] == pytest.approx(1.02) and point["power_ratio"] == pytest.approx(2 / 3)
        assert site.learn() == 0 and site.show(ALICE)[0]["runs"] == 6

    def test_the_owner_is_the_user_in_slurm_not_the_record(self, site):
        site.finish(1, user="mallory", uid=UIDS["alice"])  # a node claims another uid than Slurm
        site.learn()
        assert site.show(OPERATOR) == []

    def test_a_users_characterisation_tag_makes_no_site_curve(self, site):
        tag = "senergy-characterise/compute"
        site.finish(1, user="mallory", tag=tag)
        site.finish(2, user="mallory", limit=200, tag=tag)
        site.finish(3, user="mallory", uid=0, limit=200, tag=tag)
        site.learn()
        assert site.show(OPERATOR, site="1") == [] and site.show(MALLORY) == []
        site.finish(4, user="root", tag=tag, fingerprint=None)
        site.finish(5, user="root", limit=200, tag=tag, seconds=220.0, watts=200.0, fingerprint=None)
        site.learn()
        (program,) = site.show(MALLORY, site="1")
        assert (program["workload"], program["curve"]["points"][0]["source"]) == (
            "compute",
            "characterisation",
        )
        site.start(9)
        assert [curve["workload"] for curve in site.advise(9)["site_curves"]] == ["compute"]

    @pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "CANCELLED by 0"])
    def test_incomplete_runs_are_not_learned(self, site, state, monkeypatch):
        site.finish(1, nodes=2)
        site.learn()
        with engine.connect(site.accounting.path) as connection:
            connection.exec_driver_sql("UPDATE jobs SET learned = 1")
        assert asyncio.run(site.learner.learn()) == 1 and site.show(ALICE) == []
        site.finish(2)
        with engine.connect(site.accounting.path) as connection:
            connection.exec_driver_sql("UPDATE jobs SET state = ?", (state,))
        site.learn()
        assert site.show(ALICE) == []


class TestAdvice:
    def test_a_node_gets_the_curve_and_the_start_of_its_job(self, site):
        trained(site)
        site.start(7, nodes="n[1-2]")
        answer = site.advise(7, fingerprint=DIGEST, watts=300.0, gpu_watts=290.0)
        curve = ResponseCurve.from_json(answer["curve"])
        assert (curve.hardware, curve.workload, answer["mode"]) == (A40, DIGEST, "on")
        OperatingPoint.from_json(answer["start"])
        assert answer["start_source"] == CurveSource.EARLIER_RUNS and not answer["pinned"]
        again = site.advise(7, node="n2")  # does not know the fingerprint
        assert (again["start"], again["exploration"]) == (answer["start"], answer["exploration"])

    def test_curves_of_another_user_stay_secret_whatever_the_node_claims(self, site):
        trained(site)
        site.start(8, user="mallory")
        answer = site.advise(8, fingerprint=DIGEST, model="bert-base")
        assert (answer["curve"], answer["start"], answer["fingerprint"]) == (None, None, DIGEST)

    def test_the_fingerprint_in_slurm_takes_precedence(self, site):
        trained(site)
        site.start(7, flags={"ENERGY_FINGERPRINT": OTHER})
        assert site.advise(7, fingerprint=DIGEST)["fingerprint"] == OTHER

    def test_jobs_on_other_nodes_and_unknown_jobs_are_refused(self, site, tmp_path, monkeypatch):
        site.start(7, nodes="n[2-3]", restarts=1)
        with pytest.raises(ForbiddenError, match="does not run on node n1"):
            site.advise(7, restart_count=1)
        for wrong in ({"restart_count": 0}, {"job_id": 8}):
            with pytest.raises(NotFoundError):
                site.advise(**{"job_id": 7, "node": "n2", **wrong})
        for verdict, error in ((Verdict.REFUSED, ForbiddenError), (Verdict.ABSENT, NotFoundError)):
            site.advisor._hosts = Hosts(n2=verdict)
            with pytest.raises(error):
                site.advise(7, node="n2", restart_count=1)

    @pytest.mark.parametrize(
        "query",
        [
            {"node": "n1", "job_id": "7", "restart_count": "0"},
            {"node": "n1", "job_id": "-7", "restart_count": "0", "hardware": A40},
            {"node": "n\n1", "job_id": "7", "restart_count": "0", "hardware": A40},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": "A" * 300},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": A40, "fingerprint": "../etc"},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": A40, "model": "a b"},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": A40, "slowdown_limit": "nan"},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": A40, "slowdown_limit": "0.05"},
            {"node": "n1", "job_id": "7", "restart_count": "0", "hardware": A40, "objective": "speed"},
        ],
    )
    def test_malformed_requests_are_usage_errors(self, site, query):
        site.start(7)
        with pytest.raises(UsageError):
            asyncio.run(site.routes.advise(query, SENDER))

    def test_one_run_of_a_program_explores_at_a_time(self, site, monkeypatch):
        trained(site)
        from slurm_energy.controller.tuning import advisor
        from slurm_energy.tuning.recurring_start import RecurringStart

        tried, best = OperatingPoint(gpu_limit_watts=150.0), OperatingPoint(gpu_limit_watts=200.0)
        made = RecurringStart(tried, True, best)
        monkeypatch.setattr(advisor, "recurring_start", lambda *args, **more: made)
        for job_id in (7, 8):
            site.start(job_id)
        answers = [site.advise(job_id, fingerprint=DIGEST) for job_id in (7, 8, 7)]
        assert [answer["exploration"] for answer in answers] == [True, False, True]
        assert answers[1]["start"] == best.to_json()
        site.start(6)
        advised = site.advise(6, fingerprint=DIGEST, mode="advise")
        assert (advised["start"], advised["exploration"]) == (best.to_json(), False)
        site.end(7)
        assert not site.advise(6, fingerprint=DIGEST, mode="advise")["exploration"]
        site.start(9)
        assert site.advise(9, fingerprint=DIGEST)["exploration"]

    def test_a_pin_is_the_start(self, site):
        trained(site)
        site.change("pin", ALICE, workload=DIGEST, point={"gpu_limit_watts": 250})
        site.start(7)
        answer = site.advise(7, fingerprint=DIGEST)
        assert answer["pinned"] and answer["start"] == {"gpu_limit_watts": 250}
        assert (answer["start_source"], answer["exploration"]) == ("pinned", False)
        site.change("unpin", ALICE, workload=DIGEST)
        assert not site.advise(7, fingerprint=DIGEST)["pinned"]

    def test_without_runs_the_oracle_gives_the_curve_of_a_model(self, site):
        point = ResponsePoint(OperatingPoint(gpu_limit_watts=200.0), 1.05, 0.8, CurveSource.ORACLE)
        site.advisor.oracle = lambda model, hardware: ResponseCurve(hardware, model, (point,))
        site.start(7, flags={"ENERGY_MODEL": "bert-base"})
        answer = site.advise(7)
        assert answer["curve"]["points"][0]["source"] == "oracle"
        assert (answer["workload"], answer["start"]) == ("bert-base", None)

    def test_slurm_without_an_answer_is_a_temporary_error(self, site, monkeypatch):
        def unavailable(run):
            raise UnavailableError("squeue", "no answer")

        calls = []
        monkeypatch.setattr(
            running_jobs, "read_running_jobs", lambda run: calls.append(1) or unavailable(run)
        )
        for _ in range(3):
            with pytest.raises(UnavailableError):
                site.advise(7)
        assert calls == [1]  # slurmctld is asked again some seconds later


class TestPrograms:
    def test_users_see_and_change_their_own_programs_only(self, site):
        trained(site)
        assert site.show(MALLORY) == [] and len(site.show(OPERATOR)) == 1
        assert len(site.show(OPERATOR, user="alice")) == 1
        for call in (
            lambda: site.show(MALLORY, user="alice"),
            lambda: site.change("forget", MALLORY, user="alice", workload=DIGEST),
            lambda: site.change("pin", MALLORY, user="alice", workload=DIGEST, point={}),
            lambda: site.change("unpin", MALLORY, user="alice", workload=DIGEST),
            lambda: site.change("forget", MALLORY, site=True, all=True),
        ):
            with pytest.raises(ForbiddenError):
                call()
        with pytest.raises(NotFoundError):
            site.change("forget", MALLORY, workload=DIGEST)
        assert site.change("forget", OPERATOR, user="alice", workload=DIGEST) == {"forgotten_runs": 6}
        assert site.show(ALICE) == []

    @pytest.mark.parametrize(
        ("action", "body", "error"),
        [
            ("pin", {"workload": DIGEST, "point": {"gpu_limit_watts": 900}}, UsageError),
            ("pin", {"workload": DIGEST, "point": {"gpu_limit_watts": -1}}, UsageError),
            ("pin", {"workload": DIGEST, "point": {"voltage": 1}}, UsageError),
            ("pin", {"workload": DIGEST}, UsageError),
            ("pin", {"workload": OTHER, "point": {}}, NotFoundError),
            ("pin", {"workload": ["x"], "point": {}}, UsageError),
            ("pin", {"point": {}}, UsageError),
            ("unpin", {"workload": DIGEST}, NotFoundError),
            ("unpin", {}, UsageError),
            ("forget", {}, UsageError),
            ("forget", {"workload": DIGEST, "owner": "alice"}, UsageError),
        ],
    )
    def test_bad_requests(self, site, action, body, error):
        trained(site, 1)
        with pytest.raises(error) as caught:
            site.change(action, ALICE, **body)
        assert "\n" not in str(caught.value)


def test_running_jobs_are_read_from_squeue_whatever_a_comment_contains():
    def run(command):
        delimiter = command.environment["SQUEUE_FORMAT2"].split(",")[0].partition(":")[2]
        fields = ["12", "2001", "1", "gpu", "n[1-3]", "x\n13|0| energy-flags: ENERGY_MODEL=bert; 1 2"]
        fields += ["chem", "normal", "watts:300", "1700000000", "N/A"]
        return "".join(field + delimiter for field in fields) + "\n"

    (running,) = read_running_jobs(run).values()
    assert (running.job_id, running.uid, running.restart_count) == (12, 2001, 1)
    assert running.nodes == {"n1", "n2", "n3"} and running.flags == {"ENERGY_MODEL": "bert"}
    assert (running.account, running.qos, running.licenses) == ("chem", "normal", "watts:300")
    assert (running.end_unix_s, running.deadline_unix_s) == (1.7e9, None)


PROGRAM = {
    "user": "alice",
    "workload": DIGEST,
    "hardware": A40,
    "model": "bert-base",
    "runs": 6,
    "explorations": 1,
    "last_run_unix_s": 1000.0,
    "last_job": "12_3",
    "pin": {"pinned_by": "root", "point": {"gpu_limit_watts": 250}},
    "curve": {
        "points": [
            {"point": {"gpu_limit_watts": 200.0}, "time_ratio": 1.02, "power_ratio": 0.7, "time_error": 0.01}
        ]
    },
}


class TestCommand:
    def test_show(self, monkeypatch, capsys):
        fake = install(monkeypatch, {"/v1/tuning": {"scope": "all", "programs": [PROGRAM]}})
        assert main(["tune", "show", DIGEST, "--user", "alice"]) == 0
        assert fake.asked == [("/v1/tuning", {"user": "alice", "workload": DIGEST})]
        out = capsys.readouterr().out
        assert "6 runs learned, 1 of them explorations" in out and "job 12_3" in out
        assert "pinned by root: GPU limit 250 W" in out
        assert "+2.0%" in out and "-30.0%" in out and "-28.6%" in out and "GPU limit 200 W" in out
        assert main(["tune", "show", "--json"]) == 0

    def test_nothing_known(self, monkeypatch, capsys):
        install(monkeypatch, {"/v1/tuning": {"scope": "own", "programs": []}})
        assert main(["tune", "show"]) == 0
        assert main(["tune", "show", DIGEST]) == 6

    def test_changes(self, monkeypatch, capsys, tmp_path):
        posted = []

        def post(path, body):
            posted.append((path, body))
            return {"pinned": PROGRAM["pin"] | {"workload": "w", "user": "alice", "hardware": A40}}

        fake = install(monkeypatch, {})
        fake.post = post
        script = tmp_path / "job.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        assert (
            main(["tune", "pin", "--script", str(script), "--gpu-cap", "0.25kW", "--cpu-freq", "2.4GHz"]) == 0
        )
        ((path, body),) = posted
        assert path == "/v1/tuning/pin" and len(body["workload"]) == 16
        assert body["point"] == {"gpu_limit_watts": 250.0, "cpu_max_mhz": 2400.0}
        for wrong in (
            ["pin", DIGEST],
            ["pin", "--gpu-cap", "250"],
            ["pin", DIGEST, "--gpu-cap", "250", "--untuned"],
            ["pin", DIGEST, "--gpu-cap", "much"],
            ["pin", DIGEST, "--power-profile", "FASTER"],
            ["unpin"],
            ["show", DIGEST, "--script", str(script)],
            ["show", "--script", str(tmp_path / "missing")],
        ):
            assert main(["tune", *wrong]) == 2
        assert len(posted) == 1

    @pytest.mark.parametrize(("error", "code"), [(ForbiddenError("x"), 5), (NotFoundError("x"), 6)])
    def test_errors_of_the_controller(self, monkeypatch, error: EnergyError, code):
        install(monkeypatch, {"/v1/tuning": error})
        assert main(["tune", "show", DIGEST]) == code
