"""Tests of several clusters with different munge keys.

`senergy where --submit` must also work on two real Slurm clusters.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from own_controller import Controller, reserved_port, running_munged, wait_for

from slurm_energy.protocol.placement_requests import PLACEMENT_PATH, ClusterPrediction, PlacementQuery
from slurm_energy_lab.slurm_clusters import SlurmClusters, missing_programs

RUNS_AS = str(os.getuid())
NODE = "NodeName=n1 CPUAlloc=0 CPUTot=8 CPUEfctv=8 State=IDLE Partitions=all RealMemory=1000"
SENERGY = (sys.executable, "-m", "slurm_energy.cli.main")
NO_ANSWER_YET = ("not asked yet", "timed out", "no whole response within")
"""Reasons for which senergyctld leaves out a cluster that has not answered a query in time."""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the programs scontrol and squeue by fake programs in a directory at the start of PATH.

    The fake programs answer as in an idle cluster.
    """
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, text in (("scontrol", f'echo "{NODE}"'), ("squeue", "true")):
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def configure(controller: Controller, name: str, price: float, other: str = "") -> None:
    extra = f'[price]\nprovider = "constant"\nper_kwh = {price}\n[placement]\nrefresh_s = 1\n{other}'
    controller.configure(extra)
    text = controller.file.read_text().replace("[cluster]\n", f'[cluster]\nname = "{name}"\n', 1)
    controller.file.write_text(text)


def table(name: str, controller: Controller, key: str = "") -> str:
    return f'[clusters.{name}]\ncontroller_url = "{controller.url}"\ncontroller_users = ["{RUNS_AS}"]\n{key}'


@pytest.mark.usefixtures("commands")
def test_a_cluster_with_another_key_needs_its_munged(tmp_path: Path, place: Path, munged: Path) -> None:
    with contextlib.ExitStack() as stack:
        key = stack.enter_context(running_munged(place / "west"))
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        east, west = (
            Controller(tmp_path / name, socket, port)
            for name, socket, port in zip(("east", "west"), (munged, key), ports, strict=True)
            if not (tmp_path / name).mkdir()
        )
        for one in (east, west):
            stack.callback(one.stop, signal.SIGKILL)
        configure(west, "west", 0.1)
        others = table("west", west, f'munge_socket = "{key}"\n') + table("north", west)
        configure(east, "east", 0.4, others)
        west.start()  # before the one that asks it, whose first answer would be that nobody listens
        east.start()
        figures = {name: ClusterPrediction(3600.0, 1000.0) for name in ("east", "west", "north")}
        query = PlacementQuery(2, 0, figures).to_json()
        answers = [east.client().post(PLACEMENT_PATH, query)]

        def knows_both() -> bool:
            answers.append(east.client().post(PLACEMENT_PATH, query))
            left_out = {one["cluster"]: one["problem"] for one in answers[-1]["left_out"]}
            return set(left_out) == {"north"} and not any(text in left_out["north"] for text in NO_ANSWER_YET)

        wait_for(knows_both)
        answer = answers[-1]
        assert answer["cluster"] == "west"
        assert [row["cost"] for row in answer["clusters"]] == pytest.approx([0.4, 0.1])
        assert [row["wait_s"] for row in answer["clusters"]] == [0.0, 0.0]
        assert "redential" in answer["left_out"][0]["problem"]  # north has the key of this cluster


@pytest.mark.soak
@pytest.mark.skipif(
    bool(os.geteuid() or missing_programs()), reason="needs root and Slurm with slurmdbd, munge and MariaDB"
)
def test_jobs_go_to_the_cheaper_cluster_and_around_dead_controllers() -> None:
    with SlurmClusters({"east": 2, "west": 2}) as group:
        east, west = group["east"], group["west"]
        script = group.directory / "job.sh"
        script.write_text("#!/bin/sh\n#SBATCH -t 1 -o /dev/null\nsleep 1\n")
        for one, other, price in ((east, west, 0.4), (west, east, 0.1)):
            one.configure_controller(
                f'[price]\nprovider = "constant"\nper_kwh = {price}\n[placement]\nrefresh_s = 1\n'
                f'[clusters.{other.name}]\ncontroller_url = "{other.controller_url}"\n'
                f'controller_users = ["{RUNS_AS}"]\n'
            )
            one.start_controller()

        def where(cluster, *options: str) -> dict:
            done = cluster.try_run(*SENERGY, "where", "--json", *options, str(script))
            return json.loads(done.stdout) if done.returncode == 0 else {"left_out": [done.stderr]}

        for one in (east, west):
            group.wait_for(lambda one=one: not where(one)["left_out"], f"senergyctld of {one.name}")
        submitted = where(east, "--submit")["submitted"]
        assert submitted["cluster"] == where(west, "--submit")["submitted"]["cluster"] == "west"
        job = ("scontrol", "show", "job", str(submitted["job_id"]))
        group.wait_for(lambda: "JobState=COMPLETED" in west.run(*job), "the job")
        for daemon in ("slurmctld", "senergyctld"):
            west.end(daemon)
            submitted = where(east, "--submit")["submitted"]
            assert submitted["cluster"] == "east"
            job = ("scontrol", "show", "job", str(submitted["job_id"]))
            group.wait_for(lambda job=job: "JobState=COMPLETED" in east.run(*job), "the job of east")
        assert where(west, "--submit")["submitted"]["cluster"] == "east"
