from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import golden_files
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.cli.main import main
from slurm_energy.errors import EnergyError
from slurm_energy.templates import find, names, render, value_kinds

BATCH = [name for name in names() if find(name).group == "batch"]
SITE = [name for name in names() if find(name).group == "site"]
REQUIRED = {
    "cpu": ["command=./simulate --steps 10"],
    "gpu": ["command=python train.py --lr 0.1"],
    "mpi": ["command=./solver input.dat"],
    "pytorch-ddp": ["script=train it's.py"],
    "array": ["command=./point $SLURM_ARRAY_TASK_ID", "array=0-9%4"],
}
ENERGY = ["policy=cap", "cap=1.6kW", "model=gemm", "tag=run/1"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)


def rendered(capsys: pytest.CaptureFixture[str], name: str, *values: str) -> str:
    arguments = [part for value in values for part in ("--set", value)]
    assert main(["template", "render", name, *arguments]) == 0
    return capsys.readouterr().out


def test_all_shipped_templates_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["template", "list"]) == 0
    golden_files.compare("template_list.txt", capsys.readouterr().out)
    assert set(BATCH) == set(REQUIRED)


@pytest.mark.parametrize("name", BATCH)
def test_batch_scripts_match_golden_files_and_are_valid_shell(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ["gpu_cap=250W", "gpus=2"] if name in ("gpu", "pytorch-ddp", "array") else []
    full = rendered(
        capsys, name, *REQUIRED[name], *ENERGY, *gpu, "partition=p", "time=1-02:00", "setup=module load x"
    )
    golden_files.compare(f"template_{name}.sh", full)
    for text in (full, rendered(capsys, name, *REQUIRED[name])):
        script = tmp_path / "job.sh"
        script.write_text(text)
        subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
        head, _, body = text.partition("\n\n")
        assert head.startswith("#!/bin/bash\n")
        assert all(line.startswith("#SBATCH --") for line in head.splitlines()[1:])
        assert "#SBATCH" not in body
        assert "\n\n\n" not in text
    assert "--energy" not in rendered(capsys, name, *REQUIRED[name])


@pytest.mark.parametrize("name", ["gpu", "pytorch-ddp"])
def test_a_script_that_offers_shapes_uses_the_allocated_gpus(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = rendered(capsys, name, *REQUIRED[name], "alternatives=gpu:a100:4,gpu:h100:2")
    assert "#SBATCH --energy-alternatives=gpu:a100:4,gpu:h100:2\n" in text
    (tmp_path / "job.sh").write_text(text)
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True, timeout=60)
    if name == "pytorch-ddp":
        assert 'PROCESSES="${PROCESSES:-$SLURM_GPUS_ON_NODE}"' in text
        assert '--nproc_per_node="$PROCESSES"' in text
        assert "SLURM_CPUS_PER_TASK / PROCESSES" in text
    text = rendered(capsys, name, *REQUIRED[name], "alternatives=gpu:a100:1-6,gpu:h100:3-4")
    shapes = "gpu:a100:1,gpu:a100:2,gpu:a100:4,gpu:a100:6,gpu:h100:3,gpu:h100:4"
    assert f"#SBATCH --energy-alternatives={shapes}\n" in text
    for wrong in ("4", "gpu:a100:4-2", "gpu:a100:1-999999", "gpu:a100:0-4"):
        assert (
            main(["template", "render", name, "--set", REQUIRED[name][0], "--set", f"alternatives={wrong}"])
            == 2
        )


@pytest.mark.parametrize("name", SITE)
def test_site_files_match_golden_files(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    golden_files.compare(f"template_{name}", rendered(capsys, name))


@pytest.mark.parametrize(
    "name", ["senergyd.service", "senergyctld.service", "senergy-policies.service", "senergy-policies.timer"]
)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("senergyd", "senergyctld", "senergy"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
    unit = tmp_path / name
    if name.endswith(".timer"):
        (tmp_path / "senergy-policies.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/true\n")
        values = []
    else:
        values = [f"bin={tmp_path}", *(["user=root"] if "ctld" in name else [])]
    unit.write_text(rendered(capsys, name, *values))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if name in line]
    assert complaints == []
    if name in MOST_EXPOSED:
        assert exposure(unit) <= MOST_EXPOSED[name]


def test_the_agents_unit_can_write_devices_and_monitoring_groups(capsys: pytest.CaptureFixture[str]) -> None:
    lines = rendered(capsys, "senergyd.service").splitlines()
    paths = {
        path: is_writable
        for setting, is_writable in (("ReadOnlyPaths=", False), ("ReadWritePaths=", True))
        for line in lines
        if line.startswith(setting)
        for path in line.removeprefix(setting).split()
    }
    # "-": a node without the file system still starts the service.
    assert paths == {"/sys": False, "/proc/sys": False, "/sys/devices": True, "-/sys/fs/resctrl": True}
    starts = [line for line in lines if line.startswith("ExecStart")]
    # "+": the mount is made on the node, outside the name space and the system call filter of the service.
    assert starts[0].startswith("ExecStartPre=-+")
    assert "/senergyd --mount-resctrl --config " in starts[0]
    assert starts[1].startswith("ExecStart=/")


def test_the_controllers_unit_finds_a_slurm_outside_usr(capsys: pytest.CaptureFixture[str]) -> None:
    unit = rendered(capsys, "senergyctld.service", "slurm_prefix=/opt/slurm")
    assert "\nEnvironment=PATH=/opt/slurm/bin:/opt/slurm/sbin:" in unit
    assert "\nEnvironmentFile=-/etc/default/senergyctld\n" in unit
    assert "PATH=/opt" not in rendered(capsys, "senergyctld.service")


MOST_EXPOSED = {"senergyd.service": 2.8, "senergyctld.service": 1.7, "senergy-policies.service": 2.2}
"""Maximum exposure. docs/security.md states 2.7 and 1.6 for systemd 252; other releases differ slightly."""


def exposure(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit that is not loaded")
    if "Failed to initialize unit search paths" in done.stderr:
        pytest.skip("this user may not read the search paths of units")
    return float(done.stdout.rsplit(": ", 1)[1].split()[0])


@pytest.mark.parametrize("name", list(names()))
def test_every_variable_is_used_and_documented(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    template = find(name)
    body = template.source.split("#}\n", 1)[1]
    if template.group == "batch":
        body += (Path(__file__).parents[2] / "slurm_energy/templates/base/job.sh.j2").read_text()
    for variable in template.variables:
        used = re.search(rf"\{{[{{%][^}}]*\b{variable.name}\b", body)
        assert bool(used) != bool(variable.option) or variable.name in ("gpus", "alternatives"), variable.name
        assert variable.doc
    assert main(["template", "show", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{name}: {template.summary}\n")
    assert shown.endswith(template.source)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["nope"],
            6,
            "template 'nope': not known: one of array, cpu, gpu, mpi, pytorch-ddp, grafana-budgets.json",
        ),
        (["gpu"], 2, "template gpu: key 'command' needs a value"),
        (["gpu", "command="], 2, "template gpu: key 'command' needs a value"),
        (
            ["gpu", "command=x", "comand=x"],
            2,
            "--set comand: template gpu has no such key: did you mean command? known: ",
        ),
        (["gpu", "command"], 2, "--set: 'command' is not a setting: write --set key=value"),
        (
            ["gpu", "command=x", "policy=nope"],
            2,
            "--energy-policy: 'nope' is not known: allowed: monitor, ",
        ),
        (["gpu", "command=x", "cap=15Wh"], 2, "--energy-cap: '15Wh' is not a power"),
        (["gpu", "command=x", "cap=-5"], 2, "--energy-cap: '-5' is not a power"),
        (["gpu", "command=x", "gpu_cap=5000"], 2, "--energy-gpu-cap: '5000' is out of bounds: 100 to 1000 W"),
        (["gpu", "command=x", "policy=cap"], 2, "--energy-policy: 'cap' needs a cap"),
        (["gpu", "command=x", "tag=a b"], 2, "--energy-tag: 'a b' cannot be accepted"),
        (
            ["gpu", "command=x", "job_name=a\n#SBATCH --x"],
            2,
            r"--set job_name: 'a\n#SBATCH --x' cannot be accepted",
        ),
        (
            ["gpu", "command=a\nb"],
            2,
            r"--set command: 'a\nb' cannot be accepted: write one line of shell code",
        ),
        (
            ["gpu", "command=x", "gpus=0"],
            2,
            "--set gpus: '0' cannot be accepted: write a whole number from 1",
        ),
        (
            ["gpu", "command=x", "exclusive=maybe"],
            2,
            "--set exclusive: 'maybe' cannot be accepted: write yes or no",
        ),
        (["slurm.conf", "library=/a b"], 2, "--set library: '/a b' cannot be accepted"),
    ],
)
def test_bad_values_are_one_line(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [part for value in arguments[1:] for part in ("--set", value)]
    assert main(["template", "render", arguments[0], *values]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"senergy: error: {said}")
    assert captured.err.count("\n") == 1


def test_a_policy_of_the_site_is_known_from_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "energy.toml"
    config.write_text('[policies.night]\nbase = "cap"\ncap_watts = 400\n')
    arguments = ["template", "render", "cpu", "--set", "command=x", "--set", "policy=night"]
    assert main([*arguments, "--config", str(config)]) == 0
    assert "#SBATCH --energy-policy=night\n" in capsys.readouterr().out
    assert main(arguments) == 2


def test_the_last_value_wins_and_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.sh"
    arguments = ["template", "render", "cpu", "--set", "command=a", "--set", "command=b", "-o", str(file)]
    assert main(arguments) == 0
    assert file.read_text().endswith("\nb\n")
    assert capsys.readouterr().out == ""
    assert main([*arguments[:-1], str(tmp_path / "no" / "job.sh")]) == 1


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=60))
def test_a_script_name_stays_one_word_of_the_shell(tmp_path: Path, name: str) -> None:
    """A script name in a rendered template reaches the program as exactly one argument.

    The name may contain any characters. bash executes the line.
    """
    try:
        text = render(find("pytorch-ddp"), {"script": name}, lambda raw: None)
    except EnergyError:
        return
    line = text.rstrip("\n").rsplit("\\\n    ", 1)[1]
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        timeout=60,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout.split(b"\0")[:-1] == [name.encode()]


@given(
    st.text(max_size=40),
    st.sampled_from(["job_name", "partition", "nodelist", "time", "output", "tag", "model"]),
)
def test_no_value_breaks_out_of_its_sbatch_line(value: str, key: str) -> None:
    def energy(raw: dict[str, str]) -> None:
        from slurm_energy.config import Config
        from slurm_energy.policies import validate_flags

        validate_flags(raw, Config())

    try:
        text = render(find("cpu"), {"command": "true", key: value}, energy)
    except EnergyError as error:
        assert "\n" not in str(error)
        return
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert len(lines) <= 5
    assert all(" " not in line.removeprefix("#SBATCH ") for line in lines)


@pytest.mark.parametrize("name", ["gpu", "pytorch-ddp"])
def test_one_gpu_leaves_the_nodes_others_to_other_jobs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--exclusive" not in rendered(capsys, name, *REQUIRED[name])
    assert "#SBATCH --exclusive\n" in rendered(capsys, name, *REQUIRED[name], "gpus=8", "exclusive=yes")


OWN = """\
{#
summary = "our solver on one node"
uses = ["job_name", "partition", "policy"]
case = { kind = "word", doc = "case to solve" }
job_name = { default = "solver" }
partition = { default = "batch" }
#}
{% extends "job.sh.j2" %}
{% block run %}
solver {{ case }}
{% endblock %}
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a directory for the site's templates, name it in the configuration, and return it."""
    folder = tmp_path / "templates"
    folder.mkdir(mode=0o755)
    config = tmp_path / "energy.toml"
    config.write_text(f'[templates]\nfolder = "{folder}"\n')
    monkeypatch.setenv("SENERGY_CONFIG", str(config))
    return folder


def test_a_sites_own_template_extends_the_shipped_skeleton(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "solver.sh.j2").write_text(OWN)
    text = rendered(capsys, "solver", "case=wing", "policy=monitor")
    assert text == (
        "#!/bin/bash\n#SBATCH --job-name=solver\n#SBATCH --partition=batch\n"
        "#SBATCH --energy-policy=monitor\n\n# Afterwards: senergy job JOBID\nsolver wing\n"
    )
    assert main(["template", "list"]) == 0
    assert re.search(r"(?m)^solver +our solver on one node \(site\)$", capsys.readouterr().out)
    assert main(["template", "show", "solver"]) == 0
    assert "case       case to solve (required)" in capsys.readouterr().out


def test_the_examples_on_the_templates_page_work(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/templates.md").read_text()
    (site / "solver.sh.j2").write_text(page.split("```\n")[1])
    assert rendered(capsys, "solver", "case=wing", "time=10").endswith("\nsolver wing\n")
    words = set(re.findall(r"[a-z_]+", page))
    assert set(value_kinds.names()) <= words
    assert {variable.name for name in BATCH for variable in find(name).variables if variable.option} <= words


def test_the_flags_of_tuning_are_checked_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    values = ["command=x", "policy=energy", "slowdown=2.5%", "tuning=advise", "cpu_freq=2.4GHz"]
    values += ["gpu_clock=1200", "power_profile=max-q"]
    text = rendered(capsys, "gpu", *values)
    for option in ("slowdown=2.5%", "tuning=advise", "cpu-freq=2.4GHz", "gpu-clock=1200"):
        assert f"#SBATCH --energy-{option}\n" in text
    assert "#SBATCH --energy-power-profile=max-q\n" in text
    assert main(["template", "render", "gpu", "--set", "command=x", "--set", "slowdown=5 %"]) == 2
    assert "--energy-slowdown: '5 %' is not a percentage" in capsys.readouterr().err


def test_a_sites_own_template_replaces_a_shipped_one(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "gpu.sh.j2").write_text(OWN)
    assert "solver wing" in rendered(capsys, "gpu", "case=wing")
    (site / "job.sh.j2").write_text("#!/bin/sh\n{% block run %}{% endblock %}\n")
    assert rendered(capsys, "gpu", "case=wing") == "#!/bin/sh\nsolver wing\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo\n", ":1: has no head"),
        ("{#\nsummary = \n#}\n", ": head: is not TOML"),
        ("{#\n#}\n", ":1: has no head"),
        ('{#\nx = { kind = "word", doc = "d" }\n#}\n', ": head: has no summary"),
        ('{#\nsummary = "s"\nuses = ["nothing"]\n#}\n', ": uses: is not a list of shared keys: known: "),
        ('{#\nsummary = "s"\nx = { kind = "word" }\n#}\n', ": x: has no doc"),
        ('{#\nsummary = "s"\nx = { kind = "no", doc = "d" }\n#}\n', ": x: kind 'no' is not known"),
        ('{#\nsummary = "s"\nx = { kind = 1, doc = "d" }\n#}\n', ": x: has an entry that is not text"),
        ('{#\nsummary = "s"\nx = { typ = "a" }\n#}\n', ": x: has an entry 'typ' that is not known"),
        ('{#\nsummary = "s"\n#}\n{% if %}\n', ":4: TemplateSyntaxError"),
        ('{#\nsummary = "s"\n#}\n{{ missing }}\n', ": UndefinedError: 'missing' is undefined"),
        ('{#\nsummary = "s"\n#}\n{{ 1 / 0 }}\n', ": ZeroDivisionError"),
        ('{#\nsummary = "s"\n#}\n{% extends "../x.j2" %}\n', ": TemplateNotFound: ../x.j2"),
        ('{#\nsummary = "s"\n#}\n{% extends "wrong.sh.j2" %}\n', ": includes itself"),
        ('{#\nsummary = "s"\n#}\n{{ "a" * 99999999999999 }}\n', ": grows too large"),
        (f'{{#\nsummary = "s"\nx = {"[" * 9000}\n#}}\n', ": head: is not TOML"),
        ("{#\nsummary = \"s\"\n#}\n{{ ''.__class__.__mro__ }}\n", ": SecurityError"),
    ],
)
def test_a_wrong_template_of_the_site_is_one_line(
    site: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site / "wrong.sh.j2"
    path.write_text(text)
    assert main(["template", "render", "wrong"]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith(f"senergy: error: {path}{said}"), captured.err
    assert captured.err.count("\n") == 1
    main(["template", "list"])
    assert "\ngpu " in capsys.readouterr().out


def test_a_template_that_others_can_write_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = site / "solver.sh.j2"
    path.write_text(OWN)
    path.chmod(0o666)
    assert main(["template", "render", "solver", "--set", "case=x"]) == 3
    assert f"{path}: " in capsys.readouterr().err
    assert main(["template", "list"]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith(f"senergy: error: {path}: ") and "\ngpu " in captured.out


def test_the_top_level_folder_points_to_the_packaged_templates() -> None:
    root = Path(__file__).parents[2]
    assert (root / "templates").resolve() == root / "slurm_energy" / "templates"
