"""Test the C code that checks the energy flags of jobs (spank/flags.c).

The code runs under the address and undefined behaviour sanitizers.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_energy import config as configuration
from slurm_energy.devices.gpu.power_profiles import POWER_PROFILES, canonical_name
from slurm_energy.errors import UsageError
from slurm_energy.policies import validate_flags
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.policies.shapes import parse_shapes
from slurm_energy.policies.slack import parse_slack
from slurm_energy.policies.suggestion import nearest_name
from slurm_energy.quantities import parse_megahertz, parse_percent, parse_sampling_interval, parse_watts

REPOSITORY = Path(__file__).resolve().parents[2]
SPANK = REPOSITORY / "spank"
DRIVER = Path(__file__).parent / "native" / "flags_driver.c"
FLAGS = ["energy-policy", "energy-cap", "energy-gpu-cap", "energy-slowdown", "energy-tuning"]
FLAGS += ["energy-cpu-freq", "energy-gpu-clock", "energy-power-profile"]
FLAGS += ["energy-model", "energy-tag", "energy-alternatives", "energy-slack"]
FLAGS += ["energy-checkpointable", "energy-signals"]
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
SHAPES = st.from_regex(r"((gpu|gp):[ah_.-]{0,3}[0-9]{0,2}:?[0-9]{0,6},?){0,9}", fullmatch=True)
NO_SHAPES = [
    "gpu:a100:4,gpu:4",
    "",
    "a100:4",
    "gpu:4",
    "gpu:a100",
    "gpu:a100:",
    "gpu:a100:0",
    "gpu:a100:12345",
    "gpu::4",
]
NO_SHAPES += ["gpu:a100:4,", ",gpu:a100:4", "gpu:a100:4,,gpu:h100:2", "gpu:a100:4 ", "gpu:-a:1", "gpu:a:1:2"]
NO_SHAPES += [
    "GPU:a100:4",
    "gpu:a;b:1",
    "gpu:é:1",
    ",".join(9 * ["gpu:a:1"]),
    f"gpu:{'k' * 33}:1",
    "gpu:a:+1",
]
NEAR_NAMES = st.from_regex(r"[EeDdPpmonitrMON]{1,40}", fullmatch=True)
WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)

NO_HEADERS = 4  # exit code of packaging/slurm-headers

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")


class Driver:
    """Client of the test driver process, which answers one request after the other."""

    def __init__(self, program: Path, policy_file: Path) -> None:
        self.policy_file = policy_file
        self.process = subprocess.Popen(
            [program, policy_file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ask(self, flag: str, value: str | bytes, user: str = "") -> tuple[bool, str, str]:
        """Send an energy flag and its value to the checker written in C, and return its answer.

        The answer has three parts: whether the value was accepted, why the policy file cannot be used, and
        the normalised value or the error message.
        """
        data = value if isinstance(value, bytes) else value.encode()
        number = FLAGS.index(flag) if flag in FLAGS else len(FLAGS)
        question = b"\0".join([str(number).encode(), user.encode(), data, b""])
        self.process.stdin.write(question)
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith(b"\n"), self.process.communicate(timeout=60)[1].decode()
        verdict, problem, text = answer.decode("ascii")[:-1].split("\t")
        return verdict == "ok", problem, text

    def together(self, policy: str = "", cap: str = "", gpu_cap: str = "", **others: str) -> tuple[bool, str]:
        """Let the SPANK plugin check a combination of flags. Return (accepted, message).

        Each flag alone is valid. An empty value means that the flag is not given.
        """
        given = {"policy": policy, "cap": cap, "gpu_cap": gpu_cap} | others
        values = (given.get(flag.removeprefix("energy-").replace("-", "_")) for flag in FLAGS)
        accepted, _, text = self.ask("together", " ".join(value or "-" for value in values))
        return accepted, "" if accepted else text

    def close(self) -> None:
        _, complaints = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, complaints.decode()


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("flags") / "driver"
    sources = [
        DRIVER,
        *(
            SPANK / f"{name}.c"
            for name in ("flags", "flag_numbers", "flag_policy", "flag_words", "line", "policies", "decimal")
        ),
    ]
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror", f"-I{SPANK}"]
    subprocess.run(["gcc", *flags, "-o", path, *sources], check=True, timeout=120)
    return path


@pytest.fixture(scope="module")
def driver(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("policies") / "policies"
    path.write_text(POLICIES)
    driver = Driver(program, path)
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def unbounded(program):
    """Start a test driver of the SPANK plugin without a policy file.

    Without the file, the plugin checks only the syntax of flags, not their bounds.
    """
    driver = Driver(program, Path("/nonexistent/policies"))
    yield driver
    driver.close()


@pytest.fixture
def bare(program, tmp_path):
    """Yield a driver, which runs the test program that loads the SPANK plugin.

    No policy file exists for this driver. A test may write the file.
    """
    driver = Driver(program, tmp_path / "policies")
    yield driver
    driver.close()


@pytest.mark.parametrize(
    ("flag", "value", "normal"),
    [
        ("energy-policy", "edp", "edp"),
        ("energy-cap", "200", "200"),
        ("energy-cap", "200W", "200"),
        ("energy-cap", "1.6kW", "1600"),
        ("energy-cap", "0.0016MW", "1600"),
        ("energy-cap", "1.001kW", "1001"),
        ("energy-cap", "000100.000", "100"),
        ("energy-cap", "10000", "10000"),
        ("energy-gpu-cap", "100.5", "100.5"),
        ("energy-slowdown", "5", "5"),
        ("energy-slowdown", "5%", "5"),
        ("energy-slowdown", "02.50%", "2.5"),
        ("energy-tuning", "advise", "advise"),
        ("energy-cpu-freq", "2400", "2400"),
        ("energy-cpu-freq", "2.4GHz", "2400"),
        ("energy-cpu-freq", "2400.000001MHz", "2400.000001"),
        ("energy-gpu-clock", "2.0005GHz", "2000.5"),
        ("energy-power-profile", "max-q", "MAX_Q"),
        ("energy-power-profile", "Hpc", "HPC"),
        ("energy-power-profile", "PROFILE_254", "PROFILE_254"),
        ("energy-model", "bert:base/v1.2+fp16-x_Y", "bert:base/v1.2+fp16-x_Y"),
        ("energy-tag", "a" * 64, "a" * 64),
        ("energy-alternatives", "gpu:a100:4,gpu:h100:2", "gpu:a100:4,gpu:h100:2"),
        ("energy-alternatives", "gpu:A-1.x_+:0010", "gpu:A-1.x_+:10"),
        (
            "energy-alternatives",
            ",".join(8 * [f"gpu:{'k' * 32}:9999"]),
            ",".join(8 * [f"gpu:{'k' * 32}:9999"]),
        ),
        ("energy-signals", "off", "off"),
        ("energy-signals", "10s", "10s"),
        ("energy-signals", "0001s", "1s"),
        ("energy-signals", "5m", "300s"),
        ("energy-slack", "30m", "1800s"),
        ("energy-slack", "1.5h", "5400s"),
        ("energy-slack", "14400s", "14400s"),
        ("energy-slack", "1d", "86400s"),
        ("energy-slack", "240", "14400s"),
        ("energy-slack", "4:30", "270s"),
        ("energy-slack", "04:00:00", "14400s"),
        ("energy-slack", "1-12", "129600s"),
        ("energy-slack", "0-1:30", "5400s"),
        ("energy-slack", "1-00:00:01", "86401s"),
    ],
)
def test_good_values_become_plain(driver, flag, value, normal):
    assert driver.ask(flag, value, "carl") == (True, "", normal)


NOT_A_POWER = (
    "|-5|+200|15Wh|1e400|1e3|0x64|nan|inf|.5|200.|200 W|200w|200KW|1,000|2.0000001|1234567890|0|0.0kW|²00|२००"
)


@pytest.mark.parametrize("value", [*NOT_A_POWER.split("|"), " ", "200\n", "200\x1b[31m", "9" * 10_000])
def test_what_is_not_a_power_is_refused(driver, value):
    accepted, _, message = driver.ask("energy-cap", value)
    assert not accepted
    assert message.startswith("--energy-cap: '")
    assert message.endswith("' is not a power; write watts as 200, 200W or 1.6kW (allowed: 100 to 10000 W)")


OTHER_NUMBERS = [
    (
        "slowdown",
        "a percentage; write it as 5, 5% or 2.5% (allowed: 1 to 25 %)",
        "|5 %|-5|5%%|5.|1e1|five|.5|5W",
    ),
    (
        "cpu-freq",
        "a frequency; write MHz as 2400, 2400MHz or 2.4GHz (allowed: 800 to 4000 MHz)",
        "|0|2.4ghz|2.4 GHz|2400 MHz|2400M|2400000kHz|high|2400-3000|-1",
    ),
    (
        "gpu-clock",
        "a frequency; write MHz as 2400, 2400MHz or 2.4GHz (allowed: 210 to 2000.5 MHz)",
        "|0|1.2GHZ|1200,877|low",
    ),
]


@pytest.mark.parametrize(
    ("flag", "form", "value"),
    [(flag, form, value) for flag, form, values in OTHER_NUMBERS for value in values.split("|")],
)
def test_percentages_and_frequencies_of_another_form_are_refused(driver, flag, form, value):
    assert driver.ask(f"energy-{flag}", value) == (False, "", f"--energy-{flag}: '{value}' is not {form}")


@pytest.mark.parametrize("value", ["", "On", "yes", "on ", "offadvise"])
def test_unknown_tuning_modes_are_refused(driver, value):
    message = f"--energy-tuning: '{value}' is not a tuning mode; allowed: off, advise, on"
    assert driver.ask("energy-tuning", value) == (False, "", message)


@pytest.mark.parametrize(
    "value", ["", "MAX_R", "MAX", "MAX_P,MAX_Q", "MAX Q", "PROFILE_255", "PROFILE_007", "PROFILE_", "M" * 65]
)
def test_unknown_power_profiles_are_refused(driver, value):
    accepted, _, message = driver.ask("energy-power-profile", value)
    assert not accepted
    assert message.endswith("' is not a power profile; allowed: MAX_P,MAX_Q,HPC")


@given(st.from_regex(r"(PROFILE_|MAX-|max_|HPC)?[0-9QPq]{0,4}", fullmatch=True))
def test_power_profiles_are_those_of_the_node(bare_profiles, value):
    accepted, _, text = bare_profiles.ask("energy-power-profile", value)
    if not value:
        return
    try:
        request = validate_flags({"ENERGY_POWER_PROFILE": value}, configuration.Config())
    except UsageError:
        assert not accepted
    else:
        assert accepted and canonical_name(text) == request.gpu_power_profile


@pytest.fixture(scope="module")
def bare_profiles(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles") / "policies"
    path.write_text(policy_file_text(configuration.Config()))
    driver = Driver(program, path)
    assert all(driver.ask("energy-power-profile", name)[0] for name in POWER_PROFILES)
    assert "; allowed: MAX_P,MAX_Q," in driver.ask("energy-power-profile", "none")[2]
    yield driver
    driver.close()


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("energy-cap", "99.999999", "100 to 10000 W"),
        ("energy-cap", "10000.000001", "100 to 10000 W"),
        ("energy-cap", "999999999.999999MW", "100 to 10000 W"),
        ("energy-gpu-cap", "100", "100.5 to 1000 W"),
        ("energy-slowdown", "0.999999", "1 to 25 %"),
        ("energy-slowdown", "0", "1 to 25 %"),
        ("energy-cpu-freq", "4.000001GHz", "800 to 4000 MHz"),
        ("energy-gpu-clock", "209", "210 to 2000.5 MHz"),
    ],
)
def test_values_out_of_bounds_are_refused(driver, flag, value, allowed):
    message = f"--{flag}: '{value}' is out of bounds; allowed: {allowed}"
    assert driver.ask(flag, value) == (False, "", message)


SLACKS = st.from_regex(r"[0-9]{0,3}([-:.][0-9]{0,10}){0,4}[smhdSw]?", fullmatch=True)


@given(value=SLACKS)
@example(value="1000000000s")
@example(value="11574-01:46:40")
@example(value="0.9s")
@example(value="0")
def test_slacks_mean_what_they_mean_in_python(unbounded, value):
    accepted, _, text = unbounded.ask("energy-slack", value)
    try:
        seconds = parse_slack(value)
    except UsageError:
        assert not accepted
        assert text.startswith(f"--energy-slack: '{value}' is not a duration; write it as 30m, 4h or 1d")
    else:
        assert (accepted, text) == (True, f"{seconds}s")
        assert parse_slack(text) == seconds  # the normal form means the same


@given(st.from_regex(r"(off|[0-9]{0,6}[smhOF.]?)[ s]?", fullmatch=True))
@example("on")
@example("300s")
@example("301s")
@example("6m")
@example("0s")
@example("00010s")
@example("10")
def test_intervals_of_signals_mean_what_they_mean_in_python(unbounded, value):
    accepted, _, text = unbounded.ask("energy-signals", value)
    try:
        seconds = parse_sampling_interval(value, "--energy-signals")
    except UsageError as error:
        assert not accepted
        if value.isprintable() and value:
            assert text == str(error).replace("interval: write", "interval; write")
    else:
        assert accepted
        assert parse_sampling_interval(text) == seconds


def test_a_slack_beyond_the_maximum_of_the_site_is_refused(bare):
    bare.policy_file.write_text(policy_file_text(configuration.parse(DEFERRAL)))
    message = "--energy-slack: '5h' is out of bounds; allowed: 1 to 14400 s"
    assert bare.ask("energy-slack", "5h") == (False, "", message)
    assert bare.ask("energy-slack", "4h") == (True, "", "14400s")
    assert bare.ask("energy-checkpointable", "500d")[0]  # without suspension any duration
    bare.policy_file.write_text(policy_file_text(configuration.parse(DEFERRAL + "suspend = true\n")))
    message = "--energy-checkpointable: '5h' is out of bounds; allowed: 1 to 14400 s"
    assert bare.ask("energy-checkpointable", "5h") == (False, "", message)
    assert bare.ask("energy-checkpointable", "5m") == (True, "", "300s")


def test_a_slack_is_accepted_where_no_job_is_deferred(bare):
    text = policy_file_text(configuration.parse(DEFERRAL.replace("cheapest", "off")))
    bare.policy_file.write_text(text)
    assert "slack_s 0 0" in text.splitlines()
    assert bare.ask("energy-slack", "500d") == (True, "", "43200000s")


DEFERRAL = '[deferral]\npolicy = "cheapest"\nmax_slack_s = 14400\n'


def test_an_unknown_policy_names_the_nearest_and_lists_those_of_the_user(driver):
    message = "--energy-policy: unknown policy 'edpp'; did you mean 'edp'? allowed: monitor, edp"
    assert driver.ask("energy-policy", "edpp", "carl") == (False, "", message)
    assert driver.ask("energy-policy", "nigth", "alice")[2].endswith(
        "; did you mean 'night'? allowed: monitor, edp, night"
    )


@given(value=st.one_of(NEAR_NAMES, WORDS))
@example(value="EDP")
@example(value="mnoitor")
@example(value="mon")
def test_the_same_policy_is_suggested_as_in_python(driver, value):
    accepted, _, message = driver.ask("energy-policy", value, "carl")
    nearest = None if value == "night" else nearest_name(value, ["monitor", "edp"])
    said = re.search(r"; did you mean '(.*)'\? allowed: monitor, edp$", message)
    assert accepted or (said[1] if said else None) == nearest


def test_a_policy_for_some_users_is_refused_to_others(driver):
    refusal = "--energy-policy: 'night' is not open to user carl; allowed: monitor, edp"
    assert driver.ask("energy-policy", "night", "carl") == (False, "", refusal)
    assert driver.ask("energy-policy", "night", "al")[0] is False
    for user in ("alice", "bob", ""):
        assert driver.ask("energy-policy", "night", user)[0]


@pytest.mark.parametrize(
    ("flag", "value", "claim"),
    [
        ("energy-policy", "EDP", "is not a policy name; did you mean 'edp'? allowed: "),
        ("energy-policy", "", "is not a policy name; allowed: "),
        ("energy-policy", "a" * 33, "is not a policy name; allowed: "),
        ("energy-model", "", "is not a model name; allowed: 1 to 64 characters"),
        ("energy-policy", "x" * 10_000, "is not a policy name; allowed: "),
        ("energy-model", "a;b", "is not a model name; allowed: 1 to 64 characters"),
        ("energy-model", "a b", "is not a model name; allowed: 1 to 64 characters"),
        ("energy-tag", "a" * 65, "is not a tag; allowed: 1 to 64 characters"),
        ("energy-tag", "x;y", "is not a tag; allowed: 1 to 64 characters"),
        ("energy-tag", "é", "is not a tag; allowed: 1 to 64 characters"),
        *(("energy-alternatives", value, "is not a list of shapes; write 1 to 8 as ") for value in NO_SHAPES),
    ],
)
def test_names_of_another_form_are_refused(driver, flag, value, claim):
    accepted, _, message = driver.ask(flag, value)
    assert not accepted
    assert message.startswith(f"--{flag}: '")
    assert claim in message


def test_messages_show_no_control_characters_and_no_long_text(driver):
    _, _, message = driver.ask("energy-tag", "\x1b[31m\n\r\\é" + "x" * 10_000)
    assert message.startswith(r"--energy-tag: '\x1b[31m\x0a\x0d\x5c\xc3\xa9xxx")
    assert "...' is not a tag" in message
    assert len(message) < 200


@given(flag=st.sampled_from(FLAGS), value=WORDS)
def test_any_text_gets_a_value_or_one_printable_line(driver, flag, value):
    accepted, _, text = driver.ask(flag, value, "carl")
    assert re.fullmatch(r"[ -~]{1,640}", text)
    assert accepted == (not text.startswith(f"--{flag}: "))


NUMBERS = {"cap": parse_watts, "slowdown": parse_percent, "cpu-freq": parse_megahertz}


@given(
    st.sampled_from(sorted(NUMBERS)),
    st.from_regex(r"[0-9]{0,10}\.?[0-9]{0,7}(W|kW|MW|Wh|%|MHz|GHz|Hz)?", fullmatch=True),
)
def test_numbers_mean_what_they_mean_in_the_rest_of_the_project(unbounded, flag, value):
    """The SPANK plugin accepts the same numbers as the Python code, with the same meaning.

    The test compares the plugin with quantities.py. Without a policy file there are no bounds.
    """
    accepted, _, text = unbounded.ask(f"energy-{flag}", value)
    try:
        expected = NUMBERS[flag](value)
    except UsageError:
        assert not accepted
    else:
        assert accepted
        assert re.fullmatch(r"(0|[1-9][0-9]*)(\.[0-9]*[1-9])?", text)
        assert float(text) == pytest.approx(expected, rel=1e-12)


@given(SHAPES | st.sampled_from(NO_SHAPES))
def test_shapes_mean_what_they_mean_in_the_rest_of_the_project(unbounded, value):
    accepted, _, text = unbounded.ask("energy-alternatives", value)
    try:
        expected = parse_shapes(value or "none")
    except UsageError:
        assert not accepted
    else:
        assert accepted
        assert parse_shapes(text) == expected
        assert dict.fromkeys(text.split(",")) == dict.fromkeys(shape.text for shape in expected)


def test_without_a_policy_file_only_the_form_is_checked(bare):
    assert bare.ask("energy-policy", "anything-goes_1") == (True, "", "anything-goes_1")
    assert bare.ask("energy-cap", "1") == (True, "", "1")
    accepted, _, message = bare.ask("energy-policy", "9lives")
    assert not accepted
    assert message.endswith("allowed: a to z first, then a to z, 0 to 9, - and _, at most 32 characters")


def test_a_policy_file_that_cannot_be_used_is_as_good_as_none_and_says_why(bare, tmp_path):
    path = tmp_path / "policies"
    os.mkfifo(path)
    assert bare.ask("energy-cap", "1") == (True, "not a regular file", "1")
    path.unlink()
    path.mkdir()
    assert bare.ask("energy-cap", "1")[1] == "not a regular file"
    path.rmdir()
    path.write_text(POLICIES + "#" * (64 * 1024 - len(POLICIES) + 1))
    assert bare.ask("energy-cap", "1")[1] == "longer than 64 KiB"
    path.write_text(POLICIES + "#" * (64 * 1024 - len(POLICIES)))
    assert bare.ask("energy-cap", "1")[:2] == (False, "")
    for text in ("", "policy x\n", "senergy-policies 2\n", "senergy-policies 1\n\0", "senergy-policies 10\n"):
        path.write_text(text)
        assert bare.ask("energy-cap", "1")[1] == "does not begin with the line 'senergy-policies 1'"


def test_a_copy_is_used_until_its_time_is_over(bare, tmp_path):
    path, now = tmp_path / "policies", int(time.time())
    for words, is_used in (
        (f"{now + 600}", True),
        (f"{now + 600}.5 later words", True),
        (f"{now - 1}", False),
        ("0", False),
        (f"{now + 2 * 86400}", False),
        ("soon", False),
        ("-5", False),
        ("9" * 40, False),
    ):
        path.write_text(f"{POLICIES}issued 5\nfresh-until {words}\n")
        assert bare.ask("energy-policy", "nope")[:2] == (not is_used, "" if is_used else "out of date"), words


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_policy_file_that_other_users_could_have_written_is_not_used(bare, tmp_path):
    path = tmp_path / "policies"
    path.write_text(POLICIES)
    owned = "owned neither by root nor by the owner of its directory"
    for mode, folder_mode, owner, folder_owner, problem in (
        (0o644, 0o755, 0, 0, ""),
        (0o644, 0o755, 64030, 64030, ""),
        (0o644, 0o1777, 0, 0, ""),
        (0o644, 0o755, 0, 64030, ""),
        (0o644, 0o755, 64030, 0, owned),
        (0o644, 0o1777, 64030, 0, owned),
        (0o644, 0o1777, 64030, 64030, owned),
        (0o664, 0o755, 0, 0, "other users may write it"),
        (0o646, 0o755, 0, 0, "other users may write it"),
        (0o644, 0o777, 0, 0, "other users may write it"),
    ):
        os.chown(path, owner, 0)
        os.chown(tmp_path, folder_owner, 0)
        path.chmod(mode)
        tmp_path.chmod(folder_mode)
        assert bare.ask("energy-policy", "nope")[:2] == (bool(problem), problem), (mode, folder_mode, owner)


def test_lines_of_newer_writers_are_passed_over(bare, tmp_path):
    (tmp_path / "policies").write_text(
        "senergy-policies 1\n\n  policy   edp  colour=green users=\nwatts_budget 3\ncap_watts 5\n"
        "cap_watts low high\npolicy Bad\npolicy\ncap_watts 5 6 7\ncap_watts 1e2 3\ngpu_cap_watts"
    )
    assert bare.ask("energy-policy", "edp", "carl")[0]
    assert bare.ask("energy-cap", "4") == (False, "", "--energy-cap: '4' is out of bounds; allowed: 5 to 6 W")
    assert bare.ask("energy-policy", "bad")[2] == "--energy-policy: unknown policy 'bad'; allowed: edp"


SITE = """
[policies.lower]
base = "cap"
[policies.lowest]
base = "cap"
cap_watts = 500
[policies.gpus]
base = "cap"
gpu_cap_watts = 200
[policies.quiet]
governor = "powersave"
[policies.green]
base = "ed2p"
[policies.monitor]
users = ["alice"]
"""
REDEFINED = '[policies.monitor]\nbase = "powersave"\n[policies.cap]\ncap_watts = 400\n'
NAMES = ["monitor", "performance", "cap", "edp", "energy", "green", "lower", "lowest", "gpus", "quiet"]


@pytest.mark.parametrize("text", ["", SITE, REDEFINED], ids=["built in", "site", "redefined"])
def test_flags_go_together_as_they_do_on_the_node(bare, tmp_path, text):
    config = configuration.parse(text)
    (tmp_path / "policies").write_text(policy_file_text(config))
    for policy in ["", *NAMES]:
        if policy and not bare.ask("energy-policy", policy, "alice")[0]:
            continue
        for flags in COMBINATIONS:
            raw = {"ENERGY_POLICY": policy} | {f"ENERGY_{name.upper()}": text for name, text in flags.items()}
            try:
                validate_flags(raw, config, "alice")
            except UsageError:
                # Only senergyd knows the default policy of the job.
                assert not bare.together(policy, **flags)[0] or not policy, raw
            else:
                assert bare.together(policy, **flags) == (True, ""), raw


COMBINATIONS = [
    {},
    {"cap": "300"},
    {"gpu_cap": "200"},
    {"cap": "300", "gpu_cap": "200"},
    {"cpu_freq": "2000"},
    {"gpu_clock": "1000"},
    {"power_profile": "MAX_Q"},
    {"slowdown": "5"},
    {"tuning": "off"},
    {"tuning": "advise"},
    {"tuning": "on", "cap": "300"},
    {"slowdown": "5", "cpu_freq": "2000", "tuning": "off"},
]


@pytest.mark.parametrize(
    "lines", [None, "", "policy monitor users=al measures-only x\npolicy cap y needs-cap"]
)
def test_a_contradiction_is_told_in_one_line(bare, tmp_path, lines):
    if lines is not None:
        (tmp_path / "policies").write_text(f"senergy-policies 1\n{lines}\n")
    advice = "policy 'monitor' changes nothing; choose another policy or leave the flag out"
    assert bare.together("monitor", "300", "200") == (False, f"--energy-cap: {advice}")
    assert bare.together("monitor", "", "200") == (False, f"--energy-gpu-cap: {advice}")
    assert bare.together("cap", "", "") == (
        False,
        "--energy-policy=cap needs --energy-cap, --energy-gpu-cap, --energy-cpu-freq, --energy-gpu-clock or "
        "--energy-power-profile",
    )
    assert bare.together("monitor", "", "") == bare.together("cap", "", "200") == (True, "")
    assert bare.together("monitor", power_profile="HPC") == (False, f"--energy-power-profile: {advice}")
    advice = "policy 'cap' is not tuned; choose edp, ed2p or energy, or leave the flag out"
    assert bare.together("cap", "300", slowdown="5", tuning="on") == (False, f"--energy-slowdown: {advice}")
    assert bare.together("cap", "300", tuning="on") == (False, f"--energy-tuning: {advice}")
    assert bare.together("cap", "300", tuning="off") == (True, "")


def test_a_policy_file_of_before_these_words_leaves_the_judgement_to_senergyd(bare, tmp_path):
    (tmp_path / "policies").write_text("senergy-policies 1\npolicy monitor\npolicy cap\n")
    assert bare.together("monitor", "300", "") == bare.together("cap", "", "") == (True, "")
    assert bare.together("monitor", slowdown="5") == bare.together("cap", tuning="on") == (True, "")


def test_a_user_without_any_policy_is_told_so(bare, tmp_path):
    (tmp_path / "policies").write_text("senergy-policies 1\npolicy night users=alice\n")
    assert bare.ask("energy-policy", "day", "carl")[2].endswith("; allowed: none")


def test_a_list_of_very_many_policies_is_cut(bare, tmp_path):
    names = [f"policy-number-{i}" for i in range(2000)]
    lines = "".join(f"policy {name}\n" for name in names)
    (tmp_path / "policies").write_text("senergy-policies 1\n" + lines)
    _, problem, message = bare.ask("energy-policy", "policy-number-x")
    assert problem == ""
    assert message.endswith(", ...")
    assert len(message) < 640


@pytest.fixture(scope="module")
def fuzzed(program, tmp_path_factory):
    driver = Driver(program, tmp_path_factory.mktemp("fuzzed") / "policies")
    yield driver
    driver.close()


POLICY_LINES = st.sampled_from(
    [b"policy ", b"edp", b" users=", b",", b" needs-cap", b"cap_watts ", b"100", b" ", b"\n", b"."]
)


@given(text=st.lists(POLICY_LINES | st.binary(max_size=40), max_size=60), value=WORDS)
def test_no_policy_file_breaks_the_reader(fuzzed, text, value):
    fuzzed.policy_file.write_bytes(b"senergy-policies 1\n" + b"".join(text))
    for flag in FLAGS:
        assert re.fullmatch(r"[ -~]{1,640}", fuzzed.ask(flag, value, "carl")[2])
    assert re.fullmatch(r"[ -~]{0,640}", fuzzed.together("edp", "", "")[1])


@pytest.mark.slow
def test_the_plugin_builds_without_warnings_and_shows_only_what_slurm_looks_up(tmp_path):
    folder = tmp_path / "spank"
    headers = REPOSITORY / "packaging" / "slurm-headers"
    if subprocess.run([headers], capture_output=True, check=False).returncode == NO_HEADERS:
        pytest.skip("Slurm's headers are not installed")
    (tmp_path / "packaging").mkdir()
    shutil.copy(headers, tmp_path / "packaging")
    shutil.copytree(SPANK, folder, ignore=shutil.ignore_patterns("*.so"))
    subprocess.run(
        ["make", "--silent", "-C", folder, "energy.so", "CFLAGS_EXTRA=-Wall -Wextra -Werror"],
        check=True,
        timeout=120,
    )
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", folder / "energy.so"], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in listing.stdout.splitlines()}
    functions = {"slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_exit"}
    assert names == functions | {"plugin_name", "plugin_type", "plugin_version", "spank_plugin_version"}
