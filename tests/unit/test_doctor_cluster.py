"""Tests of `senergy doctor --cluster`: its checks and their report.

They also cover the wait for nodes, and the measured job. A fake replaces senergyctld.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import fake_controller
import pytest

from slurm_energy import __version__
from slurm_energy.cli import doctor_cluster, main
from slurm_energy.doctor import measured_job
from slurm_energy.doctor.cluster_checks import cluster_checks
from slurm_energy.doctor.cluster_findings import NodeFindings, read_response
from slurm_energy.doctor.cluster_report import document, lines
from slurm_energy.doctor.verdict import CheckState
from slurm_energy.errors import NotFoundError, UnavailableError, UsageError
from slurm_energy.protocol.node_states import NODES_PATH, facts_text
from slurm_energy.slurm.node_states import parse_slurm_nodes

FACTS: dict[str, Any] = {
    "version": __version__,
    "schema": 1,
    "slurm": "22.05.8",
    "slurm_conf": True,
    "flags_plugin": {"path": "/p/energy.so", "release": "22.05.8"},
    "hooks_plugin": {"path": "/p/energy_hooks.so", "release": "22.05.2"},
    "prolog": None,
    "sources": {"cpu": "powercap:intel-rapl", "dram": "powercap:intel-rapl"},
    "gpus": False,
    "settings": {"cpufreq.frequency": 64, "cpufreq.epp": 64, "nvml.power_limit": 4},
    "config": {"bounds": "abc"},
}


def node(name: str, facts: int | None = 0, state: str = "idle", **more: Any) -> dict[str, Any]:
    """Return a healthy node as the controller describes it."""
    return {
        "node": name,
        "slurm_state": state,
        "is_expected": True,
        "is_busy": state != "idle",
        "partition": "all",
        "slurmd": "22.05.8",
        "age_s": 12.0,
        "clock_offset_s": -0.02,
        "facts": facts,
        "counts": {"uptime_s": 900, "announced_jobs": 3},
    } | more


def response(*nodes: dict[str, Any], facts: tuple[Any, ...] = (FACTS,), **more: Any) -> dict[str, Any]:
    return {
        "scope": "all",
        "time": 1.0,
        "cluster": "tethys",
        "version": __version__,
        "schema": 1,
        "slurm_error": None,
        "config": {"bounds": "abc"},
        "facts": list(facts),
        "nodes": list(nodes),
    } | more


def checked(*nodes: dict[str, Any], **more: Any) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Return the results of the cluster checks of `senergy doctor`, by name of the check.

    Each result is a triple (state, finding, nodes).
    """
    findings = read_response(response(*nodes, **more), "http://c:1", __version__)
    found: dict[str, list[tuple[str, str, list[str]]]] = {}
    for check in cluster_checks(findings):
        found.setdefault(check.name, []).append((check.state, check.finding, list(check.nodes)))
    return found


def faults(*nodes: dict[str, Any], **more: Any) -> list[tuple[str, str, str, list[str]]]:
    found = checked(*nodes, **more)
    return [
        (name, *line) for name, group in found.items() for line in group if line[0] in ("failed", "degraded")
    ]


def test_equal_nodes_are_one_line() -> None:
    found = checked(*(node(f"n{i}", age_s=float(i)) for i in range(1, 9)))
    names = [f"n{i}" for i in range(1, 9)]
    assert found["agent"] == [("ok", "reports, the last one 1 to 8 s ago", names)]
    assert found["sources"] == [("ok", "cpu powercap:intel-rapl, dram powercap:intel-rapl", names)]
    assert found["settings"] == [("ok", "cpufreq (epp, frequency), nvml (power_limit)", names)]
    assert found["slurmctld"] == [("ok", "8 nodes, 8 expected to be up", [])]
    assert not faults(*(node(f"n{i}") for i in range(4)))


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"age_s": None, "facts": None}, "agent", "no report; idle in Slurm"),
        ({"age_s": 80.0}, "agent", "the last report is 80 s old; they come every 30 s"),
        ({"refusal": "10.9.9.9 is not an address of it"}, "agent", "reports are refused: 10.9.9.9"),
        ({"cluster": "other"}, "agent", "reports for the cluster 'other'"),
        ({"clock_offset_s": 7.5}, "clock", "7.5 s ahead of the controller's"),
        ({"clock_offset_s": -70.0}, "clock", "70 s behind the controller's"),
        ({"counts": {"failed_reports": 2}}, "munge", "2 reports without a valid response"),
        ({"slurmd": "23.11.4"}, "slurmd", "slurmd runs 23.11.4, installed is 22.05.8"),
        ({"counts": {"rejected": 4}}, "undelivered", "4 records rejected"),
        ({"counts": {"deferred": 1}}, "undelivered", "1 records of a newer release"),
        ({"counts": {"oldest_waiting_s": 4000, "spooled": 9}}, "undelivered", "9 records wait"),
        ({"counts": {"unrestored": 2}}, "settings left", "2 not restored"),
        ({"is_busy": True, "counts": {"uptime_s": 9000}}, "hooks", "no job was announced"),
    ],
)
def test_one_fault_of_a_node_is_one_line(change: dict[str, Any], check: str, words: str) -> None:
    ((name, _, finding, nodes),) = faults(node("n1"), node("n2") | change, node("n3"))
    assert (name, nodes) == (check, ["n2"]) and words in finding


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"version": "0.0.9"}, "version", "0.0.9, the controller has"),
        ({"schema": 9, "version": "9.1"}, "version", "9.1, whose records are newer"),
        ({"hooks_plugin": None}, "hooks", "neither energy_hooks.so"),
        ({"hooks_plugin": {"path": "/x", "release": None}}, "hooks", "missing or unreadable: /x"),
        ({"flags_plugin": None}, "SPANK plugin", "no energy.so"),
        ({"flags_plugin": {"path": "/x", "release": "23.11.1"}}, "SPANK plugin", "built for Slurm 23.11"),
        ({"sources": {}}, "sources", "no energy counter for cpu"),
        ({"gpus": True}, "sources", "no energy counter for gpu"),
        (
            {"config": {"bounds": "abd", "edp": "1"}},
            "configuration",
            "differs from the controller's: bounds, edp",
        ),
    ],
)
def test_one_fact_that_is_wrong_is_one_line(change: dict[str, Any], check: str, words: str) -> None:
    found = faults(node("n1"), node("n2", 1), facts=(FACTS, FACTS | change))
    ((name, _, finding, nodes),) = found
    assert (name, nodes) == (check, ["n2"]) and words in finding


@pytest.mark.parametrize(
    ("uptime_s", "state", "words"),
    [
        (12.0, "degraded", "no report since senergyctld started 12 s ago"),
        (240.0, "failed", "no report; idle in Slurm"),
        (None, "failed", "no report; idle in Slurm"),
        ("soon", "failed", "no report; idle in Slurm"),
    ],
)
def test_agents_may_report_late_after_a_restart_of_the_controller(
    uptime_s: Any, state: str, words: str
) -> None:
    missing = node("n2", None, age_s=None, counts=None)
    assert faults(node("n1"), missing, uptime_s=uptime_s) == [("agent", state, words, ["n2"])]


def test_a_prolog_announces_too_and_another_release_has_other_digests() -> None:
    prolog = FACTS | {"hooks_plugin": None, "prolog": "/l/prolog"}
    assert not faults(node("n1"), facts=(prolog,))
    older = FACTS | {"version": "0.0.9", "config": {}}
    assert [name for name, *_ in faults(node("n1"), facts=(older,))] == ["version"]


def test_nodes_that_slurm_does_not_expect_are_no_fault() -> None:
    off = {"node": "n9", "slurm_state": "idle~", "is_expected": False}
    found = checked(node("n1"), off)
    assert found["agent"][0] == ("absent", "no report; idle~ in Slurm", ["n9"])
    assert not faults(node("n1"), off)


@pytest.mark.parametrize(
    ("values", "text"), [((-1e-9, 0.0), "0"), ((0.5, 0.5), "0.5"), ((2.0, 12345.6), "2 to 12346")]
)
def test_ranges(values: tuple[float, float], text: str) -> None:
    nodes = (node(f"n{i}", age_s=value) for i, value in enumerate(values))
    found = checked(*nodes, report_interval_s=9999.0)
    assert found["agent"][0][1] == f"reports, the last one {text} s ago"


@pytest.mark.slow
def test_ten_thousand_nodes_are_one_page() -> None:
    nodes = [node(f"n{i:05d}", age_s=float(i % 30)) for i in range(10_000)]
    nodes[17] |= {"age_s": None, "facts": None}
    findings = read_response(response(*nodes), "http://c:1", __version__)
    checks = cluster_checks(findings)
    text = lines(findings, checks)
    assert len(text) < 50 and max(map(len, text)) <= 80
    assert any(line.startswith("failed    agent") and "n00017: no report" in line for line in text)
    whole = document(findings, checks)
    assert (whole["nodes"], whole["reporting"], whole["awaited"]) == (10_000, 9_999, "n00017")
    (up,) = [c for c in whole["checks"] if c["name"] == "agent" and c["state"] == "ok"]
    assert (up["nodes"], up["node_count"]) == ("n[00000-00016,00018-09999]", 9_999)


def test_selected_nodes_must_exist() -> None:
    answer = response(node("n1"), node("n2"))
    assert [n.name for n in read_response(answer, "u", "1", ["n2"]).nodes] == ["n2"]
    with pytest.raises(NotFoundError, match=r"node n\[3-4\]"):
        read_response(answer, "u", "1", ["n2", "n3", "n4"])


def test_states_of_slurm() -> None:
    text = "n1|idle|22.05.8|short\nn1|idle|22.05.8|all*\nn2|DOWN*|N/A|all*\nbroken\n"
    nodes = parse_slurm_nodes(
        text + "n3|mixed~|x|p\nn4|idle*|1.2|p\nn5|future|1|p\nn6|allocated|1|p\nn7|drained|1|p\n"
    )
    assert (nodes["n1"].partition, nodes["n2"].version) == ("all", "")
    expected = {name: one.is_expected_up for name, one in nodes.items()}
    assert [name for name, is_up in expected.items() if is_up] == ["n1", "n4", "n6", "n7"]
    assert [name for name, one in nodes.items() if one.is_busy] == ["n3", "n6"]


class TestCommand:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor_cluster, "_PAUSE_S", 0.0)

    @staticmethod
    def run(*words: str) -> int:
        return main.main(["doctor", "--cluster", *words])

    def test_exit_codes(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        missing = node("n2", None, age_s=None)
        fake = fake_controller.install(monkeypatch, {NODES_PATH: response(node("n1"), missing)})
        assert self.run("-w", "n1") == 0
        assert "cluster tethys is healthy" in capsys.readouterr().out
        assert self.run("--quiet") == 1
        assert capsys.readouterr().out == "failed: agent: n2: no report; idle in Slurm\n"
        assert self.run("--wait=0", "--no-job", "--json") == 4
        assert json.loads(capsys.readouterr().out)["awaited"] == "n2"
        assert self.run("-w", "n7") == 6
        fake.answers[NODES_PATH] = UnavailableError("controller", "gone")
        assert self.run() == 4
        assert self.run("--wait=0", "--no-job") == 4
        assert main.main(["doctor", "--wait"]) == 2
        assert self.run("--wait=soon") == 2

    def test_it_waits_for_the_expected_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing, late = node("n2", None, age_s=None), response(node("n1"), node("n2"))
        answers: list[Any] = [
            UnavailableError("c", "gone"),
            response(node("n1"), missing),
        ]
        answers += [response(slurm_error="down"), late]
        fake = fake_controller.install(monkeypatch, {})

        def answer(path: str) -> Any:
            one = answers.pop(0)
            if isinstance(one, Exception):
                raise one
            return one

        monkeypatch.setattr(fake, "_answer", answer)
        assert self.run("--wait=60", "--no-job") == 0
        assert answers == []

    def test_ordinary_users_see_less(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        seen = {"node": "n1", "slurm_state": "idle", "is_expected": True, "age_s": 3.0, "facts": 0}
        answer = response(seen, facts=({"version": __version__},), scope="own", config=None)
        fake_controller.install(monkeypatch, {NODES_PATH: answer})
        assert self.run() == 0
        assert "only operators see all checks" in capsys.readouterr().out


class TestMeasuredJob:
    NODE = NodeFindings("n1", "idle", True, partition="all", age_s=1.0, facts=FACTS)

    @staticmethod
    def srun(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        program = folder / "srun"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setattr(measured_job, "_PAUSE_S", 0.0)
        monkeypatch.setattr(measured_job, "_RECORD_TIMEOUT_S", 0.0)

    def record(self, joules: float | None) -> dict[str, Any]:
        from store_examples import record

        made = record(job_id=7, node="n1")
        made["components"] = [part | {"energy_joules": joules} for part in made["components"]]
        return made

    def test_reasons_to_run_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        busy = NodeFindings("n1", "mixed", True, age_s=1.0, facts=FACTS)
        check = measured_job.run_measured_job([busy], lambda _: [])
        assert (check.state, check.finding) == (CheckState.ABSENT, "not run: no node is idle and reports")
        monkeypatch.setenv("PATH", "/nonexistent")
        check = measured_job.run_measured_job([self.NODE], lambda _: [])
        assert (check.state, check.finding) == (
            CheckState.ABSENT,
            "not run: srun is not installed on this host",
        )

    def test_its_record_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLURM_JOB_ID", "99")
        self.srun(tmp_path, monkeypatch, f'echo "$@" >{tmp_path}/words; test -z "$SLURM_JOB_ID" && echo 7')
        for joules, state in ((5.0, CheckState.OK), (None, CheckState.DEGRADED)):
            check = measured_job.run_measured_job([self.NODE], lambda _, j=joules: [self.record(j)])  # type: ignore[misc]
            assert check.state == state, check
        words = (tmp_path / "words").read_text().split()
        assert {"--nodelist=n1", "--partition=all", "--energy-policy=monitor"} <= set(words)

        def none(_: int) -> Any:
            raise NotFoundError("job 7", "no energy record")

        check = measured_job.run_measured_job([self.NODE], none)
        assert check.state == CheckState.FAILED and "no record arrived" in check.finding

    def test_errors_of_srun(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.srun(tmp_path, monkeypatch, "echo 'srun: error: bad luck' >&2; exit 1")
        check = measured_job.run_measured_job([self.NODE], lambda _: [])
        assert (check.state, check.finding) == (CheckState.FAILED, "srun: bad luck")
        monkeypatch.setattr(measured_job, "_SRUN_TIMEOUT_S", 0.2)
        self.srun(tmp_path, monkeypatch, "exec sleep 60")
        check = measured_job.run_measured_job([self.NODE], lambda _: [])
        assert check.state == CheckState.FAILED and "no end within" in check.finding


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, 10**400, -5, True])
def test_a_node_with_a_false_interval_does_not_break_the_report(value: Any) -> None:
    found = checked(node("n1", facts=0), node("n2", facts=1), facts=(FACTS, FACTS | {"live_report_s": value}))
    assert found["agent"] == [("ok", "reports, the last one 12 s ago", ["n1", "n2"])]


def test_facts_that_are_nested_deeply_are_refused() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    with pytest.raises(UsageError, match="nested"):
        facts_text({"config": deep})
    assert facts_text(FACTS)


def test_one_node_is_singular() -> None:
    findings = read_response(response(node("n1")), "http://c:1", __version__)
    assert lines(findings, cluster_checks(findings))[0] == "cluster tethys: 1 node, 1 agent reports"
