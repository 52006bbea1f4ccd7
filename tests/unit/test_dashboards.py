"""Tests of the shipped dashboards of Grafana and rules of Prometheus.

They must be valid, and use only metrics that the daemons expose.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from shared_node import SharedNode

from slurm_energy.agent import node_metrics
from slurm_energy.controller.budgets.facts import BudgetStatus
from slurm_energy.controller.cluster_metrics import ClusterMetrics
from slurm_energy.openmetrics.exposition import PREFIX, MetricKind
from slurm_energy.templates import find, render

DASHBOARDS = ("grafana-cluster.json", "grafana-node.json", "grafana-budgets.json")
RULES, SCRAPE = "prometheus-rules.yml", "prometheus-scrape.yml"
_METRIC = re.compile(rf"{PREFIX}[a-z_]+")


def text_of(name: str, **values: str) -> str:
    return render(find(name), values, lambda _raw: None)


@pytest.fixture(scope="module")
def exposed(tmp_path_factory) -> set[str]:
    """Names of all metrics that the daemons expose."""
    node = SharedNode(tmp_path_factory.mktemp("node"))

    async def work(function, *arguments):
        return function(*arguments)

    async def read(_function):
        return [("c1", "n1", 2.0, 1.0)]

    metrics = node_metrics.NodeMetrics(node.manager, node._devices(), node.state, work)
    families = [*asyncio.run(metrics.collect()), *node_metrics._jobs(node.manager.status(), "c1")]
    queue = {"pending": 1, "ranked": 1, "cycle_s": 1.0, "computed": 1.0}
    status = {"budget": {"cycle_s": 1.0}, "priority": queue, "history": {"runs": 1}}
    budgets = [BudgetStatus("site", 1.0, 1.0, 1.0, 1.0)]
    cluster = ClusterMetrics(SimpleNamespace(read=read), lambda: status, lambda: budgets)
    families += asyncio.run(cluster.collect())
    node.die()
    ends = {MetricKind.COUNTER: "_total", MetricKind.GAUGE: ""}
    return {f"{PREFIX}{family.name}{ends[family.kind]}" for family in families}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboards_are_complete_json_about_exposed_metrics(name, exposed):
    dashboard = json.loads(text_of(name))
    panels = dashboard["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert all(x + width <= 24 for x, _, width, _ in places)
    assert len({place[:2] for place in places}) == len(panels)
    for panel in panels:
        assert panel["title"] and panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert set(_METRIC.findall(target["expr"])) <= exposed, panel["title"]
            assert target["legendFormat"]
    queries = [variable["query"] for variable in dashboard["templating"]["list"]]
    assert {metric for query in queries for metric in _METRIC.findall(query)} <= exposed


def test_rules_are_about_exposed_metrics(exposed):
    (group,) = yaml.safe_load(text_of(RULES))["groups"]
    recorded = {rule["record"] for rule in group["rules"] if "record" in rule}
    for rule in group["rules"]:
        assert set(_METRIC.findall(rule["expr"])) <= exposed | recorded


def test_scrape_configuration_lists_every_node():
    (job,) = yaml.safe_load(text_of(SCRAPE, nodes="n1,n2", controller="ctl"))["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["n1:9628", "n2:9628", "ctl:9629"]}]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_promtool_accepts_the_rules_and_every_expression_of_the_dashboards(tmp_path: Path):
    rules = tmp_path / "rules.yml"
    expressions = [
        target["expr"]
        for name in DASHBOARDS
        for panel in json.loads(text_of(name))["panels"]
        for target in panel["targets"]
    ]
    records = [{"record": f"r{number}", "expr": text} for number, text in enumerate(expressions)]
    document = yaml.safe_load(text_of(RULES))
    document["groups"].append({"name": "dashboards", "rules": records})
    rules.write_text(yaml.safe_dump(document))
    checked = subprocess.run(
        ["promtool", "check", "rules", rules], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0 and f"{len(records) + 5} rules found" in checked.stdout, checked.stderr
    scrape = tmp_path / "prometheus.yml"
    scrape.write_text(text_of(SCRAPE))
    command = ["promtool", "check", "config", "--syntax-only", scrape]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
