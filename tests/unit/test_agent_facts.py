"""Tests of the facts and counts that an agent sends about its node in live reports.

The tests also check the digests of the node's configuration in the reports.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import time
from pathlib import Path

import pytest
from shared_node import SharedNode
from store_examples import record

from slurm_energy import config as configuration
from slurm_energy.agent import agent_facts
from slurm_energy.agent.agent_facts import AgentFacts
from slurm_energy.config import Config
from slurm_energy.config.section_digests import section_digests
from slurm_energy.protocol.node_states import FACTS_INTERVAL_S
from slurm_energy.records import EnergyRecord
from slurm_energy.slurm.plugin_files import SlurmFiles, find_slurm_files


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedNode:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    return SharedNode(tmp_path)


def test_counts_are_those_of_the_agent(node: SharedNode) -> None:
    facts = AgentFacts(node.manager, node.manager._devices)
    assert not {"announced_jobs", "rejected", "spooled", "oldest_waiting_s"} & facts.counts().keys()
    node.begin(1, 2)
    counts = facts.counts()
    assert (counts["announced_jobs"], counts["running_jobs"]) == (1, 1)
    ended = EnergyRecord.from_json(record(job_id=5))
    old = dataclasses.replace(ended, start=time.time() - 4000, end=time.time() - 3600)
    node.manager.spool.add(old, None)
    counts = facts.counts()
    assert counts["spooled"] == 1
    assert counts["oldest_waiting_s"] == pytest.approx(3600, abs=60)


def test_facts_name_sources_settings_and_plugins(
    node: SharedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\n")
    (tmp_path / "plugstack.conf").write_text(f"optional {tmp_path}/energy.so a=b\noptional energy_hooks.so\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    facts = AgentFacts(node.manager, node.manager._devices)
    text = asyncio.run(facts.facts(Config(), requested=False))
    assert text is not None
    made = json.loads(text)
    assert {"cpu", "dram"} <= made["sources"].keys()
    assert made["flags_plugin"] == {"path": f"{tmp_path}/energy.so", "release": None}
    assert made["hooks_plugin"]["path"] == "energy_hooks.so"
    assert (made["slurm_conf"], made["prolog"], made["config"]) == (True, None, {})
    files = find_slurm_files(tmp_path / "absent.conf")
    assert (files.conf, files.flags) == (None, None)


def test_facts_are_sent_once_when_they_change_and_on_request(
    node: SharedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(agent_facts.time, "monotonic", lambda: now[0])
    facts = AgentFacts(node.manager, node.manager._devices)
    other = configuration.parse(
        '[bounds]\ncap_watts = [1.0, 2.0]\n[cluster]\ncontroller_url = "http://h:1"\n'
    )

    def sent(config: Config = Config(), *, requested: bool = False, later_s: float = 1.0) -> bool:  # noqa: B008
        now[0] += later_s
        text = asyncio.run(facts.facts(config, requested=requested))
        if text is not None:
            facts.mark_sent(text)
        return text is not None

    assert [sent(), sent(), sent(requested=True), sent()] == [True, False, True, False]
    assert not sent(other)  # read again only after a reload
    facts.refresh()
    assert sent(other) and not sent(other)
    assert sent(other, later_s=FACTS_INTERVAL_S)


def test_digests_count_only_shared_values_that_differ_from_defaults() -> None:
    def digests(text: str) -> dict[str, str]:
        return section_digests(configuration.parse(text))

    assert digests("") == digests("[agent]\nsampling_hz = 5.0\n[tuning]\nmax_probes = 9\n") == {}
    one = digests("[defaults]\npolicy = 'edp'\n[policies.night]\ncap_watts = 300\n")
    assert set(one) == {"defaults", "policies"}
    assert one == digests("[policies.night]\ncap_watts = 300.0\n[defaults]\npolicy = 'edp'\n")
    assert one["policies"] != digests("[policies.night]\ncap_watts = 301\n")["policies"]


def test_files_that_hang_or_cannot_be_read_do_not_stop_reports(
    node: SharedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = threading.Event()

    def find(_: object) -> SlurmFiles:
        hung.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(agent_facts, "find_slurm_files", find)
    monkeypatch.setattr(agent_facts, "_READ_TIMEOUT_S", 0.01)
    facts = AgentFacts(node.manager, node.manager._devices)

    async def story() -> str | None:
        for _ in range(2):
            assert await facts.facts(Config(), requested=True) is None
        hung.set()
        while (text := await facts.facts(Config(), requested=True)) is None:
            await asyncio.sleep(0.01)
        return text

    text = asyncio.run(story())
    assert text is not None and json.loads(text)["slurm_conf"] is False


def test_an_unexpected_error_in_the_files_stops_one_report_only(
    node: SharedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = iter([RuntimeError("symlink loop"), SlurmFiles()])

    def find(_: object) -> SlurmFiles:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(agent_facts, "find_slurm_files", find)
    monkeypatch.setattr(agent_facts, "_READ_TIMEOUT_S", 60.0)
    facts = AgentFacts(node.manager, node.manager._devices)

    async def story() -> str | None:
        with pytest.raises(RuntimeError):
            await facts.facts(Config(), requested=False)
        return await facts.facts(Config(), requested=False)

    assert asyncio.run(story()) is not None
