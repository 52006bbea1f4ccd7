"""Tests of a real Slurm cluster on which files of slurm-energy are missing.

Jobs must run, nodes must stay up, and slurmctld must start. The installation follows
docs/install-by-hand.md. spank-release.sh runs these tests on other releases of Slurm.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from small_cluster import NODES, SmallCluster, marks, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED_PATH = "/usr/local/lib/slurm-energy"

pytestmark = marks("srun", "gcc", "make")


class InstalledCluster(SmallCluster):
    """A cluster whose plugstack.conf includes the file that `make install` installs.

    By default, the cluster has no Prolog and no Epilog.

    Args:
        directory: an empty directory for the cluster.
        built: a directory with the built C parts.
        installed: whether the parts are installed before Slurm starts.
        hooks: lines of slurm.conf for prolog and epilog.
    """

    def __init__(self, directory: Path, built: Path, installed: bool = True, hooks: str = "") -> None:
        parts = (built / "energy.so", built / "senergy-hook")
        super().__init__(directory, *parts, extra="JobSubmitPlugins=lua", hooks=hooks)
        self.built = built
        self.library = directory / "lib"
        script = (REPOSITORY / "prolog_epilog" / "job_submit.lua").read_text()
        assert INSTALLED_PATH in script
        (directory / "job_submit.lua").write_text(script.replace(INSTALLED_PATH, str(self.library)))
        if installed:
            self.install()

    def write_plugstack(self, arguments: str | None = None) -> None:
        (self.directory / "plugstack.conf").write_text(f"include {self.library}/plugstack.d/*.conf\n")

    def install(self) -> None:
        """Install the SPANK plugin, the prolog and the epilog.

        They use the socket and the policy file of this cluster.
        """
        for part, variable in (("spank", "PLUGIN_DIR"), ("prolog_epilog", "HOOK_DIR")):
            command = ["make", "--silent", "-C", self.built / part, "install", f"{variable}={self.library}"]
            subprocess.run(
                [*command, f"POLICY_FILE={self.policy_file}"],
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=120,
            )
        fragment = self.library / "plugstack.d" / "energy.conf"
        lines = [f"{line} socket={self.directory}/agent.sock" for line in fragment.read_text().splitlines()]
        fragment.write_text("\n".join(lines) + "\n")

    def restart_nodes(self) -> None:
        """Stop every slurmd and start it again."""
        own = [daemon for daemon in self.daemons if str(daemon.args[0]).endswith("slurmd")]
        for daemon in own:
            daemon.terminate()
            daemon.wait(60)
            self.daemons.remove(daemon)
        for name in NODES:
            self._spawn("slurmd", "-D", "-N", name, "-f", f"{self.directory}/slurm.conf")
        self.wait_for_idle_nodes()

    def wait_for_idle_nodes(self) -> None:
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_until(lambda: self.run(*states).stdout.split() == ["idle"] * len(NODES), "idle nodes", self)

    def submit_and_wait(self, *options: str) -> int:
        """Run a batch job on one node to its end and return its id; fail unless it completed."""
        done = self.run("sbatch", "--parsable", "--output=/dev/null", *options, self.script("srun -n1 true"))
        assert done.returncode == 0, done.stderr + self.logs()
        assert done.stderr == ""
        return self.wait_for_completion(int(done.stdout))

    def wait_for_completion(self, job_id: int) -> int:
        """Wait until a job has ended and return its id; fail unless it completed."""
        state = ("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T %r")
        waiting = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        answers: list[str] = []

        def is_over() -> bool:
            done = self.run(*state)
            answers.append(done.stdout)
            is_waiting = done.stdout.startswith(waiting)
            return done.returncode == 0 and (
                not is_waiting or "held" in done.stdout or "failed" in done.stdout
            )

        wait_until(is_over, f"end of job {job_id}", self)
        assert answers[-1].split()[0] == "COMPLETED", answers[-1] + self.logs()
        return job_id

    def controller_log(self) -> str:
        """Return slurmctld's log."""
        return (self.directory / "slurmctld.out").read_text(errors="replace")

    def node_reasons(self) -> list[str]:
        """Return why each node is drained or down; `none` for a node that is not."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%E").stdout.split("\n")[: len(NODES)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the plugins and hooks written in C, from a copy of their directories."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("spank", "prolog_epilog"):
        ignore = shutil.ignore_patterns("*.so", "senergy-hook")
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=ignore)
    (folder / "packaging").mkdir()
    for name in ("install-file", "slurm-headers"):
        shutil.copy(REPOSITORY / "packaging" / name, folder / "packaging")
    for name in ("spank", "prolog_epilog"):
        command = ["make", "--silent", "-C", folder / name, "CFLAGS_EXTRA=-Wall -Wextra -Werror"]
        subprocess.run([*command, f"DEFAULTS_FILE={folder}/defaults"], check=True, timeout=120)
    return folder


@pytest.fixture
def folder():
    directory = Path(tempfile.mkdtemp(prefix="senergy-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def cluster(folder, built):
    with InstalledCluster(folder, built) as running:
        yield running


def announced(cluster: SmallCluster, job_id: int) -> list[object]:
    """Return which messages about a job senergyd has received, without those about its steps.

    Each message is given by the name of its operation.
    """
    return [
        m["op"] for m in cluster.agent.messages if m["op"] != "step" and cluster.agent.job_of(m) == job_id
    ]


def test_jobs_without_prolog_and_epilog_lines_are_announced_with_flags(cluster):
    job_id = cluster.submit_and_wait("--energy-cap=300W")
    wait_until(lambda: announced(cluster, job_id) == ["begin", "end"], "begin and end", cluster)
    (begin,) = cluster.agent.of("begin", job_id)
    assert begin["env"]["SPANK_ENERGY_CAP"] == "300"
    assert begin["env"]["SLURM_JOB_PARTITION"] == "all"
    assert begin["env"]["SLURM_JOB_USER"] == "root"
    assert begin["env"]["SLURMD_NODENAME"] in NODES
    steps = cluster.agent.of("step", job_id)
    order = cluster.agent.messages
    assert order.index(begin) < order.index(steps[0])
    assert cluster.run("sbatch", "--energy-cap=15Wh", "--wrap=true").returncode == 1


def test_a_job_runs_without_senergyd_and_its_messages_wait(cluster):
    left = cluster.directory / "agent.sock.deferred"
    left.mkdir(mode=0o700)
    cluster.agent.close()
    (cluster.directory / "agent.sock").unlink()
    job_id = cluster.submit_and_wait()
    wait_until(lambda: len(list(left.glob("[0-9]*.json"))) == 2, "begin and end", cluster)
    messages = [json.loads(path.read_text()) for path in sorted(left.glob("[0-9]*.json"))]
    assert [(m["op"], m["env"]["SLURM_JOB_ID"]) for m in messages] == [
        ("begin", str(job_id)),
        ("end", str(job_id)),
    ]
    cluster.wait_for_idle_nodes()
    assert cluster.node_reasons() == ["none"] * len(NODES)


def test_a_site_may_hold_jobs_that_cannot_be_announced(cluster, built):
    fragment = cluster.library / "plugstack.d" / "energy.conf"
    lines = fragment.read_text().splitlines()
    fragment.write_text("\n".join(line.replace("optional", "required") for line in lines) + "\n")
    cluster.submit_and_wait()
    options = built / "defaults"
    options.write_text('SENERGY_HOOK_OPTIONS="--hold"\n')
    cluster.agent.close()
    try:
        done = cluster.run(
            "sbatch", "--parsable", "--output=/dev/null", "-w", NODES[0], cluster.script("true")
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: cluster.node_reasons()[0] != "none", "drained node", cluster)
    finally:
        options.unlink()


@pytest.mark.parametrize(
    "missing",
    ["energy_hooks.so", "energy.so", "plugstack.d", "plugstack.d/energy.conf", "senergy_submit.lua", "."],
)
def test_jobs_run_and_nodes_stay_up_without(cluster, missing):
    path = (cluster.library / missing).resolve()
    away = cluster.directory / "away"
    path.rename(away)
    plugin_missing = missing.endswith(".so")
    done = cluster.run("sbatch", "--parsable", "--output=/dev/null", cluster.script("srun -n1 true"))
    assert done.returncode == 0, done.stderr
    if not plugin_missing:  # Slurm 22.05 prints two lines for a plugin that plugstack.conf names
        assert done.stderr == ""
    cluster.wait_for_completion(int(done.stdout))
    assert cluster.run("srun", "-N3", "true").returncode == 0
    cluster.wait_for_idle_nodes()
    assert cluster.node_reasons() == ["none"] * len(NODES)
    away.rename(path)
    job_id = cluster.submit_and_wait()
    wait_until(lambda: announced(cluster, job_id) == ["begin", "end"], "begin and end", cluster)


def test_slurm_starts_and_runs_jobs_before_the_installation(folder, built):
    with InstalledCluster(folder, built, installed=False) as cluster:
        cluster.submit_and_wait()
        assert cluster.node_reasons() == ["none"] * len(NODES)
        assert "energy flags are not checked: senergy_submit" in cluster.controller_log()
        cluster.install()
        cluster.restart_nodes()  # slurmd asks once, when it starts, whether a plugin has a prolog
        job_id = cluster.submit_and_wait()
        wait_until(lambda: announced(cluster, job_id) == ["begin", "end"], "begin and end", cluster)


@pytest.mark.parametrize("text", ["", "this is not Lua", "return 1", "error('broken\\nin two lines')"])
def test_slurmctld_starts_with_a_broken_check_module(cluster, text):
    (cluster.library / "senergy_submit.lua").write_text(text)
    cluster.restart_controller()
    cluster.submit_and_wait()
    assert "energy flags are not checked: senergy_submit" in cluster.controller_log()


def test_the_check_module_is_loaded_once_it_exists(cluster):
    (cluster.library / "senergy_submit.lua").unlink()
    cluster.restart_controller()
    cluster.install()
    cluster.restart_controller()
    cluster.submit_and_wait("--energy-cap=300")
    assert cluster.controller_log().count("energy flags are not checked") == 1


@pytest.mark.parametrize(
    "line", ["Prolog={dir}/no-such-prolog", "Prolog={dir}/no-such-directory/*", "Epilog={dir}/no-such-epilog"]
)
def test_a_missing_prolog_or_epilog_drains_the_node_as_documented(folder, built, line):
    with InstalledCluster(folder, built, hooks=line) as cluster:
        done = cluster.run(
            "sbatch", "--parsable", "--output=/dev/null", "-w", NODES[0], cluster.script("true")
        )
        assert done.returncode == 0, done.stderr
        wait_until(lambda: cluster.node_reasons()[0] != "none", "drained node", cluster)
