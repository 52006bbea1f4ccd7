"""Test the power licenses of jobs. One license stands for one watt of a power budget.

The tests cover the parsing of license lists, the power of jobs in the Lua and Python code, the correction of
licenses of pending and running jobs, and license reservations.
"""

import dataclasses
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy import config as configuration
from slurm_energy.budget.job_licenses import (
    feasible_watts,
    kept_caps,
    kept_watts,
    license_changes,
    requested_watts,
)
from slurm_energy.budget.power_table import (
    ANY_PARTITION,
    NodePowerRange,
    PartitionNode,
    partition_powers,
    table_lines,
)
from slurm_energy.controller.budgets.partition_hardware import PartitionHardware
from slurm_energy.errors import UnavailableError
from slurm_energy.oracle.history.similarity import USER_LEVEL
from slurm_energy.policies.flags import PolicyRequest, validate_flags
from slurm_energy.policies.policy_file import with_budget_lines
from slurm_energy.priority import prediction
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.protocol.policy_file_requests import MAX_BYTES
from slurm_energy.slurm.licenses import (
    MAX_COUNT,
    LicenseReservation,
    LicenseReservations,
    join_licenses,
    read_license_pools,
    split_licenses,
)
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, Floats, Ints, QueueColumns, queue_columns

MODULES = Path(__file__).resolve().parents[2] / "prolog_epilog"
INTERPRETERS = [name for name in ("lua5.4", "lua5.1") if shutil.which(name)]
A100 = NodePowerRange(160.0, 350.0, 32.0, 50.0, 40.0, 100.0)
H100 = NodePowerRange(160.0, 600.0, 32.0, 70.0, 40.0, 200.0)
NODES = [
    PartitionNode(frozenset({"cpu"}), 64, {}, NodePowerRange(320.0, 0.0, 64.0, package_min_watts=80.0)),
    PartitionNode(frozenset({"gpu", "whole"}), 32, {"a100": 4}, A100),
    PartitionNode(frozenset({"gpu"}), 32, {"h100": 8}, H100),
    PartitionNode(frozenset({"gpu"}), 32, {"h100": 8}, None),
    PartitionNode(frozenset({"unlimited"}), 64, {"mi": 1}, NodePowerRange(320.0, 500.0, 64.0, 50.0)),
    PartitionNode(frozenset({"mixed"}), 32, {"a100": 4}, dataclasses.replace(A100, package_min_watts=None)),
]
POWERS = partition_powers(NODES, exclusive=["whole"], default="cpu")
CAP_FLAGS = ("ENERGY_CAP", "ENERGY_GPU_CAP")
RULES = ["license watts 100000", "license-users 0 77", "license-scope watts_p account physics"]
RULES += ["license-scope watts_u user alice", "license-scope watts_q qos high"]


def lua_licenses(interpreter: str, statements: str, text: str | None = None) -> list[str]:
    """Run Lua statements and return the printed lines.

    In the statements, `M` is the module senergy_licenses, and `text` is the text of a policy file.
    """
    text = text or "\n".join([*RULES, *table_lines(POWERS)])
    code = f'package.path = "{MODULES}/?.lua" local M = require("senergy_licenses") local text = [[{text}]]\n'
    done = subprocess.run(
        [interpreter, "-"],
        input=code + statements,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=INTERPRETERS or [pytest.param("", marks=pytest.mark.skip(reason="no Lua"))])
def lua(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("text", "others", "counts"),
    [
        ("(null)", [], {}),
        ("", [], {}),
        ("watts:5", [], {"watts": 5}),
        ("watts", [], {"watts": 1}),
        ("matlab:1,watts:5;watts=2", ["matlab:1"], {"watts": 7}),
        ("watts:4294967297", [], {"watts": None}),
        ("watts:0", [], {"watts": None}),
        ("watts@server:9,xwatts:1,watts_p:3", ["watts@server:9", "xwatts:1", "watts_p:3"], {}),
        ("watts:1|matlab:1", ["matlab:1"], {"watts": 1}),
    ],
)
def test_lists_of_licenses(text: str, others: list[str], counts: dict[str, int | None]) -> None:
    assert split_licenses(text, ["watts"]) == (others, counts)


@given(
    st.dictionaries(st.sampled_from(["watts", "watts_p"]), st.integers(1, MAX_COUNT)),
    st.lists(st.from_regex(r"[a-z]{1,5}(@[a-z]{1,5})?(:[1-9][0-9]{0,5})?", fullmatch=True), max_size=4),
)
def test_a_joined_list_splits_into_its_parts(counts: dict[str, int], others: list[str]) -> None:
    assert split_licenses(join_licenses(others, counts), ["watts", "watts_p"]) == (others, counts)


def _power(name: str) -> str:
    power = POWERS[name]
    figures = (power.cpu_watts, power.node_watts, power.cpus, power.gpu_watts, power.gpus)
    return " ".join(f"{figure:g}" for figure in figures)


def test_the_power_table_has_the_largest_node_of_each_partition() -> None:
    assert {name: _power(name) for name in POWERS} == {
        ANY_PARTITION: "10 320 32 600 8",
        "cpu": "10 320 64 600 0",
        "gpu": "10 160 32 600 8",
        "whole": "10 160 32 350 4",
        "unlimited": "10 320 64 500 1",
        "mixed": "10 160 32 350 4",
    }
    assert POWERS["gpu"].gpu_kinds == {"a100": 350.0, "h100": 600.0}
    assert (POWERS["gpu"].idle_cpu_watts, POWERS["gpu"].idle_gpu_watts) == (1.0, 50.0)
    unknown = partition_powers([PartitionNode(frozenset({"p"}), 8)])
    assert unknown["p"].job_watts(1, 4, 0, exclusive=False) == 30.0


@pytest.mark.parametrize(
    ("flags", "watts"),
    [
        ("ExclusiveUser=NO OverSubscribe=NO", 20.0),
        ("ExclusiveUser=NO OverSubscribe=EXCLUSIVE", 320.0),
        ("ExclusiveUser=YES ExclusiveTopo=YES OverSubscribe=NO", 20.0),
        ("Exclusive=NO OverSubscribe=NO", 20.0),
        ("Exclusive=USER OverSubscribe=FORCE:2", 20.0),
        ("Exclusive=NODE OverSubscribe=NO", 320.0),
        ("Exclusive=TOPO OverSubscribe=NO", 320.0),
    ],
)
def test_jobs_of_partitions_that_allocate_whole_nodes_count_as_whole_nodes(flags: str, watts: float) -> None:
    def run(argv: Sequence[str]) -> str:
        if argv[-1] == "partition":
            return f"PartitionName=p AllowGroups=ALL Default=YES {flags} State=UP\n"
        return "NodeName=n1 CPUAlloc=0 CPUEfctv=32 CPUTot=32 State=IDLE Partitions=p\n"

    powers = PartitionHardware(run).powers({"n1": NodePowerRange(320.0)})
    assert powers["p"].job_watts(1, 1, 0, exclusive=False) == watts


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cpu", "gpu", "whole", "other", None, "cpu,gpu", "unlimited", "mixed"]),
            st.integers(1, 5),
            st.integers(1, 300),
            st.integers(0, 9),
            st.sampled_from(["", "a100", "h100", "v100"]),
            st.booleans(),
            st.tuples(*[st.sampled_from([10, 90, 150, 300, 1000, math.inf])] * 2),
        ),
        min_size=1,
        max_size=20,
    )
)
@examples(25)
def test_lua_and_python_agree_about_the_power_of_jobs(
    jobs: list[tuple[str | None, int, int, int, str, bool, tuple[float, float]]],
) -> None:
    lines, expected = [], []
    for partition, nodes, cpus, gpus, kind, exclusive, caps in jobs:
        fields = {"min_nodes": str(nodes), "min_cpus": str(cpus), "shared": "0" if exclusive else "65534"}
        fields["max_nodes"] = fields["num_tasks"] = "4294967294"
        if partition:
            fields["partition"] = f"'{partition}'"
        if gpus:
            fields["tres_per_job"] = f"'gres/gpu{':' + kind if kind else ''}:{gpus}'"
        given = [f"'{name}={cap}'" for name, cap in zip(CAP_FLAGS, caps, strict=True) if cap < math.inf]
        fields["cpus_per_task"], fields["spank_job_env"] = fields["min_cpus"], f"{{ {', '.join(given)} }}"
        joined = ", ".join(f"{name} = {value}" for name, value in fields.items())
        lines.append(f"print(M.watts({{ {joined} }}, M.parse(text)))")
        rows = [POWERS.get(one, POWERS[ANY_PARTITION]) for one in (partition or "cpu").split(",")]
        watts = []
        for power in rows:
            node_cap, gpu_cap = power.kept_caps(*caps, gpus=math.inf if exclusive else gpus)
            of_job = nodes, max(cpus, nodes), gpus, kind
            is_whole = exclusive or power.is_exclusive
            spread = math.ceil(gpus / max(power.gpus, 1)) if is_whole else gpus
            limit = node_cap * max(power.node_count(nodes, cpus), spread)
            watts.append(min(power.job_watts(*of_job, exclusive=exclusive, gpu_cap_watts=gpu_cap), limit))
        expected.append(str(math.ceil(max(watts))))
    if INTERPRETERS:
        assert lua_licenses(INTERPRETERS[0], "\n".join(lines)) == expected


@pytest.mark.parametrize(
    ("fields", "licenses"),
    [
        ("licenses = 'watts:1'", "watts:10"),
        ("licenses = 'watts:4294967297,matlab:2; watts=3'", "matlab:2,watts:10"),
        ("account = 'physics', licenses = 'watts_p:1'", "watts:10,watts_p:10"),
        ("default_account = 'physics'", "watts:10,watts_p:10"),
        ("account = 'chemistry', default_account = 'physics'", "watts:10"),
        ("account = 'Physics', qos = 'Normal,HIGH'", "watts:10,watts_p:10,watts_q:10"),
        ("num_tasks = 4, cpus_per_task = 8", "watts:320"),
        ("max_nodes = 2, min_nodes = 2, num_tasks = 200", "watts:640"),
        ("tres_per_node = 'gres:gpu:h100:2', min_nodes = 3, partition = 'gpu'", "watts:3630"),
        ("tres_per_task = 'cpu=1,gres/gpu=1', num_tasks = 4, partition = 'gpu'", "watts:2440"),
        ("tres_per_node = 'gres/shard:8', partition = 'gpu'", "watts:610"),
        ("cpus_per_task = 64, spank_job_env = { 'ENERGY_CAP=100W' }", "watts:100"),
        ("cpus_per_task = 64, spank_job_env = { 'ENERGY_CAP=1', 'SPANK_ENERGY_CAP=100W' }", "watts:100"),
        (
            "tres_per_job = 'gpu:2', partition = 'gpu', spank_job_env = { 'SPANK_ENERGY_GPU_CAP=0.2kW' }",
            "watts:410",
        ),
        ("cpus_per_task = 64, spank_job_env = { 'ENERGY_CAP=10' }", "watts:80"),
        ("min_cpus = 64, spank_job_env = { 'ENERGY_CAP=100' }", "watts:640"),
        ("min_cpus = 64, spank_job_env = { 'ENERGY_CAP=10' }, min_nodes = 2, max_nodes = 2", "watts:160"),
        ("num_tasks = 4, cpus_per_task = 16, spank_job_env = { 'ENERGY_CAP=100' }", "watts:400"),
        ("num_tasks = 64, shared = 0, spank_job_env = { 'ENERGY_CAP=100' }", "watts:100"),
        ("num_tasks = 64, shared = 0, bitflags = 2^40, spank_job_env = { 'ENERGY_CAP=100' }", "watts:100"),
        (
            "num_tasks = 64, shared = 0, bitflags = 2^40 + 256, spank_job_env = { 'ENERGY_CAP=100' }",
            "watts:320",
        ),
        (
            "tres_per_job = 'gpu:4', partition = 'whole', spank_job_env = { 'ENERGY_CAP=450' }",
            "watts:450",
        ),
        (
            "tres_per_job = 'gpu:8', partition = 'whole', spank_job_env = { 'ENERGY_CAP=450' }",
            "watts:900",
        ),
        (
            "tres_per_job = 'gpu:4', partition = 'gpu', spank_job_env = { 'ENERGY_CAP=450' }",
            "watts:2410",
        ),
        ("tres_per_job = 'gpu:1', partition = 'gpu', spank_job_env = { 'ENERGY_CAP=300' }", "watts:300"),
        (
            "tres_per_job = 'gpu:2', partition = 'gpu', spank_job_env = { 'SPANK_ENERGY_GPU_CAP=10' }",
            "watts:410",
        ),
        ("partition = 'whole', spank_job_env = { 'ENERGY_CAP=10' }", "watts:440"),
        ("cpus_per_task = 64, partition = 'unlimited', spank_job_env = { 'ENERGY_CAP=10' }", "watts:330"),
        (
            "max_nodes = 1, tres_per_job = 'gpu:4', partition = 'mixed', spank_job_env = {'ENERGY_CAP=900'}",
            "watts:1060",
        ),
        (
            "tres_per_job = 'gpu:1', partition = 'unlimited', spank_job_env = { 'ENERGY_GPU_CAP=10' }",
            "watts:510",
        ),
        ("het_job_offset = 1, licenses = 'watts:5'", ""),
        ("het_job_offset = 1", "nil"),
        ("num_tasks = 90000000", "watts:100000"),
        ("req_nodes = 'n[1-50]', shared = 0", "watts:16000"),
        ("req_nodes = 'n[01-03,7]-b[1-2],m,k9', shared = 0", "watts:3200"),
        ("req_nodes = 'n1,n2', shared = 0, min_nodes = 1", "watts:640"),
        ("req_nodes = 'n[1-', shared = 0", "watts:100000"),
        ("req_nodes = 'n[1-x]'", "watts:100000"),
        ("req_nodes = 'n[1-99999999999999999999]'", "watts:100000"),
        ("req_nodes = 'n[1-3]', min_nodes = 5, pn_min_cpus = 64, max_nodes = 5", "watts:1600"),
        (
            "num_tasks = 8, ntasks_per_node = 1, tres_per_node = 'gres:gpu:8', partition = 'gpu'",
            "watts:38480",
        ),
        ("tres_per_job = 'gres:gpu:1', cpus_per_tres = 'gres:gpu:64', partition = 'gpu'", "watts:1240"),
        ("num_tasks = 4, ntasks_per_tres = 2, partition = 'gpu'", "watts:1240"),
        ("tres_per_job = 'gpu:2', ntasks_per_tres = 8, cpus_per_task = 2, partition = 'gpu'", "watts:1520"),
        ("core_spec = 2", "watts:320"),
        ("thread_spec = 0", "watts:320"),
        ("core_spec = 65534, ntasks_per_tres = 65534, shared = 65534", "watts:10"),
    ],
)
def test_submitted_jobs_get_their_power(lua: str, fields: str, licenses: str) -> None:
    said = lua_licenses(lua, f"local job = {{ {fields} }} print(M.submit(job, text)) print(job.licenses)")
    assert said == ["nil", licenses]


def test_requests_that_would_evade_the_budget_are_removed_or_refused(lua: str) -> None:
    code = """
        local job = { tres_per_task = "cpu=2,license/watts:1,license/matlab:1", cpus_per_task = 2 }
        print(M.submit(job, text), job.tres_per_task, job.licenses)
        print(M.submit({ licenses = "matlab:1|abaqus:1" }, text))
        print(M.modify({ licenses = "matlab:1|watts:1" }, { licenses = "watts:5" }, 1000, text))
        print(M.submit({ licenses = "watts:1" }, "senergy-policies 1"))
    """
    refused = "a choice with '|' is not possible under a power budget; request one of them"
    assert lua_licenses(lua, code) == [
        "nil\tcpu=2,license/matlab:1\twatts:20",
        f"--licenses: {refused}",
        f"Licenses: {refused}",
        "nil",
    ]


# Fields of a job record that Slurm shows to Lua (slurm_lua_job_record_field) and that concern its licenses.
RECORD_FIELDS = (
    "account cpus_per_tres gres het_job_id het_job_offset job_state licenses max_cpus max_nodes min_cpus "
    "min_nodes partition pn_min_cpus qos spank_job_env tres_per_job tres_per_node tres_per_socket "
    "tres_per_task user_name"
)
PER_TASK = "tres_per_task = 'cpu=1,license/m:2,license:n=1'"
LONG_TEXTS = """
    local reads = 0
    local function submit(job)
        local proxy = setmetatable({}, {
            __index = function(_, name)
                reads = reads + (name == "spank_job_env" and 1 or 0)
                return job[name]
            end,
        })
        local started = os.clock()
        local problem = M.submit(proxy, text)
        return problem, (rawget(proxy, "licenses") or ""):sub(-9), os.clock() - started < 1
    end
"""


@pytest.mark.parametrize(
    ("fields", "licenses"),
    [
        ("licenses = ('a'):rep(3e5) .. '@'", "watts:10"),
        ("licenses = (' '):rep(3e5) .. '@'", "watts:10"),
        ("licenses = ('a,'):rep(3e5)", "watts:10"),
        ("licenses = ('watts:1,'):rep(3e5)", "watts:10"),
        ("spank_job_env = { 'ENERGY_CAP=' .. ('1'):rep(3e5) .. '!' }", "watts:10"),
        ("partition = ('p,'):rep(512), spank_job_env = { 'A=1' }", "watts:10"),
        ("partition = ('gpu,cpu,whole,'):rep(73)", "atts:1560"),
        ("req_nodes = ('['):rep(3e5) .. (']'):rep(3e5)", "ts:100000"),
        ("req_nodes = ('n[1],'):rep(3e5)", "ts:100000"),
    ],
)
def test_long_texts_take_little_time_in_slurmctld(lua: str, fields: str, licenses: str) -> None:
    code = (
        LONG_TEXTS + f"local problem, last, quick = submit({{ {fields} }}) print(problem, last, quick, reads)"
    )
    (said,) = lua_licenses(lua, code)
    problem, last, quick, reads = said.split("\t")
    assert (problem, quick, reads) == ("nil", "true", "1")
    assert last.endswith(licenses)


FIELDS = ["account", "qos", "partition", "gres"]
FIELDS += ["tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "cpus_per_tres"]


def test_texts_that_slurm_refuses_after_the_module_are_refused_first(lua: str) -> None:
    lines = []
    for name in FIELDS:
        for length in (1024, 1025):
            job = f"{{ {name} = ('x'):rep({length}) }}"
            lines.append(f"print((M.submit({job}, text)), (M.modify({job}, {{}}, 1000, text)))")
    lines.append("print(M.modify({ account = ('x'):rep(1025) }, {}, 77, text))")
    lines.append("print(M.submit({ account = ('x'):rep(1025) }, 'senergy-policies 1'))")
    expected = []
    for name in FIELDS:
        problem = f"{name}: 1025 characters; Slurm accepts at most 1024"
        expected += ["nil\tnil", f"{problem}\t{problem}"]
    assert lua_licenses(lua, "\n".join(lines)) == [*expected, "nil", "nil"]


@pytest.mark.parametrize(
    ("change", "record", "uid", "licenses"),
    [
        ("licenses = 'watts:1'", "licenses = 'watts:300,matlab:1'", 1000, "watts:300"),
        ("licenses = ''", "licenses = 'watts:300'", 1000, "watts:300"),
        ("licenses = ''", "licenses = 'watts:300', job_state = 1", 1000, "watts:300"),
        ("licenses = 'watts:1'", "licenses = 'watts:300'", 77, "watts:1"),
        ("time_limit = 5", "licenses = 'watts:300'", 1000, "nil"),
        ("num_tasks = 64", "licenses = 'matlab:1,watts:300'", 1000, "matlab:1,watts:640"),
        ("num_tasks = 1", "licenses = 'watts:900'", 1000, "watts:900"),
        ("min_nodes = 50, max_nodes = 50", "licenses = 'watts:320', min_cpus = 1", 1000, "watts:16000"),
        ("min_nodes = 3", "licenses = 'watts:400', min_nodes = 1", 1000, "watts:1200"),
        ("req_nodes = 'n[1-50]'", "licenses = 'watts:320'", 1000, "watts:16000"),
        ("num_tasks = 10", "licenses = 'watts:640', min_cpus = 64, pn_min_cpus = 64", 1000, "watts:6400"),
        ("cpus_per_task = 64", "licenses = 'watts:100', min_cpus = 10", 1000, "watts:6400"),
        ("partition = 'cpu'", "licenses = 'watts:64', min_cpus = 64, pn_min_cpus = 64", 1000, "watts:640"),
        ("cpus_per_tres = 'gpu:99'", "licenses = 'watts:1', tres_per_job = 'gpu:1'", 1000, "watts:1590"),
        ("ntasks_per_tres = 99", "licenses = 'watts:1', tres_per_job = 'gpu:1'", 1000, "watts:1590"),
        ("core_spec = 1", "licenses = 'watts:10'", 1000, "watts:320"),
        ("shared = 1, num_tasks = 2", "licenses = 'watts:10'", 1000, "watts:20"),
        ("qos = 'low'", "licenses = 'watts:10', min_cpus = 64", 1000, "watts:10"),
        ("qos = 'High'", "licenses = 'watts:10'", 1000, "watts:10,watts_q:10"),
        ("licenses = ''", "licenses = 'watts:10,watts_q:10', qos = 'low'", 1000, "watts:10,watts_q:10"),
        ("qos = 'low'", "licenses = 'watts:10,watts_q:10', qos = 'high'", 1000, "watts:10"),
        ("shared = 65534, num_tasks = 4294967294", "licenses = 'watts:10'", 1000, "nil"),
        ("min_nodes = 1", "licenses = 'watts:10', min_nodes = 2, job_state = 1", 1000, "nil"),
        ("req_nodes = 'n1'", "licenses = 'watts:120', min_nodes = 2, job_state = 1", 1000, "nil"),
        ("qos = 'high'", "licenses = 'watts:10,watts_p:10', job_state = 1", 1000, "nil"),
        ("req_nodes = 'n1 n2 n3'", "licenses = 'watts:320'", 1000, "watts:100000"),
        ("req_nodes = 'switch{s1}'", "licenses = 'watts:320'", 1000, "watts:100000"),
        (
            "num_tasks = 32",
            "licenses = 'watts:320', min_nodes = 1, max_nodes = 1, min_cpus = 64, pn_min_cpus = 64",
            1000,
            "watts:320",
        ),
        ("min_nodes = 1, max_nodes = 1", "licenses = 'watts:4000', min_nodes = 2", 1000, "watts:2000"),
        ("num_tasks = 8", f"licenses = 'm:4,watts:999,m:8', {PER_TASK}", 1000, "m:4,watts:999"),
        ("num_tasks = 8", f"licenses = 'a:1,m:8,watts:999', {PER_TASK}", 1000, "a:1,watts:999"),
        ("tres_per_task = 'cpu=1'", f"licenses = 'a:1,m:8,watts:999', {PER_TASK}", 1000, "a:1,watts:999"),
        ("num_tasks = 4", f"licenses = 'a:1,m:8,watts:999', {PER_TASK}", 1000, "a:1,m:8,watts:999"),
        ("partition = 'cpu'", f"licenses = 'a:1,m:8,watts:999', {PER_TASK}", 1000, "a:1,m:8,watts:999"),
        ("num_tasks = 8, licenses = 'm:1'", f"licenses = 'm:8,watts:999', {PER_TASK}", 1000, "m:1,watts:999"),
        ("partition = 'whole'", "licenses = 'watts:10', min_cpus = 1", 1000, "watts:1560"),
        ("account = 'physics'", "licenses = 'watts:10', account = 'x'", 1000, "watts:10,watts_p:10"),
        ("licenses = 'matlab:1'", "licenses = '', job_state = 1", 1000, "matlab:1"),
        ("licenses = 'matlab:1'", "licenses = '', min_cpus = 2", 1000, "matlab:1,watts:320"),
        ("licenses = 'watts:3'", "het_job_id = 5, het_job_offset = 1", 1000, ""),
        ("licenses = ''", "licenses = 'watts:9,watts_u:9'", 1000, "watts:9,watts_u:9"),
        ("licenses = ''", "licenses = 'watts:9'", 1000, "watts:9"),
        ("licenses = ''", "licenses = 'watts:9', user_name = 'alice'", 1000, "watts:9,watts_u:9"),
        ("licenses = ''", "licenses = 'watts:9,watts_u:9', user_name = 'bob'", 1000, "watts:9"),
    ],
)
def test_changes_by_users_keep_our_licenses(
    lua: str, change: str, record: str, uid: int, licenses: str
) -> None:
    code = f"""
        local job, record = {{ {change} }}, {{ {record} }}
        for name in pairs(record) do
            assert((" {RECORD_FIELDS} "):find(" " .. name .. " ", 1, true), name)
        end
        print(M.modify(job, record, {uid}, text)) print(job.licenses)
    """
    assert lua_licenses(lua, code) == ["nil", licenses]


def _queue(*licenses: str, **columns: Sequence[object]) -> QueueColumns:
    count = len(licenses)
    return queue_columns(0.0, range(1, count + 1), licenses=list(licenses), **columns)


def _changes(
    queue: QueueColumns, watts: Sequence[int], targets: dict[int, int] | None = None, retained: int = 0
) -> dict[str, str]:
    changes = license_changes(
        *(
            queue,
            np.array(watts),
            np.where(queue.state == PENDING, retained, 0),
            lambda row: ["watts"],
            ["watts", "watts_p"],
        ),
        *({} if targets is None else targets, 100_000),
    )
    return {change.name: change.licenses for change in changes}


def test_pending_jobs_get_the_predicted_power() -> None:
    queue = _queue("watts:300", "watts:102", "matlab:1", "watts:4294967297", "watts:100,watts_p:100")
    assert _changes(queue, [100] * 5) == {
        "1": "watts:100",
        "3": "matlab:1,watts:100",
        "4": "watts:100",
        "5": "watts:100",
    }
    kept = kept_watts(queue, np.full(5, 100), [False, True, False, False, False], "watts", 250)
    assert kept.tolist() == [250, 100, 100, 100, 100]


def test_running_jobs_get_back_what_they_held() -> None:
    targets: dict[int, int] = {}
    state = [PENDING, PENDING, RUNNING, RUNNING]
    queue = _queue("watts:400", "watts:1", "", "watts:90", state=state)
    assert _changes(queue, [400, 50, 70, 80], targets) == {"2": "watts:50", "3": "watts:70"}
    later = _queue("", "watts:1", "watts:70", "watts:500", state=[RUNNING] * 4)
    assert _changes(later, [900, 900, 900, 900], targets) == {"1": "watts:400", "2": "watts:50"}


def test_a_pending_job_also_requests_the_power_that_running_jobs_keep_from_it() -> None:
    targets: dict[int, int] = {}
    queue = _queue("watts:100", "watts:100", state=[PENDING, RUNNING])
    assert _changes(queue, [100, 100], targets, retained=900) == {"1": "watts:1000"}
    assert targets == {1: 100, 2: 100}
    later = _queue("watts:1000", "watts:100", state=[RUNNING, RUNNING])
    assert _changes(later, [100, 100], targets, retained=900) == {}


def test_tasks_of_an_array_start_with_the_power_of_the_array() -> None:
    targets: dict[int, int] = {}
    columns = {"array_job_id": [1], "array_task_id": [-1], "tasks": [7], "array_tasks": ["3-9"]}
    assert _changes(_queue("watts:9", **columns), [50], targets) == {"1_[3-9]": "watts:50"}
    started = _queue(
        "watts:50",
        "",
        state=[PENDING, RUNNING],
        array_job_id=[1, 1],
        array_task_id=[-1, 3],
        array_tasks=["4-9", "3"],
    )
    assert _changes(started, [50, 400], targets) == {"1_3": "watts:50"}


def test_the_first_component_holds_the_licenses_of_all() -> None:
    queue = _queue("watts:10", "watts:20", "", het_job_id=[1, 1, 1])
    assert _changes(queue, [10, 20, 30]) == {"1+0": "watts:60", "2": ""}


def test_predictions_replace_the_table_but_never_exceed_the_power_of_whole_nodes() -> None:
    queue = _queue("", "", "", nodes=[1, 1, 2], cpus=[64, 64, 4], gpus=[0, 0, 2], gpu_kind=["", "", "a100"])
    caps = np.array([np.inf, np.inf, 150.0]), np.full(3, np.inf)
    watts = requested_watts(queue, POWERS, np.array([200.0, 9e9, np.nan]), *caps)
    assert watts.tolist() == [136, 10240, 300]


@pytest.mark.parametrize(
    ("partition", "cpus", "gpus", "flag", "predicted", "watts"),
    [
        ("gpu", 32, 1, "ENERGY_GPU_CAP=300", 400.0, 318),
        ("gpu", 32, 1, "ENERGY_GPU_CAP=300", np.nan, 620),
        ("gpu", 32, 1, "ENERGY_GPU_CAP=100", np.nan, 520),
        ("unlimited", 64, 1, "ENERGY_GPU_CAP=100", np.nan, 1140),
        ("cpu", 64, 0, "ENERGY_CAP=100", 1000.0, 36),
        ("cpu", 64, 0, "ENERGY_CAP=100", np.nan, 100),
        ("whole", 1, 0, "ENERGY_CAP=100", np.nan, 440),
        ("unlimited", 64, 0, "ENERGY_CAP=100", 300.0, 236),
        ("unlimited", 64, 0, "ENERGY_CAP=100", np.nan, 420),
        ("cpu,unlimited", 64, 0, "ENERGY_CAP=100", np.nan, 420),
        ("gpu", 1, 1, "ENERGY_CAP=300", np.nan, 300),
        ("mixed", 32, 4, "ENERGY_CAP=900", np.nan, 1060),
    ],
)
def test_caps_count_as_far_as_the_devices_keep_them(
    partition: str, cpus: int, gpus: int, flag: str, predicted: float, watts: int
) -> None:
    name, value = flag.split("=")
    queue = _queue("", cpus=[cpus], gpus=[gpus], flags=[{name: value}], partition=[partition])
    predictor = QueuePredictor(configuration.parse('[cluster]\nname = "c1"'))
    caps = kept_caps(queue, POWERS, *predictor.requested_limits(queue)[:2])
    asked: list[object] = []

    def quantiles(columns: Mapping[str, Sequence[object]]) -> tuple[Floats, Ints]:
        asked.extend([*columns["cap_watts"], *columns["gpu_cap_watts"]])
        return np.array([predicted]), np.array([USER_LEVEL])

    quantile = predictor.predict_power_quantile(queue, quantiles, *caps)
    assert requested_watts(queue, POWERS, quantile, *caps).tolist() == [watts]
    assert [math.inf if cap is None else cap for cap in asked] == [float(cap[0]) for cap in caps]


def test_the_flags_of_a_job_are_checked_once_for_all_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []

    def check(flags: Mapping[str, str], *others: object) -> PolicyRequest:
        checked.append(flags)
        return validate_flags(flags, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(prediction, "validate_flags", check)
    flags = [{}, {"ENERGY_CAP": "300", "ENERGY_GPU_CAP": "200"}, {"ENERGY_SLOWDOWN": "5%"}]
    predictor = QueuePredictor(configuration.parse('[cluster]\nname = "c1"'))
    node_caps, gpu_caps, slowdown_limits = predictor.requested_limits(_queue("", "", "", flags=flags))
    assert node_caps.tolist() == [math.inf, 300.0, math.inf]
    assert gpu_caps.tolist() == [math.inf, 200.0, math.inf]
    assert np.array_equal(slowdown_limits, [math.nan, math.nan, 0.05], equal_nan=True)
    assert checked == flags
    assert [len(one) for one in predictor.requested_limits(_queue())] == [0, 0, 0]


def test_the_table_changes_neither_by_fractions_of_a_watt_nor_with_nodes_that_are_powered_down() -> None:
    node = "NodeName=n1 CPUTot=64 State=IDLE Partitions=p"
    hardware = PartitionHardware(lambda argv: node if argv[-1] == "node" else "PartitionName=p Default=YES")
    watts = NodePowerRange(316.2, 0.0, 64.0, package_min_watts=77.3)
    lines = table_lines(hardware.powers({"n1": watts}))
    assert (
        "license-power p cpu=10.000 node=320.000 cpus=64 gpu=700.000 gpus=0 nodemin=80.000 default" in lines
    )
    assert table_lines(hardware.powers({"n1": dataclasses.replace(watts, package_min_watts=78.9)})) == lines
    assert table_lines(hardware.powers({})) == lines


@pytest.mark.parametrize(
    ("partitions", "scopes", "rows", "kinds"), [(400, 0, 402, 403), (550, 0, 552, 344), (900, 1700, 13, 0)]
)
def test_a_policy_file_that_is_too_long_keeps_upper_bounds_of_licenses(
    lua: str, partitions: int, scopes: int, rows: int, kinds: int
) -> None:
    names = [f"p{number}" for number in range(partitions)]
    nodes = [PartitionNode(frozenset({name}), 32, {"a100": 4}, A100) for name in names]
    nodes.append(PartitionNode(frozenset({"large"}), 16, {"h100": 8}, H100))
    lines = [f"license-scope watts_{number} account a{number}" for number in range(scopes)]
    lines = [*RULES[:2], *lines, *table_lines(partition_powers(nodes, names[:10], "p20"))]
    text, left_out = with_budget_lines("senergy-policies 1\n", lines)
    assert len(text) <= MAX_BYTES
    assert len(text.splitlines()) + left_out == len(lines) + 1
    counts = [text.count(f"\nlicense-{word} ") for word in ("scope", "power", "gpu")]
    assert counts == [scopes, rows, kinds]
    request = "num_tasks = 2, tres_per_job = 'gpu:a100:1', spank_job_env = { 'ENERGY_CAP=200' }"
    jobs = [f"{{ partition = '{name}', {request} }}" for name in (names[0], names[-1], "large")]
    code = "\n".join(f"print(M.watts({job}, M.parse(text)))" for job in jobs)
    short, full = (
        [int(watts) for watts in lua_licenses(lua, code, file)] for file in (text, "\n".join(lines))
    )
    assert short[0] == full[0] == 440
    assert all(one >= other for one, other in zip(short, full, strict=True))


def test_without_its_lines_about_budgets_a_policy_file_still_has_its_policies() -> None:
    text = "senergy-policies 1\n" + "x" * (MAX_BYTES - 30) + "\n"
    assert with_budget_lines(text, RULES) == (text, len(RULES))


def test_a_job_larger_than_the_budget_starts_with_less_unless_its_slowdown_is_limited() -> None:
    assert feasible_watts(1000, 800.0, slowdown=False) == 760
    assert feasible_watts(1000, 800.0, slowdown=True) == 1000
    assert feasible_watts(1000, 300.0, slowdown=False) == 1000
    assert feasible_watts(1000, 2000.0, slowdown=False) == 1000


class Scontrol:
    """Stand-in for scontrol that stores the commands."""

    def __init__(self, listing: str = "") -> None:
        self.listing, self.commands, self.fails = listing, list[str](), False

    def __call__(self, argv: Sequence[str]) -> str:
        words = " ".join(argv)
        if "show" in words:
            return self.listing
        self.commands.append(words)
        if self.fails:
            raise UnavailableError("scontrol", "Invalid license specification")
        return ""


def test_reservations_are_lowered_before_others_are_raised() -> None:
    scontrol = Scontrol(
        "ReservationName=own_a StartTime=100 EndTime=31536100 Licenses=watts:500 State=ACTIVE\n"
        "ReservationName=maint StartTime=100 EndTime=200 Licenses=matlab:1\n"
        "ReservationName=own_gone StartTime=100 EndTime=5000 Licenses=watts:1\n"
    )
    reservations = LicenseReservations("own_", scontrol)
    wanted = {
        "own_b": LicenseReservation(2000, 3000, "watts", 300),
        "own_a": LicenseReservation(1000, None, "watts", 0),
    }
    assert reservations.apply(wanted, 1000.0) == 3
    assert scontrol.commands == [
        "scontrol delete ReservationName=own_gone",
        "scontrol update ReservationName=own_a Licenses=watts:1",
        "scontrol create reservation ReservationName=own_b StartTime=uts2000 EndTime=uts3000 "
        "Licenses=watts:300 Users=root Flags=ANY_NODES",
    ]
    assert reservations.apply(wanted, 1005.0) == 0
    scontrol.fails = True
    with pytest.raises(UnavailableError, match="reservation of licenses, scontrol delete"):
        reservations.apply({}, 1010.0)


def test_the_start_of_a_reservation_follows_the_plan() -> None:
    """A live limit divides the present period of the plan. Its early end restores the undivided period.

    Slurm does not change the start of a reservation that has begun.
    """
    scontrol = Scontrol()
    reservations = LicenseReservations("own_", scontrol)
    last = LicenseReservation(2000, None, "watts", 100)
    plan = {"own_2000": LicenseReservation(1000, 2000, "watts", 300), "own_last": last}
    reservations.apply(plan, 1000.0)
    scontrol.commands.clear()
    live = {
        "own_1500": LicenseReservation(1100, 1500, "watts", 500),
        "own_2000": LicenseReservation(1500, 2000, "watts", 300),
        "own_last": last,
    }
    assert reservations.apply(live, 1100.0) == 3
    own = "Users=root Flags=ANY_NODES"
    assert scontrol.commands == [
        "scontrol delete ReservationName=own_2000",
        f"scontrol create reservation ReservationName=own_2000 StartTime=uts1500 EndTime=uts2000 "
        f"Licenses=watts:300 {own}",
        f"scontrol create reservation ReservationName=own_1500 StartTime=now EndTime=uts1500 "
        f"Licenses=watts:500 {own}",
    ]
    scontrol.commands.clear()
    assert reservations.apply(plan, 1200.0) == 2
    assert scontrol.commands == [
        "scontrol delete ReservationName=own_1500",
        "scontrol update ReservationName=own_2000 StartTime=now EndTime=uts2000",
    ]
    assert reservations.apply(plan, 1300.0) == 0


def test_totals_of_licenses() -> None:
    listing = (
        "LicenseName=watts Total=900 Used=40 Free=860 Reserved=0 Remote=no\n"
        "LicenseName=w@s Total=1 Used=0 Free=1 Reserved=0 Remote=yes\n"
    )
    pools = read_license_pools(Scontrol(listing))
    assert [(name, pool.total, pool.used) for name, pool in pools.items()] == [("watts", 900, 40)]
