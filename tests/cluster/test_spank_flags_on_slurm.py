"""Tests of energy.so, senergy-hook and senergy_submit.lua on a real Slurm.

Invalid flags must be refused, valid flags must arrive in the hooks, and jobs must not be disturbed. The
tests run on the installed Slurm; spank-release.sh runs them in a bare root directory with another release.
They need only pytest and the standard library.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from small_cluster import NODES, PREFIX, FakeAgent, SmallCluster, marks, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = marks("srun", "salloc", "gcc", "make")

POLICIES = """\
senergy-policies 1
policy monitor measures-only
policy edp tuned
policy night users=alice
policy dusk users=nobody,daemon
policy cap needs-cap
policy low users=nobody needs-cap
policy lowest
cap_watts 100 10000
gpu_cap_watts 100 1000
slowdown_percent 0 25
power-profiles MAX_P,MAX_Q
"""
SUBMIT_LUA = """\
package.path = "{folder}/?.lua;" .. package.path
local senergy = require("senergy_submit")
senergy.policy_file = "{policy_file}"
function slurm_job_submit(job_desc, part_list, submit_uid)
    return senergy.check(job_desc, submit_uid)
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
return slurm.SUCCESS
"""
ROGUE_CLIENT = """
/* A client that sends in the job-control environment whatever ROGUE_NAME and ROGUE_VALUE say. */
#include <slurm/spank.h>
#include <stdlib.h>
SPANK_PLUGIN(rogue, 1)
int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[])
{
    (void)count, (void)arguments;
    if (spank_context() != S_CTX_REMOTE && getenv("ROGUE_NAME"))
        spank_job_control_setenv(spank, getenv("ROGUE_NAME"), getenv("ROGUE_VALUE"), 1);
    return 0;
}
"""
LIMITS = "--energy-cap, --energy-gpu-cap, --energy-cpu-freq, --energy-gpu-clock or --energy-power-profile"
NOT_A_POWER = "is not a power; write watts as 200, 200W or 1.6kW (allowed: 100 to 10000 W)"
BAD_VALUES = [
    ("energy-cap", "15Wh", f"'15Wh' {NOT_A_POWER}"),
    ("energy-cap", "-5", f"'-5' {NOT_A_POWER}"),
    ("energy-cap", "1e400", f"'1e400' {NOT_A_POWER}"),
    ("energy-cap", "nan", f"'nan' {NOT_A_POWER}"),
    ("energy-cap", "", f"'' {NOT_A_POWER}"),
    ("energy-cap", "२००", rf"'\xe0\xa5\xa8\xe0\xa5\xa6\xe0\xa5\xa6' {NOT_A_POWER}"),
    ("energy-cap", "9" * 10_000, f"'{'9' * 37}...' {NOT_A_POWER}"),
    ("energy-cap", "20kW", "'20kW' is out of bounds; allowed: 100 to 10000 W"),
    ("energy-gpu-cap", "99.9", "'99.9' is out of bounds; allowed: 100 to 1000 W"),
    ("energy-slowdown", "30%", "'30%' is out of bounds; allowed: 0 to 25 %"),
    ("energy-tuning", "yes", "'yes' is not a tuning mode; allowed: off, advise, on"),
    ("energy-cpu-freq", "2.4ghz", "'2.4ghz' is not a frequency; write MHz as 2400, 2400MHz or 2.4GHz"),
    ("energy-power-profile", "MAX_R", "'MAX_R' is not a power profile; allowed: MAX_P,MAX_Q"),
    ("energy-policy", "edpp", "unknown policy 'edpp'; did you mean 'edp'? allowed: monitor, "),
    ("energy-policy", "night", "'night' is not open to user nobody; allowed: monitor, edp, dusk"),
    ("energy-policy", "x" * 10_000, f"'{'x' * 37}...' is not a policy name; allowed: "),
    ("energy-model", "a;b", "'a;b' is not a model name; allowed: 1 to 64 characters"),
    (
        "energy-alternatives",
        "gpu:a100:4,gpu:4",
        "'gpu:a100:4,gpu:4' is not a list of shapes; write 1 to 8 as ",
    ),
    ("energy-tag", "\x1b[31mred", r"'\x1b[31mred' is not a tag; allowed: 1 to 64 characters"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the C parts from a copy of their directories and return their path."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("spank", "prolog_epilog"):
        ignore = shutil.ignore_patterns("*.so", "senergy-hook")
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=ignore)
    (folder / "packaging").mkdir()
    shutil.copy(REPOSITORY / "packaging" / "slurm-headers", folder / "packaging")
    for name in ("spank", "prolog_epilog"):  # energy_hooks.so uses sources from both
        command = ["make", "--silent", "-C", folder / name, "CFLAGS_EXTRA=-Wall -Wextra -Werror"]
        subprocess.run(command, check=True, timeout=120)
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def rogue(built, running):
    source, plugin = built / "rogue.c", running.directory / "rogue.so"
    source.write_text(ROGUE_CLIENT)
    headers = [f"-I{PREFIX}/include"] if PREFIX else []
    command = ["gcc", "-shared", "-fPIC", *headers, "-o", plugin, source]
    subprocess.run(command, check=True, timeout=60)
    return plugin


@pytest.fixture(scope="module")
def running(built):
    """One cluster for all tests. Unlike pytest's directories, its directory is open to all users."""
    folder = Path(tempfile.mkdtemp(prefix="senergy-"))
    try:
        folder.chmod(0o755)
        lua = folder / "job_submit.lua"
        shutil.copy(built / "spank" / "energy.so", folder)
        shutil.copy(built / "prolog_epilog" / "senergy-hook", folder)
        lua.write_text(SUBMIT_LUA.format(folder=built / "prolog_epilog", policy_file=folder / "policies"))
        (folder / "policies").write_text(POLICIES)
        plugins = (folder / "energy.so", folder / "senergy-hook")
        with SmallCluster(folder, *plugins, extra="JobSubmitPlugins=lua") as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def login(running):
    """Yield the path of the copy of the policy file on a login node, which has no senergyctld."""
    folder = running.directory / "login"
    folder.mkdir(mode=0o755)
    running.write_plugstack(f"policy_file={running.directory}/absent socket={folder}/agent.sock")
    yield folder / "policies"
    shutil.rmtree(folder)
    running.write_plugstack()


def test_login_nodes_check_flags_by_a_current_copy_of_the_policy_file(running, login):
    def submitted(policy):
        done = running.run("sbatch", "--hold", f"--energy-policy={policy}", "--wrap=true", user="nobody")
        return done.returncode, of_ours(done)

    def renamed(fresh_until):
        login.write_text(f"senergy-policies 1\npolicy renamed\nissued 1\nfresh-until {fresh_until:.0f}\n")

    running.policy_file.write_text(POLICIES)
    assert submitted("edp") == (0, [])
    renamed(time.time() + 600)
    error = "sbatch: error: --energy-policy: unknown policy 'edp'; allowed: renamed"
    assert submitted("edp") == (1, [error])
    os.chown(login, 64030, 64030)
    assert submitted("edp") == (0, [])
    login.unlink()
    renamed(time.time() - 1)
    assert submitted("edp") == (0, [])
    login.unlink()
    os.mkfifo(login)
    assert submitted("edp") == (0, [])
    login.unlink()
    login.write_text("senergy-policies 1\n" + "#" * (65 << 10))
    assert submitted("edp") == (0, [])
    code, said = submitted("9")  # the form is checked in any case
    assert code == 1 and "is not a policy name" in said[0]
    code, said = submitted("renamed")  # slurmctld knows the present policies
    assert code == 1 and "unknown policy 'renamed'" in said[0]


@pytest.fixture
def cluster(running):
    """The cluster with the policy file and plugstack.conf that tests expect."""
    running.policy_file.write_text(POLICIES)
    running.write_plugstack()
    return running


def of_ours(done):
    """Return the lines of a command's stderr that slurm-energy wrote.

    Slurm's own lines, for example about busy nodes, are left out.
    """
    return [line for line in done.stderr.splitlines() if "energy" in line]


def energy_flags(cluster, job_id):
    """Return the energy flags of a job that its prolog sent to senergyd, by name."""
    (message,) = cluster.agent.of("begin", job_id)
    prefix = "SPANK_ENERGY_"
    return {k.removeprefix(prefix): v for k, v in message["env"].items() if k.startswith(prefix)}


def script_of_components(cluster, count, *lines):
    """Return a batch script that first waits until all components of a heterogeneous job have begun.

    Slurm itself does not wait for the prologs of the other components. A script that ends at once may
    therefore end on the first node before the job has begun on another node.
    """
    begun = f"{cluster.directory}/env.begin.$((${{SLURM_HET_JOB_ID:-$SLURM_JOB_ID}} + i))"
    numbers = " ".join(map(str, range(count)))
    wait = f"for i in {numbers}; do while [ ! -e {begun} ]; do sleep 0.1; done; done"
    return cluster.script(wait, *lines, name="components.sh")


def submit_bad(cluster, way, *options):
    if way == "#SBATCH":
        lines = [f'#SBATCH "{option}"' for option in options]
        return cluster.run("sbatch", cluster.script(*lines, "true", name="bad.sh"), user="nobody")
    target = cluster.script("true", name="never.sh") if way == "sbatch" else "true"
    return cluster.run(way, *options, target, user="nobody")


WAYS = ("sbatch", "#SBATCH", "srun", "salloc")
"""Each case takes one way: the rules themselves are tested value by value in unit/test_spank_flags."""


@pytest.mark.parametrize(
    ("way", "flag", "value", "problem"),
    [(way, *case) for way, case in zip(itertools.cycle(WAYS), BAD_VALUES, strict=False)],
    ids=[f"{flag}={value[:12]!a}" for flag, value, _ in BAD_VALUES],
)
def test_bad_values_are_refused_with_one_line_and_nothing_is_queued(cluster, way, flag, value, problem):
    before = cluster.job_count()
    done = submit_bad(cluster, way, f"--{flag}={value}")
    assert done.returncode == 1
    program = way.replace("#SBATCH", "sbatch")
    assert done.stderr.startswith(f"{program}: error: --{flag}: {problem}")
    assert done.stderr.count("\n") == 1
    assert done.stderr.rstrip("\n").isprintable()
    assert done.stdout == ""
    assert cluster.job_count() == before


POINTLESS = "policy 'monitor' changes nothing; choose another policy or leave the flag out"
CONTRADICTIONS = [
    (("--energy-cap=300", "--energy-policy=monitor"), f"--energy-cap: {POINTLESS}"),
    (("--energy-policy=monitor", "--energy-gpu-cap=300"), f"--energy-gpu-cap: {POINTLESS}"),
    (("--energy-policy=cap",), f"--energy-policy=cap needs {LIMITS}"),
    (("--energy-tag=a", "--energy-policy=low"), f"--energy-policy=low needs {LIMITS}"),
    (
        ("--energy-slowdown=5", "--energy-policy=lowest"),
        "--energy-slowdown: policy 'lowest' is not tuned; choose edp, ed2p or energy, or leave the flag out",
    ),
]


@pytest.mark.parametrize(
    ("way", "options", "problem"),
    [(way, *case) for way, case in zip(itertools.cycle(WAYS), CONTRADICTIONS, strict=False)],
)
def test_contradicting_flags_are_refused_with_one_line_and_nothing_is_queued(cluster, way, options, problem):
    before = cluster.job_count()
    done = submit_bad(cluster, way, *options)
    program = way.replace("#SBATCH", "sbatch")
    assert (done.returncode, done.stderr) == (1, f"{program}: error: {problem}\n")
    assert cluster.job_count() == before


def test_flags_are_checked_together_once_all_are_read(cluster):
    script = cluster.script("#SBATCH --energy-policy=monitor", "#SBATCH --energy-tag=script", "true")
    job_id = cluster.batch("--energy-cap=300", "--energy-policy=cap", script)
    assert energy_flags(cluster, job_id) == {"POLICY": "cap", "CAP": "300", "TAG": "script"}
    done = cluster.run("sbatch", "--energy-cap=300", script)
    assert (done.returncode, done.stderr) == (1, f"sbatch: error: --energy-cap: {POINTLESS}\n")
    job_id = cluster.batch("--energy-policy=lowest", cluster.script("true", name="plain.sh"))
    assert energy_flags(cluster, job_id) == {"POLICY": "lowest"}


def test_components_of_a_heterogeneous_job_are_checked_one_by_one(cluster):
    before, script = cluster.job_count(), script_of_components(cluster, 2)
    components = ["-n1", "--energy-policy=edp", ":", "-n1", "--energy-policy=cap"]
    done = cluster.run("sbatch", *components, script)
    assert of_ours(done) == [f"sbatch: error: --energy-policy=cap needs {LIMITS}"]
    assert cluster.job_count() == before
    components = ["-n1", "--energy-policy=monitor", ":", "-n1", "--energy-policy=cap", "--energy-cap=300"]
    done = cluster.run("sbatch", "--parsable", *components, script)
    assert done.returncode == 0, done.stderr
    first = int(done.stdout)
    for job_id in (first, first + 1):
        cluster.hook_environment("end", job_id)
    assert energy_flags(cluster, first) == {"POLICY": "monitor"}
    assert energy_flags(cluster, first + 1) == {"POLICY": "cap", "CAP": "300"}


def test_slurms_own_exit_code_for_errors_is_kept(cluster):
    script = cluster.script("true")
    assert cluster.run("sbatch", "--energy-cap=x", script, SLURM_EXIT_ERROR="77").returncode == 77


@pytest.mark.parametrize("way", ["sbatch", "srun", "salloc", "#SBATCH"])
def test_valid_flags_arrive_in_the_hooks_in_canonical_form(cluster, way):
    options = ["--energy-policy=dusk", "--energy-cap=1.6kW", "--energy-gpu-cap=250W"]
    options += [
        "--energy-cpu-freq=2.4GHz",
        "--energy-power-profile=max-q",
        "--energy-model=bert:v1",
        "--energy-tag=run/7",
        "--energy-alternatives=gpu:a100:04,gpu:h100:2",
    ]
    if way == "sbatch":
        job_id = cluster.batch(*options, cluster.script("true"), user="nobody")
    elif way == "#SBATCH":
        lines = [f"#SBATCH {option}" for option in options]
        job_id = cluster.batch(cluster.script(*lines, "true"), user="nobody")
    else:
        tell = cluster.script("echo $SLURM_JOB_ID", name="tell.sh")
        done = cluster.run(way, *options, tell, user="nobody")
        assert done.returncode == 0, done.stderr
        assert of_ours(done) == []
        job_id = int(done.stdout)
        cluster.hook_environment("end", job_id)
    expected = {"POLICY": "dusk", "CAP": "1600", "GPU_CAP": "250"}
    expected |= {"CPU_FREQ": "2400", "POWER_PROFILE": "MAX_Q"}
    expected |= {"MODEL": "bert:v1", "TAG": "run/7", "ALTERNATIVES": "gpu:a100:4,gpu:h100:2"}
    assert energy_flags(cluster, job_id) == expected
    for operation in ("begin", "end"):
        environment = cluster.hook_environment(operation, job_id)
        assert environment["SPANK_ENERGY_CAP"] == "1600"


def test_flags_are_copied_to_a_field_of_squeue_if_the_policy_file_says_so(cluster):
    def comment(*options):
        job_id = cluster.batch(*options, "--wrap=true", user="nobody")
        return cluster.run("squeue", "-h", "-tall", f"-j{job_id}", "-Oadmin_comment:;").stdout.strip()

    flags = ("--energy-policy=edp", "--energy-tag=a/b:1", "--comment=energy-flags: ENERGY_POLICY=night")
    assert comment(*flags) == "(null);"
    cluster.policy_file.write_text(POLICIES + "note-flags\n")
    assert comment(*flags) == "energy-flags: ENERGY_POLICY=edp ENERGY_TAG=a/b:1;"
    assert comment("--comment=energy-flags: ENERGY_POLICY=edp") == "(null);"


def test_the_last_of_two_wins_and_the_command_line_over_the_script(cluster):
    script = cluster.script("#SBATCH --energy-cap=300", "#SBATCH --energy-tag=script", "true")
    twice = cluster.batch("--energy-cap=400", "--energy-cap=500", cluster.script("true", name="plain.sh"))
    assert energy_flags(cluster, twice) == {"CAP": "500"}
    assert energy_flags(cluster, cluster.batch("--energy-cap=400", script)) == {"CAP": "400", "TAG": "script"}


def test_when_root_submits_the_owner_of_the_job_counts(cluster):
    script = cluster.script("true")
    job_id = cluster.batch("--uid=daemon", "--energy-policy=dusk", script)
    assert energy_flags(cluster, job_id) == {"POLICY": "dusk"}
    done = cluster.run("sbatch", "--energy-policy=dusk", script)
    assert done.returncode == 1
    line = (
        "sbatch: error: --energy-policy: 'dusk' is not open to user root; allowed: monitor, edp, cap, lowest"
    )
    assert done.stderr.splitlines()[0] == line


def test_every_task_of_an_array_carries_the_flags(cluster):
    done = cluster.run("sbatch", "--parsable", "--array=1-3", "--energy-cap=224", cluster.script("true"))
    assert done.returncode == 0, done.stderr
    first = int(done.stdout)
    for job_id in range(first, first + 3):
        cluster.hook_environment("end", job_id)
        assert energy_flags(cluster, job_id) == {"CAP": "224"}


@pytest.mark.parametrize("way", ["sbatch", "srun", "salloc"])
def test_components_of_a_heterogeneous_job_keep_a_flag_until_the_next_one(cluster, way):
    tell = script_of_components(cluster, len(NODES), "echo $SLURM_JOB_ID")
    components = ["-n1", "--energy-cap=225", ":", "-n1", ":", "-n1", "--energy-cap=226", "--energy-tag=c"]
    parsable = ["--parsable"] if way == "sbatch" else []
    done = cluster.run(way, *parsable, *components, tell)
    assert done.returncode == 0, done.stderr
    first = min(int(word) for word in done.stdout.split())
    for job_id in range(first, first + len(NODES)):
        cluster.hook_environment("end", job_id)
    flags = [energy_flags(cluster, first + i) for i in range(len(NODES))]
    assert flags == [{"CAP": "225"}, {"CAP": "225"}, {"CAP": "226", "TAG": "c"}]


def test_a_requeued_job_restarts_with_its_flags(cluster):
    marker = cluster.directory / "requeued"
    marker.unlink(missing_ok=True)
    lines = [f"[ -e {marker} ] && exit 0", f"touch {marker}", "scontrol requeue $SLURM_JOB_ID", "sleep 30"]
    done = cluster.run("sbatch", "--parsable", "--requeue", "--energy-cap=227", cluster.script(*lines))
    job_id = int(done.stdout)
    wait_until(lambda: len(cluster.agent.of("end", job_id)) == 1, "first epilog", cluster)
    pending = ("squeue", "--noheader", f"--jobs={job_id}", "--states=PENDING", "--format=%i")
    wait_until(lambda: cluster.run(*pending).stdout.strip() == str(job_id), "requeue", cluster)
    # By default Slurm waits two minutes; the node refuses a credential of the second in which the run ended.
    cluster.run("scontrol", "update", f"jobid={job_id}", "starttime=now+3seconds")
    wait_until(lambda: len(cluster.agent.of("end", job_id)) > 1, "second epilog", cluster)
    begins = [message["env"] for message in cluster.agent.of("begin", job_id)]
    assert [env["SLURM_JOB_RESTART_COUNT"] for env in begins] == ["0", "1"]
    assert [env["SPANK_ENERGY_CAP"] for env in begins] == ["227", "227"]


def test_steps_announce_themselves_between_begin_and_end(cluster):
    job_id = cluster.batch("-n2", cluster.script("srun -n2 true", "srun -n1 true"))
    steps = cluster.agent.of("step", job_id)
    for step in ("batch", "0", "1"):
        assert [m["event"] for m in steps if m["step"] == step] == ["start", "end"]
    for message in steps:
        assert message["pid"] > 1
        assert set(message["cpus"]) <= set("0123456789,-")
    (cores,) = {message["job_cpus"] for message in steps}
    assert cores and set(cores) <= set("0123456789,-")
    processes = {(m["step"], m["pid"]) for m in steps}
    assert len(processes) == 3, "start and end of a step come from one process"
    kinds = [m["op"] for m in cluster.agent.messages if cluster.agent.job_of(m) == job_id]
    assert kinds == ["begin", *["step"] * 6, "end"]
    assert set(cluster.agent.uids) == {0}


def test_steps_of_a_job_run_on_after_the_removal_of_its_policy(cluster):
    gate, said = cluster.directory / "gate", cluster.directory / "said"
    gate.unlink(missing_ok=True)
    lines = [f"while [ ! -e {gate} ]; do sleep 0.1; done", f"srun true >{said} 2>&1; echo rc=$? >>{said}"]
    done = cluster.run("sbatch", "--parsable", "--energy-policy=edp", cluster.script(*lines))
    cluster.hook_environment("begin", int(done.stdout))
    cluster.policy_file.write_text("senergy-policies 1\npolicy monitor\n")
    gate.touch()
    cluster.hook_environment("end", int(done.stdout))
    assert said.read_text() == "rc=0\n"


def test_flags_of_a_step_are_checked_and_have_no_effect(cluster):
    command = "srun --energy-cap=500 true; srun --energy-cap=99999 true; echo rc=$?"
    done = cluster.run("salloc", "--quiet", "--energy-cap=400", "sh", "-c", command)
    assert "rc=1" in done.stdout
    assert of_ours(done) == [
        "srun: --energy-cap: settings belong to the job: this step keeps those of the job",
        "srun: error: --energy-cap: '99999' is out of bounds; allowed: 100 to 10000 W",
    ]


def test_steps_run_with_any_combination_of_their_flags_and_the_jobs(cluster):
    steps = ["srun --energy-policy=monitor --energy-gpu-cap=200 true", "srun true"]
    command = " && ".join([*steps, "srun --energy-policy=monitor true"]) + "; echo rc=$?"
    done = cluster.run("salloc", "--quiet", "--energy-policy=cap", "--energy-cap=400", "sh", "-c", command)
    assert done.stdout == "rc=0\n"
    kept = "srun: --{}: settings belong to the job: this step keeps those of the job"
    asked = ["energy-policy", "energy-gpu-cap", "energy-policy"]
    assert of_ours(done) == [kept.format(flag) for flag in asked]


LEFT_OUT = "that of the surrounding job is left out: it conflicts with the flags of this job"


@pytest.mark.parametrize(
    ("outer", "inner", "left_out", "expected"),
    [
        (["--energy-cap=300"], "--energy-policy=monitor", "energy-cap", {"POLICY": "monitor"}),
        (["--energy-policy=monitor"], "--energy-cap=300", "energy-policy", {"CAP": "300"}),
        (
            ["--energy-policy=cap", "--energy-cap=300"],
            "--energy-tag=in",
            None,
            {"POLICY": "cap", "CAP": "300"},
        ),
    ],
    ids=["cap", "policy", "nothing"],
)
@pytest.mark.parametrize("way", ["sbatch", "salloc"])
def test_inherited_flags_of_an_inner_job_yield_to_its_own(cluster, way, outer, inner, left_out, expected):
    """The flags of a job take precedence over the flags that it inherits from the submitting job.

    The first job submits a second job with flags. The second job submits a third job without flags. The
    third job inherits the flags in force for the second job.

    The test does not use `sbatch --wait`, because this command polls too rarely: after 2, 10 and 42 seconds.
    """
    innermost = cluster.script("true", name="third.sh")
    submit = "sbatch --parsable --output=/dev/null"
    second = cluster.script("srun true && echo step $?", f"{submit} {innermost}", name="second.sh")
    said = cluster.directory / "said-inside"
    first = cluster.script(f"{submit} --output={said} {inner} {second}", name="first.sh")
    if way == "salloc":
        done = cluster.run("salloc", "--quiet", *outer, first)
        assert done.returncode == 0, done.stderr
        error, second_id = done.stderr, int(done.stdout)
    else:
        heard = cluster.directory / "heard-inside"
        cluster.batch(f"--output={heard}", *outer, first)
        *lines, second_id = heard.read_text().splitlines()
        error, second_id = "\n".join(lines), int(second_id)
    cluster.hook_environment("end", second_id)
    ours = [line for line in error.splitlines() if "energy" in line]
    assert ours == ([f"sbatch: --{left_out}: {LEFT_OUT}"] if left_out else [])
    if inner == "--energy-tag=in":
        expected = expected | {"TAG": "in"}
    assert energy_flags(cluster, second_id) == expected
    step, third_id = said.read_text().splitlines()
    assert step == "step 0"
    cluster.hook_environment("end", int(third_id))
    assert energy_flags(cluster, int(third_id)) == expected


def test_a_flag_repeated_inside_a_job_does_not_count_as_inherited(cluster):
    never = cluster.script("true", name="never.sh")
    submit = f"sbatch --output=/dev/null --energy-policy=monitor --energy-cap=300 {never}"
    done = cluster.run("salloc", "--quiet", "--energy-cap=300", cluster.script(submit, name="first.sh"))
    assert of_ours(done) == [f"sbatch: error: --energy-cap: {POINTLESS}"]


@pytest.mark.parametrize(
    "arguments", ["policy_file=/nonexistent", "policy_file=/dev/zero", "policy_file={fifo}"]
)
def test_without_a_usable_policy_file_the_syntax_is_checked(cluster, arguments):
    fifo = cluster.directory / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
    cluster.write_plugstack(arguments.format(fifo=fifo) + f" socket={cluster.directory}/agent.sock")
    done = cluster.run("srun", "--energy-cap=15Wh", "true")
    assert done.returncode == 1
    assert "--energy-cap: '15Wh' is not a power" in done.stderr
    done = cluster.run("srun", "--energy-policy=cap", "true")
    assert of_ours(done) == [f"srun: error: --energy-policy=cap needs {LIMITS}"]
    done = cluster.run("srun", "--energy-cap=200", "true")
    assert (done.returncode, of_ours(done)) == (0, [])


def test_commands_without_flags_print_nothing_whatever_is_wrong(cluster):
    cluster.write_plugstack("policy_file=/dev/zero socket=/nonexistent surplus")
    for command in (["srun", "true"], ["sbatch", "--output=/dev/null", cluster.script("true")]):
        done = cluster.run(*command)
        assert (done.returncode, of_ours(done)) == (0, [])


class SilentAgent(FakeAgent):
    """A substitute for senergyd that accepts connections, reads requests and never responds."""

    ANSWER = b""


def test_jobs_run_without_an_agent_and_with_one_that_never_answers(cluster):
    script = cluster.script("srun true")
    agent = cluster.agent
    agent.close()
    (cluster.directory / "agent.sock").unlink()
    try:
        done = cluster.run("srun", "--energy-cap=200", "true")
        assert (done.returncode, of_ours(done)) == (0, [])
        cluster.batch(script)
        cluster.agent = SilentAgent(cluster.directory / "agent.sock")
        job_id = cluster.batch(script)
        assert len(cluster.agent.of("step", job_id)) == 4
        cluster.agent.close()
        (cluster.directory / "agent.sock").unlink()
    finally:
        cluster.agent = FakeAgent(cluster.directory / "agent.sock")
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T")
    assert set(states.stdout.split()) <= {"idle", "completing", "allocated", "mixed"}, "a hook drained a node"
    log = (cluster.directory / "hook.log").read_text()
    assert "agent.sock: No such file or directory: the job runs without" in log
    assert "agent.sock: no answer in time: the job runs without" in log


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("ENERGY_CAP", "99999", "--energy-cap: '99999' is out of bounds; allowed: 100 to 10000 W"),
        ("SPANK_ENERGY_CAP", "99999", "--energy-cap: '99999' is out of bounds; allowed: 100 to 10000 W"),
        ("ENERGY_POLICY", "night", "--energy-policy: 'night' is not open to user nobody; allowed: monitor, "),
        (
            "ENERGY_POLICY",
            "edpp",
            "--energy-policy: unknown policy 'edpp'; did you mean 'edp'? allowed: monitor, ",
        ),
        ("ENERGY_TAG", "a\nb", r"--energy-tag: 'a\x0ab' is not a tag; "),
        ("ENERGY_CAP", "", "--energy-cap: '' is not a power; "),
        ("ENERGY_POLICY", "low", f"--energy-policy=low needs {LIMITS}"),
    ],
    ids=["out of bounds", "out of bounds, prefixed", "not open", "unknown", "not a tag", "empty", "no cap"],
)
@pytest.mark.parametrize("way", ["sbatch", "srun", "salloc"])
def test_the_controller_refuses_bad_flags_of_a_client_without_our_plugin(
    cluster, rogue, way, name, value, problem
):
    (cluster.directory / "plugstack.conf").write_text(f"required {rogue}\n")
    before = cluster.job_count()
    target = cluster.script("true") if way == "sbatch" else "true"
    done = cluster.run(way, target, user="nobody", ROGUE_NAME=name, ROGUE_VALUE=value)
    assert done.returncode != 0
    assert done.stderr.startswith(f"{way}: error: {problem}")
    assert cluster.job_count() == before


def test_the_controller_accepts_valid_flags_of_any_client(cluster, rogue):
    (cluster.directory / "plugstack.conf").write_text(f"required {rogue}\n")
    done = cluster.run("srun", "true", user="nobody", ROGUE_NAME="ENERGY_POLICY", ROGUE_VALUE="dusk")
    assert (done.returncode, of_ours(done)) == (0, [])


@pytest.mark.parametrize("way", ["sbatch", "srun"])
def test_a_gpu_cap_of_a_job_without_gpus_is_a_warning(cluster, way):
    what = ["--wrap=true"] if way == "sbatch" else ["true"]
    advice = "the job asks for no GPU, so the flag has no effect: ask for GPUs, or leave it out"
    for options, told in (([], [f"{way}: --energy-gpu-cap: {advice}"]), (["--exclusive"], [])):
        done = cluster.run(way, "--energy-gpu-cap=250W", *options, *what, user="nobody")
        assert (done.returncode, of_ours(done)) == (0, told), done.stderr


def test_a_name_that_begins_with_spank_reaches_the_hooks_unchanged(cluster, rogue):
    """A variable that a plugin sets as SPANK_... reaches the prolog and epilog under the same name.

    Slurm puts the prefix SPANK_ before the names of other variables. Therefore the controller must check
    both names of an energy flag, with and without the prefix.
    """
    (cluster.directory / "plugstack.conf").write_text(f"required {rogue}\n")
    tell = cluster.script("echo $SLURM_JOB_ID", name="tell.sh")
    done = cluster.run("srun", tell, ROGUE_NAME="SPANK_ENERGY_CAP", ROGUE_VALUE="321")
    job_id = int(done.stdout)
    cluster.hook_environment("end", job_id)
    assert energy_flags(cluster, job_id) == {"CAP": "321"}
