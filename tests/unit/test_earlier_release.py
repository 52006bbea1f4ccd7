"""Tests of the compatibility with release 0.1 in both directions.

This release reads the files and messages of release 0.1. The files in tests/releases/0.1 are outputs of
release 0.1, see record_release.py. Release 0.1 also reads the files and messages of this release. If the
clone contains the commit of release 0.1, its own code checks this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_examples import Accounting
from test_job_manager import PACKAGES, Node, env, make, node  # noqa: F401

from slurm_energy.accounting import engine
from slurm_energy.accounting.records import periods
from slurm_energy.accounting.schema import migrations
from slurm_energy.agent.sockets import messages
from slurm_energy.agent.state.delivery import parse_delivery_response
from slurm_energy.agent.state.spooled_record import SpooledRecord
from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy.config import BudgetConfig, Config, SitePolicy
from slurm_energy.config.loader import parse_source
from slurm_energy.known_fields import NewerStateError
from slurm_energy.node_period import NodePeriod
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.protocol.live_reports import LiveReport
from slurm_energy.protocol.tuning_advice import AdviceRequest
from slurm_energy.records import SCHEMA_VERSION, EnergyRecord
from slurm_energy.slurm.hook_environment import job_context

COMMIT = "441f2bc8"
ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "tests/releases/0.1"
FUTURE = {"key_of_a_newer_release": {"nested": [1, "x", None]}}


def stored(pattern: str) -> list[Any]:
    paths = sorted(RELEASE.glob(pattern))
    assert paths, pattern
    return [json.loads(path.read_text()) for path in paths]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def exchanged(path: str) -> dict[str, Any]:
    """Return an example request and response that an earlier release exchanged on the route `path`."""
    requests = json.loads((RELEASE / "controller_messages.json").read_text())
    return next(entry for entry in requests if entry["path"] == path and "response" in entry)


@pytest.fixture
def state(tmp_path: Path):
    """Return a function that copies a state directory that release 0.1 has written.

    The directory is part of the test data.
    """

    def copy(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(RELEASE / name, folder)
        folder.chmod(0o700)
        return folder

    return copy


class TestReading:
    def test_records_and_traces_are_stored_as_they_are(self, tmp_path: Path) -> None:
        accounting = Accounting(tmp_path)
        records = stored("state-ended/spool/*.json")
        traces = {
            path.stem: json.loads(path.read_text()) for path in RELEASE.glob("state-ended/spool/*.trace")
        }
        for path, record in zip(sorted(RELEASE.glob("state-ended/spool/*.json")), records, strict=True):
            assert as_json(EnergyRecord.from_json(record).to_json()) == record
            accounting.deliver({"record": record, "trace": traces.get(path.stem)})
        rows = {row["record_id"]: row for row in accounting.find(steps="1", with_traces=True)}
        assert len(rows) == len(records) == 3
        for record in records:
            assert {key: rows[record["record_id"]][key] for key in record} == record
        assert sum(row["trace"] is not None for row in rows.values()) == len(traces) == 2

    def test_periods_are_stored(self, tmp_path: Path) -> None:
        items = [{"period": period} for period in stored("state-ended/periods/*.json")]
        parsed, refusals = periods.read_periods(items)
        assert (len(parsed), refusals) == (1, [])
        with engine.connect(Accounting(tmp_path).path) as connection:
            accepted, refusals = periods.store_periods(connection, parsed, 1.0)
        assert (len(accepted), refusals) == (1, [])

    def test_live_reports_and_polls_of_an_agent_are_read(self) -> None:
        report = exchanged("/v1/live")
        written = as_json(LiveReport.from_json(report["body"]).to_json())
        assert {key: written[key] for key in report["body"]} == report["body"]
        poll = exchanged("/v1/budget/poll")
        assert NodePoll.from_json(poll["body"]).node == "n1"

    def test_answers_of_a_controller_are_read(self) -> None:
        delivery = exchanged("/v1/records")
        items = [
            SpooledRecord(f"1-{item['record']['record_id']}.json", item["record"], None)
            for item in delivery["body"]["items"]
        ]
        assert len(parse_delivery_response(items, delivery["response"]).accepted) == len(items) > 0
        assert NodeDecision.from_json(exchanged("/v1/budget/poll")["response"])
        assert NodeDecision.from_json(json.loads((RELEASE / "decision.json").read_text())).number == 3

    def test_messages_of_a_hook_are_read(self) -> None:
        for name in ("hook_begin.json", "deferred_begin.json"):
            message = messages.parse((RELEASE / name).read_bytes())
            context = job_context(message["env"])
            assert (message["op"], context.job_id, dict(context.flags)) == (
                *("begin", 9),
                {"ENERGY_POLICY": "monitor"},
            )

    def test_every_key_of_its_configuration_is_valid(self) -> None:
        source = parse_source((RELEASE / "energy.toml").read_text())
        assert source.findings == ()
        assert len(source.keys) > 100

    def test_its_tables_have_the_layout_of_this_release(self) -> None:
        """The queue tables that release 0.1 wrote still have the layout of this release.

        The layout must not change, because slurmctld keeps the plugin of release 0.1 loaded until it
        restarts. The plugin must then read the tables of any release of senergyctld.
        """
        table_file, source = (
            pytest.importorskip(f"slurm_energy.{name}")
            for name in ("priority.table_file", "slurm.queue.table_source")
        )
        old = (RELEASE / "priority.table").read_bytes()
        header = np.frombuffer(old, table_file.HEADER, 1)[0]
        times = {"sequence": int(header["sequence"]), "written_unix_s": float(header["written_unix_s"])}
        assert table_file.encode([7, 8], [1000, 2000], default=-5, **times) == old
        _, entries, _ = source._snapshot(RELEASE / "queue.table", (RELEASE / "queue.table").read_bytes())
        assert entries["job_id"].tolist() == [7, 8]

    def test_a_job_that_ran_at_the_upgrade_gets_its_settings_back_and_its_record(self, node: Node) -> None:  # noqa: F811
        adopt_state(node)
        manager = node.manager = node.start()
        assert [job["job_id"] for job in manager.status(0)["jobs"]] == [7]
        manager.end(env(7))
        (record,) = [record for record in node.records() if record.step is None]
        assert (record.job_id, record.policy, record.tag) == (7, "cap", "first")
        assert len(record.applied) == 3  # of both packages
        assert all(setting.restored for setting in record.applied)
        for entry in journal_of_0_1():
            assert node.tree.get(knob_file(entry["key"])) == entry["original"]
        assert not (node.folder / "state/journal.json").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["mariadb", "postgresql"])
    def test_its_databases_are_upgraded(self, name: str, database_servers) -> None:
        with database_servers.database(name) as url:
            load_dump(name, database_servers.get(name), url)
            migrations.check(url)
            migrations.prepare(url)
            migrations.prepare(url)
            rows = Accounting(url).find()
            assert [(row["job_id"], row["job"] and row["job"]["user"]) for row in rows] == [
                *((100, "alice"), (101, "bob"), (102, None), (103, None)),
            ]


def journal_of_0_1() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((RELEASE / "state-running/journal.json").read_text())[
        "entries"
    ]
    return entries


def knob_file(key: str) -> str:
    """Return the sysfs file of a power-limit setting in the test tree, by the key of the setting."""
    files = {
        "powercap.power_limit": "constraint_0_power_limit_uw",
        "powercap.time_window": "constraint_0_time_window_us",
        "powercap.enabled": "enabled",
    }
    name, _, package = key.rstrip("]").partition("[")
    return f"sys/class/powercap/{PACKAGES[package]}/{files[name]}"


def adopt_state(node: Node) -> None:  # noqa: F811
    """Give a node the files and hardware settings that senergyd 0.1 left while a job ran."""
    node.stop()
    shutil.rmtree(node.folder / "state")
    shutil.copytree(RELEASE / "state-running", node.folder / "state")
    (node.folder / "state").chmod(0o700)
    for entry in journal_of_0_1():
        node.tree.put(knob_file(entry["key"]), entry["written"])
    session = json.loads((node.folder / "state/sessions/7.0.json").read_text())["session"]
    node.clock.boot_id = session["boot_id"]
    node.clock.now = session["meter"]["start"] + 20.0


def load_dump(name: str, server: Any, url: str) -> None:
    database = url.rpartition("/")[2].partition("?")[0]
    program = "mariadb" if name == "mariadb" else "psql"
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    command = [program, "-u", "root", f"--socket={server.directory}/mariadb.sock", database]
    if name == "postgresql":
        command = [
            program,
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            str(server.directory),
            "-U",
            "postgres",
            database,
        ]
    before = b"SET FOREIGN_KEY_CHECKS = 0;\n" if name == "mariadb" else b""
    dump = before + (RELEASE / f"{name}.sql").read_bytes()
    subprocess.run(command, input=dump, check=True, timeout=120, stdout=subprocess.DEVNULL)


class TestTolerance:
    """Tests that this release accepts data to which a newer release has added keys.

    Stored data with unknown keys are not refused. The unknown keys are neither lost nor renamed.
    """

    def test_unknown_keys_of_a_record_and_a_period_are_stored(self, tmp_path: Path) -> None:
        accounting = Accounting(tmp_path)
        record = stored("state-ended/spool/*.json")[0]
        record |= FUTURE
        record["components"][0] |= FUTURE
        accounting.deliver({"record": record, "trace": None})
        (found,) = accounting.find(steps="1")
        assert found["components"][0] == record["components"][0]
        assert found["key_of_a_newer_release"] == FUTURE["key_of_a_newer_release"]
        (period,) = stored("state-ended/periods/*.json")
        period |= FUTURE
        period["components"]["cpu"] |= FUTURE
        period["jobs"][0] |= FUTURE
        (item,), refusals = periods.read_periods([{"period": period}])
        assert refusals == []
        run = f"{period['jobs'][0]['job_id']}.{period['jobs'][0]['restart_count']}"
        inner = {"components": {"cpu": FUTURE}, "jobs": {run: FUTURE}}
        assert json.loads(item.extra) == {**FUTURE, "unknown_keys": inner}

    def test_a_period_may_have_an_unknown_key_in_each_job(self) -> None:
        (period,) = stored("state-ended/periods/*.json")
        job = period["jobs"][0]
        idle = [{**job, **FUTURE, "job_id": 1000 + n, "energy_uj": {}} for n in range(1000)]
        period["jobs"] += idle
        assert len(NodePeriod.from_json(period).jobs) == 1000 + len(period["jobs"]) - 1000

    def test_a_live_report_keeps_the_records_that_can_be_read(self) -> None:
        report = exchanged("/v1/live")["body"]
        newer = [{**record, "schema": SCHEMA_VERSION + 1} for record in report["records"]]
        more = {"counts": {"of_a_newer_release": 3}, "facts": FUTURE}
        read = LiveReport.from_json({**report, **FUTURE, **more, "records": report["records"] + newer})
        assert len(read.records) == len(report["records"]) > 0
        assert read.watts == report["watts"]

    def test_unknown_keys_of_a_poll_are_ignored(self) -> None:
        """senergyctld accepts a node's report (poll) that has unknown keys, and ignores these keys.

        If it rejected such reports, the nodes with a newer release would fall back to their safe power limits
        until senergyctld is upgraded.
        """
        poll = exchanged("/v1/budget/poll")["body"]
        known = NodePoll.from_json(poll)
        poll["devices"] = [{**device, **FUTURE} for device in poll["devices"]]
        poll["jobs"] = [{**job, **FUTURE} for job in poll["jobs"]]
        assert NodePoll.from_json({**poll, **FUTURE}) == known

    def test_unknown_parameters_of_a_request_for_advice_are_ignored(self) -> None:
        request = AdviceRequest("n1", 7, 0, "xeon")
        assert AdviceRequest.from_query(request.parameters() | {"key_of_a_newer_release": "1"}) == request

    @pytest.mark.parametrize("place", ["journal", "session", "accounts"])
    def test_state_with_unknown_keys_is_used(self, node: Node, place: str) -> None:  # noqa: F811
        """senergyd uses its stored state even if the state has keys that this release does not know.

        This happens when senergyd is downgraded while a job runs.
        """
        adopt_state(node)
        folder = node.folder / "state"
        if place == "journal":
            change_json(folder / "journal.json", lambda data: [data] + data["entries"])
        elif place == "accounts":
            change_json(folder / "accounts.json", objects_of_accounts)
        else:
            change_json(folder / "sessions/7.0.json", objects_of_session)
        manager = node.manager = node.start()
        assert [job["job_id"] for job in manager.status(0)["jobs"]] == [7]
        manager.end(env(7))
        (record,) = [record for record in node.records() if record.step is None]
        assert all(setting.restored for setting in record.applied)
        assert not list(folder.rglob("*.damaged"))

    @pytest.mark.parametrize("name", ["journal.json", "sessions/7.0.json", "accounts.json"])
    def test_state_of_a_newer_format_stops_the_start_and_stays(self, node: Node, name: str) -> None:  # noqa: F811
        """An agent does not start if its state has a newer format, and the state files stay unchanged.

        The state includes the journal of the original values of settings. If the agent started without the
        journal, it would take the values that it had changed for the original values.
        """
        adopt_state(node)
        path = node.folder / "state" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))
        before = path.read_bytes()
        with pytest.raises(NewerStateError, match="format version 99 is newer") as refusal:
            node.start()
        assert "\n" not in str(refusal.value)
        assert path.read_bytes() == before
        assert not list(path.parent.glob("*.damaged"))


def change_json(path: Path, objects: Callable[[Any], list[dict[str, Any]]]) -> None:
    """Add an unknown key to JSON objects in a file, as a newer release would.

    `objects` selects the objects.
    """
    data = json.loads(path.read_text())
    for item in objects(data):
        item.update(FUTURE)
    path.write_text(json.dumps(data))


def objects_of_session(data: Any) -> list[dict[str, Any]]:
    session = data["session"]
    lists = [*session["job_components"], *session["devices"], *session["plan"], *session["outcomes"]]
    steps = [item for step in session["steps"].values() for item in (step, step["meter_at_start"])]
    return [data, session, session["meter"], session["power_monitor"], *lists, *steps]


def objects_of_accounts(data: Any) -> list[dict[str, Any]]:
    checkpoint = data["checkpoint"]
    meters = [item for meter in checkpoint["meters"].values() for item in (meter, *meter.values())]
    accounts = list(checkpoint["ledger"]["accounts"].values())
    opened = [checkpoint["periods"], checkpoint["periods"]["open"]]
    return [data, checkpoint, checkpoint["ledger"], *meters, *accounts, *opened]


OLD_READER = """
import json, sys
from pathlib import Path
import slurm_energy
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.node_period import NodePeriod
from slurm_energy.protocol.live_reports import LiveReport
from slurm_energy.records import EnergyRecord
assert slurm_energy.__version__ == "0.1.0"
written = json.loads(sys.stdin.read())
for record in written["records"]:
    assert not EnergyRecord.from_json(record).extra, record
for period in written["periods"]:
    assert not NodePeriod.from_json(period).extra, period
assert LiveReport.from_json(written["report"]).records
NodePoll.from_json(written["poll"])
NodeDecision.from_json(written["decision"])
state = StateDirectory(Path(written["state"]))
assert len(state.journal.entries) == written["entries"] > 0, state.journal.load_error
(session, checkpoint), = state.load()
assert session.job_id == 5 and checkpoint["meters"] and state.load_accounts()
"""


@pytest.fixture(scope="module")
def release_0_1(tmp_path_factory) -> Path:
    """Directory with the code of release 0.1 of slurm-energy."""
    folder = tmp_path_factory.mktemp("release")
    archive = ["git", "-C", str(ROOT), "archive", COMMIT, "slurm_energy"]
    try:
        packed = subprocess.run(archive, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"this clone has no commit {COMMIT}, release 0.1")
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True, timeout=60)
    return folder


def test_release_0_1_reads_what_this_release_writes(node: Node, release_0_1: Path) -> None:  # noqa: F811
    """Release 0.1 reads the files and messages that this release writes.

    Release 0.1 gets such files if senergyd is downgraded while a job runs. It gets such messages if
    agents of this release report to a controller of 0.1.
    """
    manager = node.manager
    manager.begin(env(4, policy="edp"))
    node.use(3)
    manager.end(env(4))
    written = {"records": [item.record for item in node.items()]}
    manager.begin(env(5, policy="cap", cap="300", tag="x"))
    manager.step("start", 5, "0", None)
    node.use(3)
    report = manager.queries.report(manager.node, "lab")
    decision = NodeDecision(3, {"package-0": 100.0, "package-1": None}, {"package-0": 80.0}, {}, 30.0, 1.0)
    written |= {"report": report.to_json(), "poll": manager.poll_budget().to_json()}
    written |= {"decision": decision.to_json(), "state": str(node.folder / "state")}
    written["entries"] = len(node.state.journal.entries)
    node.stop()
    periods = (node.folder / "state/periods").glob("*.json")
    written["periods"] = [json.loads(path.read_text()) for path in periods]
    assert written["periods"]
    command = [sys.executable, "-P", "-c", OLD_READER]
    environment = {"PYTHONPATH": str(release_0_1), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command,
        input=json.dumps(written),
        text=True,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_policy_file_has_every_line_of_release_0_1() -> None:
    """The policy file contains every line of the policy file of release 0.1, unchanged.

    Readers of release 0.1 ignore lines that they do not know, but they reject a known line in a
    changed form.
    """
    night = SitePolicy(base="cap", cap_watts=350, users=["alice"])
    config = Config(policies={"night": night}, budget=BudgetConfig(mode="enforce", admission="off"))
    lines = policy_file_text(config).splitlines()
    earlier = (RELEASE / "policies").read_text().splitlines()
    assert [line for line in lines if line in earlier] == earlier
