"""Test of the suspension of a running job on a real Slurm.

senergyctld is killed with kill -9 between the steps of the suspension.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest
import small_cluster
from own_controller import Controller, reserved_port
from small_cluster import SEARCH, SmallCluster, marks, wait_until

pytestmark = [*marks(), pytest.mark.soak]

REPOSITORY = Path(__file__).resolve().parents[2]
WORK_S = 30
SLACK_S = 150
EXPENSIVE_S = 60.0
CRED_EXPIRE_S = 20
"""Time by which slurmctld delays a requeued job."""
HOLD_S = 20.0
CONFIG = """\
[price]
provider = "csv"
file = "{prices}"
[deferral]
policy = "cheapest"
suspend = true
slot_s = 5
interval_s = 4
min_run_s = 5
min_suspension_s = 5
start_margin_s = 0
max_slack_s = 300
"""
FLAGS = f"AdminComment=energy-flags: ENERGY_SLACK={SLACK_S}s ENERGY_CHECKPOINTABLE=2s"
# A program that saves the number of its finished steps at SIGTERM and continues from there.
PROGRAM = """\
cd {dir}
finished=$(cat saved 2>/dev/null || echo 0)
echo start ${{SLURM_RESTART_COUNT:-0}} $finished $(date +%s) >>log
trap 'echo $finished >saved; echo saved $finished >>log; exit 0' TERM
while [ $finished -lt {work} ]; do sleep 1 & wait $!; finished=$((finished + 1)); done
echo done $finished >>log
"""
# Kills senergyctld, which started it, before or after it passes a command on.
SCONTROL = """\
#!{python}
import os, pathlib, signal, subprocess, sys, time
point = pathlib.Path("{dir}/point")
words = point.read_text().split() if point.exists() else []
if not words:
    os.execv("{scontrol}", ["scontrol", *sys.argv[1:]])
child = subprocess.Popen(["{scontrol}", *sys.argv[1:]], stdin=subprocess.PIPE)
for line in sys.stdin:
    hit = line.startswith(words[1])
    if hit and words[0] == "before":
        os.kill(os.getppid(), signal.SIGKILL)
        sys.exit(1)
    child.stdin.write(line.encode())
    child.stdin.flush()
    if hit:
        time.sleep(1)
        os.kill(os.getppid(), signal.SIGKILL)
        child.stdin.close()
        sys.exit(child.wait())
child.stdin.close()
sys.exit(child.wait())
"""


@pytest.fixture
def cluster(monkeypatch):
    text = small_cluster.SLURM_CONF.replace("munge.socket\n", f"munge.socket,cred_expire={CRED_EXPIRE_S}\n")
    monkeypatch.setattr(small_cluster, "SLURM_CONF", text.replace("KillWait=1", "KillWait=10"))
    directory = Path(tempfile.mkdtemp(prefix="senergy-", dir="/var/tmp"))
    plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
    try:
        with SmallCluster(directory, plugin, hook, hooks="") as running:
            (directory / "bin").mkdir()
            wrapper = directory / "bin" / "scontrol"
            real, python = shutil.which("scontrol", path=SEARCH), shutil.which("python3", path=SEARCH)
            wrapper.write_text(SCONTROL.format(python=python, scontrol=real, dir=directory))
            wrapper.chmod(0o755)
            for name, value in running.environment.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("PATH", f"{directory}/bin:{SEARCH}")
            yield running
            running.run("scancel", "--user=root")
    finally:
        shutil.rmtree(directory)


@pytest.fixture
def controller(cluster):
    folder = cluster.directory / "controller"
    folder.mkdir()
    with reserved_port() as port:
        made = Controller(folder, cluster.directory / "munge.socket", port)
        made.configure(CONFIG.format(prices=cluster.directory / "prices.csv"))
        yield made
        made.stop(signal.SIGKILL)


def write_prices(directory: Path) -> float:
    """Write electricity prices that fall `EXPENSIVE_S` seconds from now.

    Return the Unix time at which they fall.
    """
    falls_s = time.time() + EXPENSIVE_S
    rows = [f"{falls_s + 20 * step:.3f},{100 if step < 0 else 20}\n" for step in range(-60, 60)]
    (directory / "prices.csv").write_text("".join(["time,EUR/MWh\n", *rows]))
    return falls_s


def log_of(cluster) -> list[list[str]]:
    path = cluster.directory / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def kinds(controller, job_id: int) -> list[str]:
    with sqlite3.connect(f"file:{controller.directory}/senergy.db?mode=ro", uri=True) as database:
        rows = database.execute("SELECT kind FROM decisions WHERE job_id = ? ORDER BY time, id", (job_id,))
        return [row[0] for row in rows]


@pytest.mark.parametrize(
    ("point", "restarts"),
    [
        ("", True),
        ("before requeue", True),
        ("after requeue", True),
        ("after update", True),
        ("after requeue", False),
        ("after update", False),
    ],
)
def test_a_suspended_job_continues_whatever_happens_to_senergyctld(cluster, controller, point, restarts):
    script = cluster.script(*PROGRAM.format(dir=cluster.directory, work=WORK_S).splitlines())
    done = cluster.run("sbatch", "--parsable", "--requeue", "--time=1", "--output=/dev/null", script)
    assert done.returncode == 0, done.stderr
    job_id, submitted_s = int(done.stdout.split(";")[0]), time.time()
    wait_until(lambda: bool(log_of(cluster)), "start", cluster)
    assert cluster.run("scontrol", "update", f"JobId={job_id}", FLAGS).returncode == 0
    falls_s = write_prices(cluster.directory)
    controller.start()
    (cluster.directory / "point").write_text(point)
    killed_s = time.time()
    if point:
        wait_until(lambda: controller.process.poll() is not None, "kill", cluster)
        killed_s = time.time()
        (cluster.directory / "point").write_text("")
        state = cluster.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%T").stdout.split()
        assert (state == ["RUNNING"]) == (point == "before requeue")
        if restarts:
            time.sleep(1)
            controller.start()
    wait_until(lambda: log_of(cluster)[-1][0] == "done", "end", cluster, SLACK_S + WORK_S + 30.0)
    if point == "before requeue":
        # Whether slurmctld received the request is unknown, so that it is not repeated for 30 s.
        assert [row[:1] for row in log_of(cluster)] == [["start"], ["done"]]
        assert kinds(controller, job_id).count("suspend") == 1
        return
    first, saved, second, end = log_of(cluster)
    assert (first[:3], second[1], end) == (["start", "0", "0"], "1", ["done", str(WORK_S)])
    assert 0 < int(saved[1]) < WORK_S and second[2] == saved[1]  # no step is lost or repeated
    started_s = float(second[3])
    assert started_s <= submitted_s + SLACK_S
    if restarts or not point:
        assert started_s >= falls_s - 2.0  # slots and Slurm's times are whole seconds
        assert kinds(controller, job_id).count("suspend") == 1
    else:
        limit_s = HOLD_S if point == "after update" else CRED_EXPIRE_S + 1.0
        assert started_s - killed_s <= limit_s + 10.0  # the end of the first run, and a pass of slurmctld
