"""Tests that change the GPUs of a pending job on a real Slurm.

The tests check the behaviour of Slurm that `slurm.queue.gpu_request` relies on. spank-release.sh runs
the tests in a bare root directory with another release of Slurm.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from small_cluster import SmallCluster, marks, wait_until

from slurm_energy.errors import UsageError
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.slurm.queue import gpu_request
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.node_resources import read_nodes
from slurm_energy.slurm.release import release

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = marks()

NOBODY = 65534
# A site's own rule, of the usual kind: administrators may do everything.
RULE = """\
function slurm_job_submit(job_desc, part_list, submit_uid)
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if modify_uid ~= 0 and string.match(job_desc.gres or job_desc.tres_per_node or "", "gpu:[%w:]*7$") then
        slurm.log_user("seven GPUs are too many")
        return slurm.ERROR
    end
    local file = io.open("{directory}/modified", "a")
    file:write(string.format("%d %d\\n", job_rec.job_id, modify_uid))
    file:close()
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="shapes-") as directory:
        plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
        gpus = {"n1": "a100:4", "n2": "h100:8"}
        rule = Path(directory) / "job_submit.lua"
        rule.write_text(RULE.replace("{directory}", directory))
        extra = "GresTypes=gpu\nJobSubmitPlugins=lua"
        with SmallCluster(Path(directory), plugin, hook, extra, gpus) as running:
            patch.setenv("SLURM_CONF", running.environment["SLURM_CONF"])
            yield running


@pytest.fixture
def submit(cluster):
    """Submit a held job; its script reports where it ran and on how many GPUs."""
    told = cluster.directory / "told"
    told.unlink(missing_ok=True)
    script = cluster.script(
        f'echo "$SLURMD_NODENAME $SLURM_GPUS_ON_NODE" >{told}.part', f"mv {told}.part {told}"
    )
    jobs = []

    def held(*options, user=None):
        quiet = ("--parsable", "--hold", "--output=/dev/null")
        done = cluster.run("sbatch", *quiet, *options, script, user=user)
        assert done.returncode == 0, done.stderr
        jobs.append(done.stdout.strip())
        return int(jobs[-1])

    def ran(job_id):
        assert cluster.run("scontrol", "release", str(job_id)).returncode == 0
        wait_until(told.exists, f"job {job_id}", cluster)
        return told.read_text().split()

    yield held, ran
    cluster.run("scancel", *jobs)


def give(job_id, kind, count, excluded="", uid=0):
    """Assign a GPU shape (type and number of GPUs) to a job, as senergyctld does."""
    assert change(job_id, kind, count, excluded, uid).done == (job_id,)


def change(job_id, kind, count, excluded="", uid=0):
    asked = gpu_request.read_gpu_request(str(job_id), CommandRunner())
    other = {"a100": "n2", "h100": "n1"}[kind]
    fields = gpu_request.scontrol_fields(asked, kind, count, release(), other, excluded)
    return JobUpdater(50.0).set_fields(job_id, fields, uid)


def test_nodes_report_gpu_types_and_free_gpus(cluster):
    found = {node.name: (node.usable, dict(node.gpus), dict(node.gpus_free)) for node in read_nodes()}
    assert found == {
        "n1": (True, {"a100": 4}, {"a100": 4}),
        "n2": (True, {"h100": 8}, {"h100": 8}),
        "n3": (True, {}, {}),
    }


def test_hooks_get_the_positions_of_gpus_in_gres_conf_not_the_numbers_of_their_files(cluster):
    """`GpuInfo.slurm_numbers` relies on these positions. The files are named gpu128, gpu129 and so on."""
    job_id = cluster.batch("-wn1", "--gres=gpu:a100:2", cluster.script("true", name="true.sh"))
    for operation in ("begin", "end"):
        assert cluster.hook_environment(operation, job_id)["SLURM_JOB_GPUS"] == "0,1"


def test_a_job_without_a_gpu_type_gets_any(submit):
    held, ran = submit
    job_id = held("--gres=gpu:4")
    for kind, count in (("h100", 5), ("a100", 3), ("h100", 2)):
        give(job_id, kind, count)
    assert ran(job_id) == ["n2", "2"]


def test_a_job_with_a_gpu_type_gets_another_where_slurm_can_change_it(submit):
    held, ran = submit
    job_id = held("--gpus-per-node=a100:4")
    if release() >= gpu_request.GPU_TYPE_CHANGE_RELEASE:
        give(job_id, "h100", 2)
        give(job_id, "a100", 3)
        give(job_id, "h100", 1)
        assert ran(job_id) == ["n2", "1"]
    else:
        with pytest.raises(UsageError, match="cannot turn gpu:a100"):
            give(job_id, "h100", 2)
        give(job_id, "a100", 2)
        assert ran(job_id) == ["n1", "2"]


def test_a_shape_is_set_as_the_owner_under_the_sites_rules(cluster, submit):
    held, _ = submit
    job_id = held("--gres=gpu:4", user=str(NOBODY))
    give(job_id, "h100", 2, uid=NOBODY)
    assert (cluster.directory / "modified").read_text().splitlines()[-1] == f"{job_id} {NOBODY}"
    outcome = change(job_id, "h100", 7, uid=NOBODY)
    assert list(outcome.refused) == [job_id] and not outcome.done
    assert gpu_request.read_gpu_request(str(job_id), CommandRunner()).gpus == 2


def test_no_user_can_change_a_job_of_another_user(cluster, submit):
    held, _ = submit
    job_id = held("--gres=gpu:4")
    outcome = change(job_id, "h100", 2, uid=NOBODY)
    assert "user id" in outcome.refused[job_id].lower()
    with pytest.raises(UsageError, match="the owner, uid 3999999999, is unknown"):
        change(job_id, "h100", 2, uid=3_999_999_999)


def test_nodes_that_the_owner_excluded_stay_excluded(cluster, submit):
    held, ran = submit
    job_id = held("--gres=gpu:1", "--exclude=n3")
    give(job_id, "h100", 2, "n3")
    assert "n3" in expand_hostlist(gpu_request.read_gpu_request(str(job_id), CommandRunner()).excluded)
    assert ran(job_id) == ["n2", "2"]


@pytest.mark.parametrize(
    "options", [["--gpus=2"], ["--gpus-per-task=1", "-n1"], ["--gres=gpu:1", "-wn1"], []]
)
def test_a_job_with_another_form_of_request_keeps_its_gpus(submit, options):
    held, _ = submit
    job_id = held(*options)
    with pytest.raises(UsageError, match="its GPUs stay"):
        give(job_id, "h100", 2)
