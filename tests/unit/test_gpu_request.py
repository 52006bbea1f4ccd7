"""Tests of the GPU requests of pending jobs.

The tests check how a request is read, and which fields of the job must be set to change it. The fields
depend on the release of Slurm.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_answers import squeue_fields, squeue_text

from slurm_energy.errors import UsageError
from slurm_energy.slurm.queue.gpu_request import GpuRequest, read_gpu_request, same_nodes, scontrol_fields

OLD, NEW = (22, 5, 8), (24, 11, 5)
LETTERS = {"%A": "9", "%F": "9", "%K": "N/A", "%i": "9", "%T": "PENDING", "%n": "", "%x": "", "%f": "(null)"}
NAMES = {"JobID": "9", "ArrayJobID": "9", "ArrayTaskID": "N/A"}


class Squeue:
    """Test substitute for squeue that prints given records and stores the calls.

    Each record maps the name of a field to a text.
    """

    def __init__(self, *records):
        self.records, self.calls = records, []

    def __call__(self, argv):
        self.calls.append(argv)
        fields = squeue_fields(argv)
        rows = [LETTERS | NAMES | dict(record) for record in self.records]
        return squeue_text(argv, [[row.get(field, "N/A") for field in fields] for row in rows])


def job(tres="", **fields):
    """Return the request of a job with the given fields; `tres` is the TRES per node."""
    return read_gpu_request("9", Squeue({"tres-per-node": tres} | fields))


def test_what_a_job_asks_for_is_read_as_releases_write_it():
    assert job("gres:gpu:a100:4") == GpuRequest(True, "a100", 4)
    assert job("gres/gpu:a100:4,gres/nvme:1") == GpuRequest(True, "a100", 4, ("nvme:1",))
    assert job("gres:gpu:2", **{"%x": "n[1-3,7]"}) == GpuRequest(True, "", 2, (), "n[1-3,7]")
    assert job("gres:gpu") == GpuRequest(True, "", 1)
    assert job("") == job("N/A") == GpuRequest(True)
    assert not job(**{"%T": "RUNNING"}).pending


def test_one_record_is_read_of_all_that_squeue_shows():
    tasks = [
        {"%A": "9", "%K": "3-5", "JobID": "9", "ArrayTaskID": "3-5", "tres-per-node": "gres:gpu:1"},
        {"%A": "12", "%K": "1", "JobID": "12", "ArrayTaskID": "1", "tres-per-node": "gres:gpu:2"},
        {"%A": "13", "%K": "2", "JobID": "13", "ArrayTaskID": "2", "tres-per-node": "gres:gpu:3"},
    ]
    assert [read_gpu_request(name, Squeue(*tasks)).gpus for name in ("9", "9_1", "9_2")] == [1, 2, 3]
    assert not read_gpu_request("9_7", Squeue(*tasks)).pending
    squeue = Squeue()
    assert read_gpu_request("9_2", squeue) == GpuRequest(pending=False)
    assert [argv[-1] for argv in squeue.calls] == ["--jobs=9_2"]


@given(st.text(st.characters(exclude_characters="\0"), max_size=200))
def test_no_text_of_the_owner_is_asked_for(name):
    """The reader of a job's GPU request queries no field with text chosen by the job's owner.

    `scontrol show job`, for example, prints the name first; a name could forge other fields.
    """
    squeue = Squeue({"%j": name, "Name": name, "tres-per-node": "gres:gpu:2", "%n": "n2"})
    assert read_gpu_request("9", squeue) == GpuRequest(
        True, "", 2, pins_nodes=True, obstacle=read_gpu_request("9", squeue).obstacle
    )
    asked = {field for argv in squeue.calls for field in squeue_fields(argv)}
    assert asked.isdisjoint({"%j", "%k", "%o", "%Z", "Name", "Comment", "Command", "admin_comment", "WCKey"})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (job(**{"tres-per-job": "gres:gpu:2"}), "per job, socket or task"),
        (job("gres:gpu:1", **{"tres-per-task": "gres:gpu:1"}), "per job, socket or task"),
        (job("gres:gpu:1", **{"tres-per-task": "cpu=4,gres/gpu=1"}), "per job, socket or task"),
        (job("gres:gpu:a:1,gres:gpu:b:1"), "two types"),
        (job("gres:gpu:1", **{"%f": "fast"}), "features"),
        (job("gres:gpu:1", **{"%n": "n1"}), "names nodes"),
        (job("gres:gpu:1", **{"%v": "course"}), "a reservation"),
        (job("gres:gpu:1", **{"%x": "n1;reboot"}), "cannot be parsed"),
        (job(""), "requests none"),
        (job("gres:gpu:1", **{"%K": "1-3%2", "ArrayTaskID": "1-3%2"}), "all of its tasks"),
        (job("gres:gpu:1", **{"%i": "9+0"}), "the other components"),
    ],
)
def test_a_job_whose_gpus_cannot_be_changed_keeps_them(asked, why):
    for release in (OLD, NEW):
        with pytest.raises(UsageError, match=why):
            scontrol_fields(asked, "h100", 2, release, "", "")


@pytest.mark.parametrize("per_task", ["cpu:4", "cpu=4"])  # Slurm 23.11, Slurm 24.05 and later
def test_cpus_per_task_do_not_prevent_other_gpus(per_task):
    asked = job("gres/gpu:1", **{"tres-per-task": per_task})
    assert scontrol_fields(asked, "h100", 2, NEW, "", "") == {"Gres": "gpu:h100:2"}


def test_one_task_of_an_array_can_have_a_shape_of_its_own():
    asked = job("gres:gpu:1", **{"%K": "2"})
    assert scontrol_fields(asked, "h100", 2, NEW, "", "") == {"Gres": "gpu:h100:2"}


def test_from_23_02_on_another_kind_is_named():
    for asked in (job("gres/gpu:a100:4"), job("gres/gpu:4")):
        assert scontrol_fields(asked, "h100", 2, NEW, "n[1-4]", "") == {"Gres": "gpu:h100:2"}
    other = job("gres/gpu:1,gres/nvme:1", **{"%x": "n9"})
    assert scontrol_fields(other, "h100", 2, NEW, "n1", "n9") == {"Gres": "gpu:h100:2,nvme:1"}
    assert scontrol_fields(other, "h100", 2, NEW, "n1", "") == {
        "Gres": "gpu:h100:2,nvme:1",
        "ExcNodeList": "",
    }


def test_before_23_02_nodes_of_other_kinds_are_excluded():
    plain = job("gres:gpu:4", **{"%x": "n9"})
    fields = scontrol_fields(plain, "h100", 2, OLD, "n[1-4]", "n9")
    assert fields == {"Gres": "gpu:2", "ExcNodeList": "n9,n[1-4]"}
    assert scontrol_fields(plain, "h100", 2, OLD, "", "") == {"Gres": "gpu:2", "ExcNodeList": ""}


def test_node_lists_are_compared_by_their_nodes():
    assert same_nodes("n9,n[1-3]", "n[1-3,9]") and same_nodes("", "")
    assert not same_nodes("n1", "n[1-2]") and not same_nodes("", "n1") and not same_nodes("n[", "n]")
    asked = job("gres/gpu:a100:4", **{"%x": "n[1-3,9]"})
    assert scontrol_fields(asked, "a100", 4, NEW, "", "n9,n[1-3]") == {"Gres": "gpu:a100:4"}


def test_before_23_02_a_named_kind_stays():
    named = job("gres:gpu:a100:4")
    assert scontrol_fields(named, "a100", 2, OLD, "n[1-4]", "") == {"Gres": "gpu:a100:2"}
    with pytest.raises(UsageError, match="submit with --gres=gpu:COUNT without a type"):
        scontrol_fields(named, "h100", 2, OLD, "n[1-4]", "")


@given(st.text(max_size=200), st.sampled_from([OLD, NEW]))
def test_whatever_a_job_asks_for_it_gets_no_more_than_is_chosen(text, release):
    try:
        fields = scontrol_fields(job(text.replace("\0", "")), "h100", 2, release, "n1", "")
    except UsageError:
        return
    gpus = [item for item in fields["Gres"].split(",") if item.startswith("gpu")]
    assert gpus == (["gpu:h100:2"] if release >= (23, 2) else ["gpu:2"])
