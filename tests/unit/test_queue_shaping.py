"""How a pending job gets other GPUs: what scontrol says of it, and the fields that are changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.slurm.hostlist import folded, position
from slurm_energy.slurm.queue.shaping import Asked, ask, changes, parse

OLD, NEW = (22, 5, 8), (24, 11, 5)
TEXT = """\
JobId=9 {group}JobName=train
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901754 Nice=0 Account=root QOS=normal
   JobState=PENDING Reason=Resources Dependency=(null)
   ReqNodeList=(null) ExcNodeList={excluded}
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   Features={features} DelayBoot=00:00:00
   Command=(null)
   {tres}
"""


def job(tres, excluded="(null)", features="(null)", group=""):
    return parse(TEXT.format(tres=tres, excluded=excluded, features=features, group=group))


def test_what_a_job_asks_for_is_read_as_releases_write_it():
    assert job("TresPerNode=gres:gpu:a100:4") == Asked(True, "a100", 4)
    assert job("TresPerNode=gres/gpu:a100:4,gres/nvme:1") == Asked(True, "a100", 4, ("nvme:1",))
    assert job("TresPerNode=gres:gpu:2", "n[1-3,7]") == Asked(True, "", 2, (), "n[1-3,7]")
    assert job("TresPerNode=gres:gpu") == Asked(True, "", 1)
    assert job("") == Asked(True)
    asked = []
    text = TEXT.format(tres="", excluded="x", features="x", group="").replace("PENDING", "RUNNING")
    assert not ask("9", lambda argv: asked.append(argv) or text).pending
    assert asked == [["scontrol", "show", "job", "9"]]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (job("TresPerJob=gres:gpu:2"), "by job, socket or task"),
        (job("TresPerNode=gres:gpu:1 TresPerTask=gres:gpu:1"), "by job, socket or task"),
        (job("TresPerNode=gres:gpu:a:1,gres:gpu:b:1"), "two kinds"),
        (job("TresPerNode=gres:gpu:1", features="fast"), "features"),
        (job("TresPerNode=gres:gpu:1\n   Reservation=course"), "a reservation"),
        (job("TresPerNode=gres:gpu:1", excluded="n1;reboot"), "cannot be read"),
        (job(""), "asks for none"),
        (job("TresPerNode=gres:gpu:1", group="ArrayJobId=9 ArrayTaskId=1-3%2 "), "all of its tasks"),
        (job("TresPerNode=gres:gpu:1", group="HetJobId=9 HetJobOffset=0 "), "the other parts"),
    ],
)
def test_a_job_whose_gpus_cannot_be_changed_keeps_them(asked, why):
    for release in (OLD, NEW):
        with pytest.raises(UsageError, match=why):
            changes(asked, "h100", 2, release, "", "")


def test_one_task_of_an_array_can_have_a_shape_of_its_own():
    asked = job("TresPerNode=gres:gpu:1", group="ArrayJobId=7 ArrayTaskId=2 ")
    assert changes(asked, "h100", 2, NEW, "", "") == {"Gres": "gpu:h100:2"}


def test_from_23_02_on_another_kind_is_named():
    for asked in (job("TresPerNode=gres/gpu:a100:4"), job("TresPerNode=gres/gpu:4")):
        assert changes(asked, "h100", 2, NEW, "n[1-4]", "") == {"Gres": "gpu:h100:2"}
    other = job("TresPerNode=gres/gpu:1,gres/nvme:1", "n9")
    assert changes(other, "h100", 2, NEW, "n1", "n9") == {"Gres": "gpu:h100:2,nvme:1"}
    assert changes(other, "h100", 2, NEW, "n1", "") == {"Gres": "gpu:h100:2,nvme:1", "ExcNodeList": ""}


def test_before_23_02_nodes_of_other_kinds_are_excluded():
    plain = job("TresPerNode=gres:gpu:4", "n9")
    fields = changes(plain, "h100", 2, OLD, "n[1-4]", "n9")
    assert fields == {"Gres": "gpu:2", "ExcNodeList": "n9,n[1-4]"}
    assert changes(plain, "h100", 2, OLD, "", "") == {"Gres": "gpu:2", "ExcNodeList": ""}


def test_before_23_02_a_named_kind_stays():
    named = job("TresPerNode=gres:gpu:a100:4")
    assert changes(named, "a100", 2, OLD, "n[1-4]", "") == {"Gres": "gpu:a100:2"}
    with pytest.raises(UsageError, match="submit with --gres=gpu:COUNT without a kind"):
        changes(named, "h100", 2, OLD, "n[1-4]", "")


@given(st.text(max_size=200), st.sampled_from([OLD, NEW]))
def test_whatever_a_job_is_called_it_gets_no_more_than_is_chosen(name, release):
    text = (
        TEXT.replace("train", name.replace("\0", "")).format(
            tres="TresPerNode=gres:gpu:4", excluded="(null)", features="(null)", group=""
        )
        if "{" not in name and "}" not in name
        else ""
    )
    try:
        fields = changes(parse(text), "h100", 2, release, "n1", "")
    except UsageError:
        return
    gpus = [item for item in fields["Gres"].split(",") if item.startswith("gpu")]
    assert gpus == (["gpu:h100:2"] if release >= (23, 2) else ["gpu:2"])


@given(
    st.sets(
        st.from_regex(r"[a-c]{0,2}[0-9]{1,3}", fullmatch=True) | st.just("login-1"), min_size=1, max_size=30
    )
)
def test_a_folded_list_has_exactly_these_nodes(names):
    text = folded(names)
    assert all(position(name, text) is not None for name in names)
    assert position("zz9", text) is None
