"""Tests of the check of energy flags in slurmctld (senergy_submit.lua).

The check runs in each installed version of Lua, with a stand-in for slurmctld.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy import config as configuration
from slurm_energy.errors import UsageError
from slurm_energy.policies import validate_flags
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.policies.shapes import parse_shapes
from slurm_energy.policies.slack import parse_slack
from slurm_energy.policies.suggestion import nearest_name
from slurm_energy.quantities import parse_sampling_interval, parse_watts
from slurm_energy.slurm.queue.comment_flags import parse_comment_flags
from slurm_energy.slurm.script_fingerprint import fingerprint

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE_FOLDER = REPOSITORY / "prolog_epilog"
DRIVER = Path(__file__).parent / "native" / "submit_driver.lua"
POLICIES = """\
senergy-policies 1
policy monitor
policy edp
policy night users=alice,bob
cap_watts 100 10000
gpu_cap_watts 100.5 1000
slowdown_percent 1 25
cpu_freq_mhz 800 4000
gpu_clock_mhz 210 2000.5
power-profiles MAX_P,MAX_Q,HPC
"""
NAMES = ["POLICY", "CAP", "GPU_CAP", "MODEL", "TAG", "ALTERNATIVES"]
NAMES += ["SLOWDOWN", "TUNING", "CPU_FREQ", "GPU_CLOCK", "POWER_PROFILE"]
SHAPES = st.from_regex(r"((gpu|gp):[ah_.-]{0,3}[0-9]{0,2}:?[0-9]{0,6},?){0,9}", fullmatch=True)
NEAR_NAMES = st.from_regex(r"[EeDdPpmonitrMON]{1,8}", fullmatch=True)
WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)
INTERPRETERS = [path for path in map(shutil.which, ("lua5.4", "lua5.3", "lua5.1", "luajit")) if path]

pytestmark = pytest.mark.skipif(not INTERPRETERS, reason="no Lua interpreter is installed")


@pytest.fixture(params=INTERPRETERS, ids=lambda path: Path(path).name, scope="module")
def lua(request):
    return request.param


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    path = tmp_path_factory.mktemp("lua") / "policies"
    path.write_text(POLICIES)
    return path


def ask(lua, policy_file, *questions):
    """Let the Lua module check flags, and return the answers.

    Each question is a tuple (name of the flag, user, value). Each answer is a tuple (accepted, message to
    the user, log message).
    """
    text = "".join(f"{name}\0{user}\0{value}\0" for name, user, value in questions)
    done = subprocess.run(
        [lua, DRIVER, MODULE_FOLDER, policy_file],
        input=text.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    answers = [line.split("\t") for line in done.stdout.decode("ascii").splitlines()]
    assert len(answers) == len(questions)
    return [(verdict == "ok", message, log) for verdict, message, log in answers]


def test_good_values_pass(lua, policies):
    values = [
        ("POLICY", "edp"),
        ("CAP", "1.6kW"),
        ("CAP", "10000"),
        ("CAP", "0.0001MW"),
        ("SLOWDOWN", "2.5%"),
        ("TUNING", "advise"),
        ("CPU_FREQ", "2.4GHz"),
    ]
    values += [("MODEL", "bert:v1/x+y-z_0"), ("TAG", "a" * 64), ("OTHER", "15Wh")]
    values += [
        ("ALTERNATIVES", "gpu:a100:4,gpu:h100:0002"),
        ("ALTERNATIVES", ",".join(8 * [f"gpu:{'k' * 32}:9"])),
    ]
    answers = ask(lua, policies, *((f"ENERGY_{name}", "carl", value) for name, value in values))
    assert answers == [(True, "", "")] * len(values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "CAP",
            "15Wh",
            "--energy-cap: '15Wh' is not a power; write watts as 200, 200W or 1.6kW "
            "(allowed: 100 to 10000 W)",
        ),
        ("CAP", "99", "--energy-cap: '99' is out of bounds; allowed: 100 to 10000 W"),
        (
            "CAP",
            "999999999.999999MW",
            "--energy-cap: '999999999.999999MW' is out of bounds; allowed: 100 to 10000 W",
        ),
        ("GPU_CAP", "100.4999", "--energy-gpu-cap: '100.4999' is out of bounds; allowed: 100.5 to 1000 W"),
        (
            "SLOWDOWN",
            "5 %",
            "--energy-slowdown: '5 %' is not a percentage; write it as 5, 5% or 2.5% (allowed: 1 to 25 %)",
        ),
        ("SLOWDOWN", "0", "--energy-slowdown: '0' is out of bounds; allowed: 1 to 25 %"),
        ("SIGNALS", "6m", "--energy-signals: '6m' is not an interval; write off, or 1s to 5m as in 10s"),
        ("TUNING", "On", "--energy-tuning: 'On' is not a tuning mode; allowed: off, advise, on"),
        (
            "CPU_FREQ",
            "2.4ghz",
            "--energy-cpu-freq: '2.4ghz' is not a frequency; write MHz as 2400, 2400MHz or 2.4GHz "
            "(allowed: 800 to 4000 MHz)",
        ),
        ("GPU_CLOCK", "2001", "--energy-gpu-clock: '2001' is out of bounds; allowed: 210 to 2000.5 MHz"),
        (
            "POWER_PROFILE",
            "PROFILE_255",
            "--energy-power-profile: 'PROFILE_255' is not a power profile; allowed: MAX_P,MAX_Q,HPC",
        ),
        (
            "POLICY",
            "edpp",
            "--energy-policy: unknown policy 'edpp'; did you mean 'edp'? allowed: monitor, edp",
        ),
        ("POLICY", "night", "--energy-policy: 'night' is not open to user carl; allowed: monitor, edp"),
        (
            "TAG",
            "\x1b[31m\\" + "x" * 10_000,
            "--energy-tag: '\\x1b[31m\\x5cxxxxxxxxxxxxxxxxxxxxxxxxx...' is not a tag; "
            "allowed: 1 to 64 characters of A-Z a-z 0-9 _ . : / + -",
        ),
        (
            "ALTERNATIVES",
            "gpu:a100:4,gpu:4",
            "--energy-alternatives: 'gpu:a100:4,gpu:4' is not a list of shapes; "
            "write 1 to 8 as gpu:KIND:COUNT, as in gpu:a100:4,gpu:h100:2",
        ),
    ],
)
def test_bad_values_are_refused_with_the_words_of_the_plugin(lua, policies, name, value, message):
    for prefix in ("ENERGY_", "SPANK_ENERGY_"):
        assert ask(lua, policies, (prefix + name, "carl", value)) == [(False, message, "")]


def test_a_restricted_policy_is_open_to_its_users_only(lua, policies):
    users = ["alice", "bob", "al", "root", ""]
    answers = ask(lua, policies, *(("ENERGY_POLICY", user, "night") for user in users))
    assert [accepted for accepted, _, _ in answers] == [True, True, False, False, False]


def test_without_a_policy_file_only_the_form_is_checked(lua, tmp_path):
    questions = [("ENERGY_POLICY", "carl", "any"), ("ENERGY_CAP", "carl", "1"), ("ENERGY_CAP", "carl", "1x")]
    accepted = [ok for ok, _, log in ask(lua, tmp_path / "absent", *questions) if not log]
    assert accepted == [True, True, False]


def test_a_policy_file_that_cannot_be_used_is_logged_and_the_form_is_checked(lua, tmp_path):
    path = tmp_path / "policies"
    questions = [("ENERGY_CAP", "carl", "1"), ("ENERGY_CAP", "carl", "1x")]
    for text, reason in [
        ("", "cannot be read"),
        ("hello\n", "does not begin with the line 'senergy-policies 1'"),
        (POLICIES + "#" * 65536, "longer than 64 KiB"),
        (POLICIES + "\0", "does not begin with the line 'senergy-policies 1'"),
    ]:
        path.write_text(text)
        (good, _, log), (bad, _, _) = ask(lua, path, *questions)
        assert (good, bad) == (True, False)
        assert log == f"senergy_submit: {path}: {reason}: only the form of values is checked"


def test_lines_of_newer_writers_are_passed_over(lua, tmp_path):
    path = tmp_path / "policies"
    path.write_text(
        "senergy-policies 1\n\n  policy   edp  colour=green users=\nwatts_budget 3\ncap_watts 5\n"
        "cap_watts low high\npolicy Bad\npolicy\ncap_watts 5 6 7\ncap_watts 1e2 3\ngpu_cap_watts"
    )
    questions = [("ENERGY_POLICY", "carl", "edp"), ("ENERGY_CAP", "carl", "4"), ("ENERGY_POLICY", "", "bad")]
    assert ask(lua, path, *questions) == [
        (True, "", ""),
        (False, "--energy-cap: '4' is out of bounds; allowed: 5 to 6 W", ""),
        (False, "--energy-policy: unknown policy 'bad'; allowed: edp", ""),
    ]


def run_lua(lua, chunk, policy_file="/nonexistent/policies"):
    """Run Lua statements with the job_submit module loaded, and return the printed lines.

    In the statements, `check` is senergy.check. The table `slurm` is a stub that prints messages.
    """
    prelude = f"""
        package.path = "{MODULE_FOLDER}/?.lua"
        slurm = {{ SUCCESS = 0, ERROR = -1, log_user = function(...) print("user", string.format(...)) end,
                   log_error = function(...) print("log", string.format(...)) end }}
        local senergy = require("senergy_submit")
        senergy.policy_file = "{policy_file}"
        local check = senergy.check
    """
    command = {"input": prelude + chunk, "capture_output": True, "text": True}
    done = subprocess.run([lua, "-"], **command, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_jobs_without_energy_flags_say_nothing_without_a_policy_file(lua):
    chunk = """
        print(check({}, 1), check({ spank_job_env = {} }, 1), check({ spank_job_env = { [0] = "A=B" } }, 1))
    """
    assert run_lua(lua, chunk) == ["0\t0\t0"]


def test_every_entry_counts_also_repeated_ones(lua):
    chunk = """
        print(check({ user_id = 1, spank_job_env = { [0] = "ENERGY_CAP=200", "SPANK_ENERGY_CAP=200x" } }, 1))
        print(check({ user_id = 1, spank_job_env = { [0] = "ENERGY_TAG=ok", "ENERGY_TAG=no\\nno" } }, 1))
        print(check({ user_id = 1, spank_job_env = { "=", "ENERGY_CAP", "ENERGY_CAPX=1" } }, 1))
    """
    lines = run_lua(lua, chunk)
    assert lines[0].startswith("user\t--energy-cap: '200x'")
    assert lines[2].startswith(r"user	--energy-tag: 'no\x0ano'")
    assert lines[1::2] == ["-1", "-1"]
    assert lines[4] == "0"


def test_a_flag_may_not_have_two_values(lua):
    """A client that uses Slurm's library may give a flag twice.

    The node and the prediction of the job could use different values.
    """
    chunk = """
        print(check({ user_id = 1, spank_job_env = { [0] = "ENERGY_CAP=200", "SPANK_ENERGY_CAP=5000" } }, 1))
        print(check({ user_id = 1, spank_job_env = { [0] = "ENERGY_CAP=200", "SPANK_ENERGY_CAP=200" } }, 1))
    """
    refusal, *codes = run_lua(lua, chunk)
    assert re.fullmatch(r"user\t--energy-cap: given twice, as '(200|5000)' and '(200|5000)'", refusal)
    assert codes == ["-1", "0"]


def together(lua, *asked, policy_file="/nonexistent/policies"):
    """Submit several jobs to the Lua check, all in one Lua process.

    Return the message to the user for each job, or an empty text.

    Args:
        lua: the Lua program.
        *asked: for each job, the environment variables with its energy flags.
        policy_file: path of the policy file.
    """
    lines = []
    for raw in asked:
        entries = ", ".join(f'"{name}={value}"' for name, value in raw.items())
        lines.append(
            f"print(check({{ user_name = 'alice', gres = 'gpu:1', spank_job_env = {{ {entries} }} }}, 1))"
        )
    answers = "\n".join(run_lua(lua, "\n".join(lines), policy_file))
    told = re.split(r"^(?:0|-1)$\n?", answers, flags=re.M)
    return [line.removeprefix("user\t").rstrip("\n") for line in told[: len(asked)]]


SITE = """
[policies.lower]
base = "cap"
[policies.lowest]
base = "cap"
cap_watts = 500
[policies.quiet]
governor = "powersave"
[policies.monitor]
users = ["alice"]
"""
REDEFINED = '[policies.monitor]\nbase = "powersave"\n[policies.cap]\ngpu_cap_watts = 400\n'


@pytest.mark.parametrize("text", ["", SITE, REDEFINED], ids=["built in", "site", "redefined"])
def test_flags_go_together_as_they_do_on_the_node(lua, tmp_path, text):
    config = configuration.parse(text)
    path = tmp_path / "policies"
    path.write_text(policy_file_text(config))
    policies = ["monitor", "edp", "cap", *config.policies]
    flags = [{}, {"ENERGY_CAP": "300"}, {"SPANK_ENERGY_GPU_CAP": "200"}, {"ENERGY_POWER_PROFILE": "HPC"}]
    flags += [
        {"ENERGY_SLOWDOWN": "5%"},
        {"ENERGY_TUNING": "off"},
        {"ENERGY_TUNING": "on", "ENERGY_CAP": "300"},
    ]
    asked = [one | {"ENERGY_POLICY": policy} for policy in policies for one in flags] + flags[1:5]
    for raw, told in zip(asked, together(lua, *asked, policy_file=path), strict=True):
        try:
            validate_flags({k.removeprefix("SPANK_"): v for k, v in raw.items()}, config, "alice")
        except UsageError:
            assert told, raw
        else:
            assert not told, raw


@pytest.mark.parametrize(
    "lines", [None, "", "policy monitor users=alice measures-only x\npolicy cap needs-cap"]
)
def test_a_contradiction_is_told_in_the_words_of_the_plugin(lua, tmp_path, lines):
    path = tmp_path / "policies"
    if lines is not None:
        path.write_text(f"senergy-policies 1\n{lines}\n")
    monitor, cap = {"ENERGY_POLICY": "monitor"}, {"SPANK_ENERGY_POLICY": "cap"}
    watts, gpu_watts = {"ENERGY_CAP": "300"}, {"SPANK_ENERGY_GPU_CAP": "200"}
    asked = [watts | monitor, monitor | gpu_watts, cap, monitor, cap | gpu_watts]
    advice = "policy 'monitor' changes nothing; choose another policy or leave the flag out"
    assert together(lua, *asked, policy_file=path) == [
        f"--energy-cap: {advice}",
        f"--energy-gpu-cap: {advice}",
        "--energy-policy=cap needs --energy-cap, --energy-gpu-cap, --energy-cpu-freq, --energy-gpu-clock or "
        "--energy-power-profile",
        "",
        "",
    ]


def test_settings_of_gpus_pass(lua, policies):
    asked = [("GPU_CLOCK", "1200MHz"), ("POWER_PROFILE", "max-q"), ("POWER_PROFILE", "PROFILE_254")]
    raw = [{f"ENERGY_{name}": value} for name, value in asked]
    assert together(lua, *raw, policy_file=policies) == ["", "", ""]


def test_a_policy_file_of_before_these_words_leaves_the_judgement_to_senergyd(lua, tmp_path):
    path = tmp_path / "policies"
    path.write_text("senergy-policies 1\npolicy monitor\npolicy cap\n")
    asked = [{"ENERGY_POLICY": "monitor", "ENERGY_CAP": "300"}, {"ENERGY_POLICY": "cap"}]
    asked.append({"ENERGY_POLICY": "cap", "ENERGY_TUNING": "on"})
    assert together(lua, *asked, policy_file=path) == ["", "", ""]


def test_an_internal_error_is_logged_and_lets_the_job_through(lua):
    chunk = """
        local job = setmetatable({}, { __index = function() error("no such field") end })
        print(check(job, 7))
        print(check(nil, nil))
        print(check({ spank_job_env = 5 }, 7))
    """
    lines = run_lua(lua, chunk)
    assert lines[1::2] == ["0", "0", "0"]
    assert all(line.startswith("log\tsenergy_submit: internal error: ") for line in lines[::2])
    assert lines[0].endswith("job of uid 7 let through")


def test_without_the_module_of_licenses_flags_are_still_checked(lua):
    missing = 'package.preload["senergy_licenses"] = function() error("broken") end '
    chunk = (
        missing
        + f'''
        package.loaded["senergy_submit"], package.loaded["senergy_licenses"] = nil, nil
        senergy = dofile("{MODULE_FOLDER}/senergy_submit.lua")
        print(senergy.check({{ spank_job_env = {{ "ENERGY_CAP=x" }} }}, 1))
        print(senergy.modify({{}}, {{}}, 1))
    '''
    )
    lines = run_lua(lua, chunk)
    assert "power budgets set no licenses: senergy_licenses:" in lines[0]
    assert lines[-2:] == ["-1", "0"]


def test_the_example_job_submit_uses_the_module(lua):
    chunk = f"""
        package.preload["senergy_submit"] = function() return senergy end
        assert(dofile("{MODULE_FOLDER}/job_submit.lua") == slurm.SUCCESS)
        print(slurm_job_submit({{ user_id = 1, spank_job_env = {{ "ENERGY_CAP=x" }} }}, {{}}, 1))
        print(slurm_job_modify({{}}, {{}}, {{}}, 1))
    """
    lines = run_lua(lua, chunk)
    assert lines[1:] == ["-1", "0"]


def test_the_install_page_installs_the_example_and_shows_no_other():
    page = (MODULE_FOLDER.parent / "docs/install-by-hand.md").read_text()
    assert "/usr/local/lib/slurm-energy/job_submit.lua /etc/slurm/job_submit.lua" in page
    assert "```lua" not in page


@given(st.lists(st.tuples(st.sampled_from(NAMES), WORDS), min_size=1, max_size=20))
def test_any_text_passes_or_gets_one_printable_line(policies, values):
    questions = [(f"ENERGY_{name}", "carl", value) for name, value in values]
    for accepted, message, log in ask(INTERPRETERS[0], policies, *questions):
        assert log == ""
        assert accepted == (message == "")
        assert re.fullmatch(r"[ -~]{0,640}", message)


@given(st.lists(st.from_regex(r"[0-9]{0,10}\.?[0-9]{0,7}(W|kW|MW|Wh|%)?", fullmatch=True), max_size=30))
def test_numbers_mean_what_they_mean_in_the_rest_of_the_project(values):
    answers = ask(INTERPRETERS[0], "/nonexistent/policies", *(("ENERGY_CAP", "carl", v) for v in values))
    for value, (accepted, _, _) in zip(values, answers, strict=True):
        try:
            parse_watts(value)
        except UsageError:
            assert not accepted, value
        else:
            assert accepted, value


NO_SHAPES = [
    "",
    "gpu:a:1,",
    "gpu:a:1;gpu:b:1",
    "gpu:a:12345",
    ",".join(9 * ["gpu:a:1"]),
    f"gpu:{'k' * 33}:1",
    "gpu:-:1",
]


@given(st.lists(SHAPES, max_size=30))
@example(NO_SHAPES)
def test_shapes_mean_what_they_mean_in_the_rest_of_the_project(values):
    questions = [("ENERGY_ALTERNATIVES", "carl", value) for value in values]
    answers = ask(INTERPRETERS[0], "/nonexistent/policies", *questions)
    for value, (accepted, _, _) in zip(values, answers, strict=True):
        try:
            parse_shapes(value or "none")
        except UsageError:
            assert not accepted, value
        else:
            assert accepted, value


SLACKS = st.from_regex(r"[0-9]{0,3}([-:.][0-9]{0,10}){0,4}[smhdSw]?", fullmatch=True)


@given(st.lists(SLACKS, max_size=60))
@example(["1000000000s", "0.9s", "0", "1-", "-1", ":", "1:2:3:4", "1-2:3:4:5", "1-2-3", "11574-01:46:40"])
def test_slacks_mean_what_they_mean_in_the_rest_of_the_project(values):
    questions = [("ENERGY_SLACK", "carl", value) for value in values]
    answers = ask(INTERPRETERS[0], "/nonexistent/policies", *questions)
    for value, (accepted, _, _) in zip(values, answers, strict=True):
        try:
            parse_slack(value)
        except UsageError:
            assert not accepted, value
        else:
            assert accepted, value


INTERVALS = st.from_regex(r"(off|[0-9]{0,6}[smhOF.]?)[ s]?", fullmatch=True)


@given(st.lists(INTERVALS, max_size=60))
@example(["off", "1s", "300s", "301s", "5m", "6m", "0s", "0001s", "00001s", "10", ""])
def test_intervals_of_signals_mean_what_they_mean_in_the_rest_of_the_project(values):
    questions = [("ENERGY_SIGNALS", "carl", value) for value in values]
    answers = ask(INTERPRETERS[0], "/nonexistent/policies", *questions)
    for value, (accepted, _, _) in zip(values, answers, strict=True):
        try:
            parse_sampling_interval(value)
        except UsageError:
            assert not accepted, value
        else:
            assert accepted, value


def test_a_slack_beyond_the_maximum_of_the_site_is_refused(lua, tmp_path):
    (tmp_path / "policies").write_text(policy_file_text(configuration.parse(DEFERRAL)))
    questions = [("ENERGY_SLACK", "carl", value) for value in ("4h", "5h")]
    message = "--energy-slack: '5h' is out of bounds; allowed: 1 to 14400 s"
    assert ask(lua, tmp_path / "policies", *questions) == [(True, "", ""), (False, message, "")]
    (tmp_path / "policies").write_text(policy_file_text(configuration.parse(DEFERRAL + "suspend = true\n")))
    questions = [("ENERGY_CHECKPOINTABLE", "carl", value) for value in ("5m", "5h", "x")]
    message = message.replace("slack", "checkpointable")
    form = "--energy-checkpointable: 'x' is not a duration; write it as 30m, 4h or 1d, or as for --time: "
    answers = [(True, "", ""), (False, message, ""), (False, form + "4:00:00 or 1-12", "")]
    assert ask(lua, tmp_path / "policies", *questions) == answers


DEFERRAL = '[deferral]\npolicy = "cheapest"\nmax_slack_s = 14400\ninterval_s = 20\n'


def test_a_deferrable_job_is_planned_before_it_begins(lua, tmp_path):
    policies = tmp_path / "policies"
    policies.write_text(policy_file_text(configuration.parse(DEFERRAL)))
    slack, none = "SPANK_ENERGY_SLACK=4h", "ENERGY_TAG=x"
    jobs = [("begin_time = 0,", slack), ("begin_time = 2000,", slack), ("", "ENERGY_SLACK=10s")]
    assert begins(lua, policies, *jobs) == [31, 1000, 5]
    assert begins(lua, policies, ("", none), ("immediate = 1,", slack)) == [-1000] * 2
    policies.write_text(policy_file_text(configuration.parse("")))
    assert begins(lua, policies, ("", slack)) == [-1000]


def test_the_slack_is_noted_where_squeue_shows_it(lua, tmp_path):
    (tmp_path / "policies").write_text(policy_file_text(configuration.parse(DEFERRAL)))
    texts = noted(lua, tmp_path / "policies", ("nil", "ENERGY_SLACK=14400s"), ("nil", "ENERGY_SLACK=1-12:00"))
    assert parse_comment_flags(texts[0]) == {"ENERGY_SLACK": "14400s"}


def noted(lua, policy_file, *jobs):
    """Return the AdminComment of each job after the check in the script job_submit.lua.

    Each argument in `jobs` describes a job: its previous AdminComment, followed by the entries of its
    environment.
    """
    lines = []
    for before, *entries in jobs:
        listed = ", ".join(f'"{entry}"' for entry in entries)
        lines.append(f"job = {{ user_name = 'a', admin_comment = {before}, spank_job_env = {{ {listed} }} }}")
        lines.append("check(job, 1) print(job.admin_comment)")
    return [line for line in run_lua(lua, "\n".join(lines), policy_file) if not line.startswith("user")]


def test_flags_are_noted_where_squeue_shows_them(lua, tmp_path):
    config = configuration.parse('[priority]\nmode = "portable"\n')
    (tmp_path / "policies").write_text(policy_file_text(config))
    texts = noted(
        lua,
        tmp_path / "policies",
        ("nil", "ENERGY_POLICY=edp", "X=1", "ENERGY_ALTERNATIVES=gpu:a100:4,gpu:h100:2"),
        ("'site: x'", "SPANK_ENERGY_TAG=a/b"),
        ("nil", "X=1"),
        ("nil", "ENERGY_CAP=nonsense"),
    )
    assert texts == [
        "energy-flags: ENERGY_ALTERNATIVES=gpu:a100:4,gpu:h100:2 ENERGY_POLICY=edp",
        "site: x; energy-flags: ENERGY_TAG=a/b",
        "nil",
        "nil",
    ]
    assert [parse_comment_flags(text) for text in texts] == [
        {"ENERGY_POLICY": "edp", "ENERGY_ALTERNATIVES": "gpu:a100:4,gpu:h100:2"},
        {"ENERGY_TAG": "a/b"},
        {},
        {},
    ]


def test_flags_are_not_noted_where_the_engine_reads_them_itself(lua, tmp_path):
    config = configuration.parse('[priority]\nmode = "plugin"\n')
    (tmp_path / "policies").write_text(policy_file_text(config))
    assert noted(lua, tmp_path / "policies", ("nil", "ENERGY_POLICY=edp")) == ["nil"]


@pytest.mark.parametrize(
    ("keys", "noted_as"), [("", "nil"), ("shadow_flags = true\n", "energy-flags: ENERGY_POLICY=edp")]
)
def test_shadow_mode_changes_nothing_of_a_job_unless_the_site_says_so(lua, tmp_path, keys, noted_as):
    config = configuration.parse(f'[priority]\nmode = "shadow"\nshape_selection_delay_s = 20\n{keys}')
    (tmp_path / "policies").write_text(policy_file_text(config))
    assert noted(lua, tmp_path / "policies", ("nil", "ENERGY_POLICY=edp")) == [noted_as]
    assert begins(lua, tmp_path / "policies", ("", OFFER)) == [-1000]


def begins(lua, policy_file, *jobs):
    """Run the submission check for some jobs, and return the start delay of each job in seconds.

    A job is a pair: further fields of the job as Lua text, and an entry of its environment.
    """
    lines = ["os.time = function() return 1000 end"]
    for fields, entry in jobs:
        lines.append(f"job = {{ user_name = 'a', {fields} spank_job_env = {{ '{entry}' }} }}")
        lines.append("check(job, 1) print((job.begin_time or 0) - 1000)")
    return [int(line) for line in run_lua(lua, "\n".join(lines), policy_file)]


OFFER = "SPANK_ENERGY_ALTERNATIVES=gpu:a:1"


def test_a_job_that_offers_shapes_is_looked_at_before_it_begins(lua, tmp_path):
    policies = tmp_path / "policies"
    policies.write_text(policy_file_text(configuration.parse(SHAPE_DELAY)))
    jobs = [("begin_time = 0,", OFFER), ("begin_time = 1010,", OFFER), ("begin_time = 2000,", OFFER)]
    assert begins(lua, policies, *jobs) == [20, 20, 1000]
    others = [("", "ENERGY_POLICY=edp"), ("array_inx = '1-4',", OFFER), ("immediate = 1,", OFFER)]
    assert begins(lua, policies, *others) == [-1000] * 3


SHAPE_DELAY = '[priority]\nmode = "portable"\nshape_selection_delay_s = 19.5\n'


@pytest.mark.parametrize(
    "text", [SHAPE_DELAY.replace("portable", "shadow"), SHAPE_DELAY.replace("19.5", "0"), ""]
)
def test_a_job_begins_at_once_where_nobody_would_choose(lua, tmp_path, text):
    (tmp_path / "policies").write_text(policy_file_text(configuration.parse(text)))
    assert begins(lua, tmp_path / "policies", ("", OFFER)) == [-1000]


WITHOUT_GPU = (
    "user\t--energy-gpu-cap: the job asks for no GPU, so the flag has no effect: "
    "ask for GPUs, or leave it out"
)


@pytest.mark.parametrize(
    ("fields", "warned"),
    [
        ("", True),
        ("gres = 'license:1',", True),
        ("tres_per_node = 'gres/gpu:0',", True),
        ("tres_per_job = 'gres/fpga:2',", True),
        ("shared = 1,", True),
        ("shared = 0,", False),
        ("gres = 'gpu',", False),
        ("gres = 'gpu:2',", False),
        ("gres = 'gpu:a100',", False),
        ("tres_per_node = 'gres:gpu:a100:4',", False),
        ("tres_per_node = 'gres/gpu:a100=4',", False),
        ("tres_per_job = 'gres/fpga:1,gres/gpu:8',", False),
        ("tres_per_task = 'gres:gpu:1',", False),
        ("tres_per_socket = 'gres:gpu:1',", False),
        ("tres_per_node = 'gres/shard:8',", False),
    ],
)
def test_a_gpu_cap_of_a_job_without_gpus_is_told(lua, policies, fields, warned):
    job = f"{{ user_name = 'a', {fields} spank_job_env = {{ 'ENERGY_GPU_CAP=200' }} }}"
    said = run_lua(lua, f"print(check({job}, 1))", policies)
    assert said == ([WITHOUT_GPU] if warned else []) + ["0"]


def test_other_flags_need_no_gpus(lua, policies):
    for flags in ("'ENERGY_CAP=200'", "'ENERGY_GPU_CAP=200', 'ENERGY_ALTERNATIVES=gpu:a100:4'"):
        job = f"{{ user_name = 'a', spank_job_env = {{ {flags} }} }}"
        assert run_lua(lua, f"print(check({job}, 1))", policies) == ["0"]


@given(st.lists(st.one_of(NEAR_NAMES, WORDS), min_size=1, max_size=20))
@example(["EDP", "Edp", "edpp", "edp ", "mon", "MONITOR", "mnoitor", "night", "nigth", "e", "xyz", ""])
def test_the_same_policy_is_suggested_as_in_python(policies, values):
    answers = ask(INTERPRETERS[0], policies, *(("ENERGY_POLICY", "carl", value) for value in values))
    for value, (accepted, message, _) in zip(values, answers, strict=True):
        nearest = None if value == "night" else nearest_name(value, ["monitor", "edp"])
        said = re.search(r"; did you mean '(.*)'\? allowed: monitor, edp$", message)
        assert accepted or (said[1] if said else None) == nearest


def quoted(data):
    """Return bytes as a Lua string."""
    return '"' + "".join(f"\\{byte:03d}" for byte in data) + '"'


def fingerprints(lua, policy_file, *jobs):
    """Return the AdminComment that the job_submit module writes for each batch job.

    The AdminComment contains the fingerprint. `jobs` states the script and the arguments of each job.
    """
    lines = []
    for script, *arguments in jobs:
        argv = ", ".join(f"[{place}] = {quoted(text)}" for place, text in enumerate([b"job.sh", *arguments]))
        lines.append(
            f"job = {{ user_name = 'a', script = {quoted(script)}, argc = {len(arguments) + 1}, "
            f"argv = {{ {argv} }} }}"
        )
        lines.append("check(job, 1) print(job.admin_comment)")
    return run_lua(lua, "\n".join(lines), policy_file)


@pytest.fixture(scope="module")
def noting(tmp_path_factory):
    path = tmp_path_factory.mktemp("noting") / "policies"
    path.write_text(policy_file_text(configuration.parse('[priority]\nmode = "portable"\n')))
    return path


SCRIPTS = [
    (b"#!/bin/sh\n#SBATCH -t 5\nsleep 1\n",),
    (b"#!/bin/sh\n#SBATCH -t 9\nsleep 1\n",),
    (b"#!/bin/sh\nsleep $1", b"a b", b"", b"\xff\x80"),
    (b"\n\n #SBATCH kept\n#SBATCHx left out\n#SBATC",),
    (b"",),
]


def test_the_digest_of_a_batch_script_is_the_nodes(lua, noting):
    texts = fingerprints(lua, noting, *SCRIPTS)
    for (script, *arguments), text in zip(SCRIPTS, texts, strict=True):
        assert parse_comment_flags(text) == {"ENERGY_FINGERPRINT": fingerprint(script, arguments)}
    assert texts[0] == texts[1]


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200).map(lambda data: data.replace(b"\0", b"#SBATCH\n")), st.binary(max_size=9)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_digests_agree_for_any_script(noting, jobs):
    jobs = [(script, argument.replace(b"\0", b"")) for script, argument in jobs]
    texts = fingerprints(INTERPRETERS[0], noting, *jobs)
    expected = [f"energy-flags: ENERGY_FINGERPRINT={fingerprint(script, [one])}" for script, one in jobs]
    assert texts == expected


def test_long_scripts_and_sites_that_want_none_get_no_digest(lua, noting, tmp_path):
    assert fingerprints(lua, noting, (b"x" * 16385,)) == ["nil"]
    for priority in ('mode = "portable"\nfingerprints = false', 'mode = "shadow"', 'mode = "off"'):
        path = tmp_path / "policies"
        path.write_text(policy_file_text(configuration.parse(f"[priority]\n{priority}\n")))
        assert fingerprints(lua, path, (b"#!/bin/sh\n",)) == ["nil"]


def test_the_arguments_of_a_batch_script_are_read_once(lua, noting):
    chunk = """
        local function reads(script, argc, text)
            local count, fields = 0, { user_name = "a", script = script, argc = argc }
            local argv = setmetatable({}, { __index = function() return text end })
            local job = setmetatable({}, {
                __index = function(_, name)
                    count = count + (name == "argv" and 1 or 0)
                    return name == "argv" and argv or fields[name]
                end,
            })
            check(job, 1)
            return job.admin_comment ~= nil, count
        end
        print(reads("x", 1000, "ab"))
        print(reads("x", 20000, ""))
        print(reads("x", 16384, ""))
        print(reads("x", 10000, string.rep("y", 4096)))
        print(reads("x", 1, ""))
        print(reads(string.rep("x", 16385), 0, ""))
    """
    texts = ["true\t1", "false\t0", "true\t1", "false\t1", "true\t0", "false\t0"]
    assert run_lua(lua, chunk, noting) == texts
