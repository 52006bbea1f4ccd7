"""Test an upgrade from release 0.1, and rolling restarts, while 50 jobs start per minute.

Every record is stored exactly once. The old daemons, plugin and hooks run from `git archive`, on a lab with
real Slurm. Nodes are upgraded one by one, with senergyctld before or after them, and downgraded again. `make
soak` runs this test. test_version_skew.py and tests/unit/test_earlier_release.py are quick tests of the same
guarantees.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import judges
import pytest
from lab_driver import LabDriver, LabRequest

from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy_lab.cluster.artifacts import PARTS_KEY

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(1500)]
COMMIT = os.environ.get("SENERGY_TEST_OLD_COMMIT", "441f2bc8")
ROOT = Path(__file__).resolve().parents[2]
NEW = Path(os.environ.get("SENERGY_TEST_NEW_CODE", ROOT))
JOBS_PER_MINUTE = 50
PAUSE_S = 6.0
"""Time between two restarts: several jobs begin and end in each state of the cluster."""
FLAGS = (
    (),
    ("--energy-policy=powersave", "--exclusive"),
    ("--energy-policy=cap", "--energy-cap=300", "--exclusive", "--energy-tag=t"),
    ("-N2", "-n2", "--energy-policy=monitor"),
)
DAEMONS = {"senergyd": "agent", "senergyctld": "controller"}


@pytest.fixture(scope="module")
def old_release(tmp_path_factory) -> Path:
    """Directory with the previous release of slurm-energy, for the tests of the upgrade.

    The directory contains the code, the built plugin and the built hooks.
    """
    folder = Path("/var/tmp") / f"senergy-old-release-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        extract_old_release(folder)
        for part in ("spank", "prolog_epilog"):
            subprocess.run(["make", "-s", "-C", folder / part], check=True, timeout=300)
        yield folder
    finally:
        shutil.rmtree(folder)


def extract_old_release(folder: Path) -> None:
    """Copy the code of the old release from $SENERGY_TEST_OLD_CODE, else from the history of the clone."""
    if code := os.environ.get("SENERGY_TEST_OLD_CODE"):
        if not (Path(code) / "slurm_energy").is_dir():
            pytest.skip(f"no old release in {code}")
        shutil.copytree(code, folder, symlinks=True, dirs_exist_ok=True)
        return
    archive = ["git", "-C", str(ROOT), "archive", COMMIT]
    packed = subprocess.run(archive, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"this clone has no commit {COMMIT}")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)


class Parts:
    """Directory with links to the installed files of one release: plugins, hook and templates.

    A test emulates an upgrade: it points the links to another release.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o755)

    def select(self, release: Path) -> None:
        for part in ("spank", "prolog_epilog", "templates"):
            link = self.folder / f"{part}.new"
            link.symlink_to(release / part)
            link.replace(self.folder / part)


class Submitter(threading.Thread):
    """Submits jobs at a steady rate until it is stopped."""

    def __init__(self, lab: LabDriver) -> None:
        super().__init__()
        self.lab, self.jobs, self.failures = lab, {}, []
        self._stop_event = threading.Event()

    def run(self) -> None:
        begin = time.monotonic()
        while not self._stop_event.wait(
            max(0.0, begin + len(self.jobs) * 60 / JOBS_PER_MINUTE - time.monotonic())
        ):
            flags = FLAGS[len(self.jobs) % len(FLAGS)]
            try:
                job_id = self.lab.sbatch("srun sleep 1", "--time=3", *flags)
            except AssertionError as error:
                self.failures.append(str(error))
                continue
            self.jobs[job_id] = 2 if "-N2" in flags else 1
        self.seconds = time.monotonic() - begin

    def stop(self) -> None:
        self._stop_event.set()
        self.join()


class Upgrade:
    """Restarts daemons of a lab with the code of the old or of the new release."""

    def __init__(self, lab: LabDriver, old: Path) -> None:
        self.lab, self.releases = lab, {"old": old, "new": NEW}

    def run_as(self, release: str, daemon: str, node: str | None = None) -> None:
        """Set the release of slurm-energy with which a daemon will be started next."""
        name = f"{node} {daemon}" if node else daemon
        step = self.lab.lab._steps[name]
        options = step.argv[step.argv.index("--config") :]
        module = f"slurm_energy.{DAEMONS[daemon]}.main"
        code = self.releases[release]
        argv = ["env", f"PYTHONPATH={code}", sys.executable, "-P", "-m", module, *options]
        self.lab.lab._steps[name] = replace(step, argv=argv)

    def restart(self, release: str, daemon: str, node: str | None = None, how: int = signal.SIGTERM) -> None:
        self.run_as(release, daemon, node)
        self.lab.kill(daemon, node, how)
        self.lab.start(daemon, node)
        time.sleep(PAUSE_S)

    def agents(self, release: str, nodes=None, how: int = signal.SIGTERM) -> None:
        for node in nodes or self.lab.nodes:
            self.restart(release, "senergyd", node, how)

    def versions(self) -> dict[str, str]:
        found = {node: judges.agent_status(self.lab, node)["version"] for node in self.lab.nodes}
        return found | {"senergyctld": client_of(self.lab).get("/v1/status")["version"]}


def client_of(lab: LabDriver) -> ControllerClient:
    from slurm_energy import config

    cluster = config.load(lab.layout.energy_toml).cluster
    return ControllerClient(cluster.controller_url, cluster.munge_socket, 60, cluster.controller_users)


def begin_with_old(lab: LabDriver, upgrade: Upgrade) -> None:
    """Replace all daemons by those of the old release, with new state."""
    for node in lab.nodes:
        lab.kill("senergyd", node, signal.SIGTERM)
    lab.kill("senergyctld", None, signal.SIGTERM)
    for path in (*lab.layout.state.glob("senergyctld/*"), *(lab.layout.node(n) / "state" for n in lab.nodes)):
        if path.is_dir():
            for inner in path.iterdir():
                shutil.rmtree(inner) if inner.is_dir() else inner.unlink()
        else:
            path.unlink()
    upgrade.run_as("old", "senergyctld")
    lab.start("senergyctld")
    for node in lab.nodes:
        upgrade.run_as("old", "senergyd", node)
        lab.start("senergyd", node)
    assert set(upgrade.versions().values()) == {"0.1.0"}


def agents_first(upgrade: Upgrade, parts: Parts) -> None:
    upgrade.agents("new")
    parts.select(NEW)
    time.sleep(PAUSE_S)
    upgrade.restart("new", "senergyctld")


def controller_first(upgrade: Upgrade, parts: Parts) -> None:
    upgrade.restart("new", "senergyctld")
    parts.select(NEW)  # the plugin before the agent that it talks to
    time.sleep(PAUSE_S)
    upgrade.agents("new")


@pytest.mark.parametrize("order", [agents_first, controller_first])
def test_every_record_arrives_once(order, old_release, monkeypatch, machine):
    parts = Parts(old_release / f"parts-{order.__name__}")
    parts.select(old_release)
    monkeypatch.setenv(PARTS_KEY, str(parts.folder))
    lab = LabDriver(LabRequest())
    try:
        upgrade = Upgrade(lab, old_release)
        begin_with_old(lab, upgrade)
        before = {node: judges.settings_at_rest(lab, node) for node in lab.nodes}
        submitter = Submitter(lab)
        submitter.start()
        try:
            time.sleep(PAUSE_S)
            order(upgrade, parts)
            versions = [upgrade.versions()]
            upgrade.agents("old", lab.nodes[:2])  # a downgrade of agents
            versions.append(upgrade.versions())
            upgrade.agents("new", lab.nodes[:2], signal.SIGKILL)
            upgrade.restart("new", "senergyctld", None, signal.SIGKILL)
            versions.append(upgrade.versions())
        finally:
            submitter.stop()
        judge(lab, submitter, before)
        print(json.dumps({"order": order.__name__, "versions": versions}))
    finally:
        lab.down()


def listed_by_sacct(lab: LabDriver, count: int) -> set[int]:
    """Return the jobs that sacct lists.

    slurmctld sends the rows of ended jobs to slurmdbd late, so that this function waits for `count` jobs.
    """
    command = ("sacct", "-X", "-n", "-P", "-a", "-o", "jobid", "-S", "now-1hours")
    deadline = time.monotonic() + 60
    while len(listed := lab.run(*command).stdout.split()) < count and time.monotonic() < deadline:
        time.sleep(1)
    return set(map(int, listed))


def judge(lab: LabDriver, submitter: Submitter, before: dict) -> None:
    """Check that each of Slurm's jobs has its records, and that all settings are as in `before`."""
    jobs = submitter.jobs
    assert submitter.failures == []
    for job_id in jobs:
        lab.wait(job_id, timeout=300)
    deadline = time.monotonic() + 180
    while any(judges.agent_status(lab, node)["spooled"] for node in lab.nodes):
        assert time.monotonic() < deadline, [judges.agent_status(lab, node) for node in lab.nodes]
        time.sleep(1)
    assert {node: judges.settings_at_rest(lab, node) for node in lab.nodes} == before
    for node in lab.nodes:
        status = judges.agent_status(lab, node)
        assert (status["rejected"], status["deferred"], status["rejected_dropped"]) == (0, 0, 0)
        assert (status["periods"]["rejected"], status["unrestored"]) == (0, status["unrestored"] and 0)
        assert not (lab.layout.node(node) / "state/journal.json").exists()
    records = client_of(lab).get("/v1/records", {"duplicates": "1", "steps": "1"})["records"]
    whole = [record for record in records if record["step"] is None]
    counts = Counter((record["job_id"], record["node"]) for record in whole)
    assert set(counts.values()) == {1}, [key for key, count in counts.items() if count > 1]
    per_job = Counter(job_id for job_id, _ in counts)
    assert per_job == Counter(jobs)
    steps = Counter((record["job_id"], record["node"], record["step"]) for record in records)
    assert max(steps.values()) == 1
    unrestored = [record for record in whole for one in record["applied"] if not one["restored"]]
    assert unrestored == []
    measured = sum(record["components"] != [] for record in whole)
    assert listed_by_sacct(lab, len(jobs)) == set(jobs)
    rate = len(jobs) / submitter.seconds * 60
    print(
        f"{len(jobs)} jobs, {rate:.1f} per minute, {len(whole)} records of jobs, {len(records)} in all, "
        f"{measured} measured"
    )
