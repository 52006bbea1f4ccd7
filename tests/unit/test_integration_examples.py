"""Tests that the examples for Open OnDemand, jobstats and Ansible do what their pages say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_energy.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ROLE = EXAMPLES / "ansible" / "roles" / "slurm_energy"
RENDER = 'require "erb"; print ERB.new(File.read(ARGV[0]), trim_mode: "-").result'
needs_ruby = pytest.mark.skipif(shutil.which("ruby") is None, reason="needs ruby, in which the portal runs")


def program(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def widget(tmp_path: Path, *answer: str) -> str:
    environment = os.environ | {"SENERGY": program(tmp_path / "senergy", *answer)}
    source = EXAMPLES / "open-ondemand" / "_senergy.html.erb"
    done = subprocess.run(
        ["ruby", "-e", RENDER, source], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def job(number: int, name: str, energy_joules: float | None) -> dict[str, Any]:
    energy = {
        "display_id": f"{number}_1",
        "energy_joules": energy_joules,
        "policy": "edp",
        "quality": "measured",
    }
    return {"job_id": number, "name": name, "energy": energy}


@needs_ruby
def test_the_widget_shows_the_energy_of_jobs_and_escapes_their_names(tmp_path: Path) -> None:
    jobs = [job(1, "<script>alert('1')</script>", 7.2e6), job(2, "b", None), {"job_id": 3, "energy": None}]
    (tmp_path / "answer").write_text(json.dumps({"jobs": jobs}))
    page = widget(tmp_path, f"cat '{tmp_path}/answer'")
    assert "<strong>2.000 kWh</strong> in 1 jobs" in page
    assert "&lt;script&gt;" in page and "<script>" not in page
    assert "<td>1_1</td>" in page and "<td>edp</td>" in page and "<td>2_1</td>" not in page


@needs_ruby
@pytest.mark.parametrize("answer", ["exit 4", "echo '{'", "echo '{}'"])
def test_the_widget_has_one_line_where_there_are_no_figures(tmp_path: Path, answer: str) -> None:
    page = widget(tmp_path, "echo 'senergy: error: no <controller>' >&2", answer)
    assert "<p>No figures: senergy: error: no &lt;controller&gt;</p>" in page


@needs_ruby
def test_the_interactive_app_hands_the_policy_to_sbatch() -> None:
    source = EXAMPLES / "open-ondemand" / "submit.yml.erb"
    code = 'require "json"; energy_policy = "edp"; ' + RENDER.replace(".result", ".result(binding)")
    done = subprocess.run(["ruby", "-e", code, source], capture_output=True, text=True, check=True)
    assert yaml.safe_load(done.stdout) == {"script": {"native": ["--energy-policy=edp"]}}
    form = yaml.safe_load((EXAMPLES / "open-ondemand" / "form.yml").read_text())
    assert set(form["form"]) == set(form["attributes"])


@pytest.mark.parametrize(
    ("arguments", "code", "energy"),
    [
        (["12"], 0, True),
        (["-c", "c1", "12_3"], 0, True),
        (["--json", "12"], 0, False),
        (["12; rm -rf /"], 0, False),
        (["12"], 3, False),
    ],
)
def test_energy_follows_the_page_of_jobstats(
    tmp_path: Path, arguments: list[str], code: int, energy: bool
) -> None:
    environment = os.environ | {
        "JOBSTATS": program(tmp_path / "jobstats", "echo page", f"exit {code}"),
        "SENERGY": program(tmp_path / "senergy", 'echo "$4"'),
    }
    wrapper = EXAMPLES / "jobstats" / "jobstats-energy"
    done = subprocess.run([wrapper, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code
    title = (
        "Energy (cluster c1)"
        if "c1" in arguments
        else f"Energy (senergy job {arguments[-1]} has the details)"
    )
    expected = f"page\n\n{title}\n{arguments[-1]}\n"
    assert done.stdout == (expected if energy else "page\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "c1", "12"],
        ["12", "-c", "c1"],
        ["-cc1", "12"],
        ["--cluster", "c1", "12"],
        ["--cluster=c1", "12"],
        ["--clus", "c1", "12"],
    ],
)
def test_jobstats_of_another_cluster_shows_the_energy_of_its_job(
    tmp_path: Path, arguments: list[str]
) -> None:
    environment = os.environ | {
        "JOBSTATS": program(tmp_path / "jobstats", "echo page"),
        "SENERGY": program(tmp_path / "senergy", 'echo "$*"'),
    }
    wrapper = EXAMPLES / "jobstats" / "jobstats-energy"
    done = subprocess.run([wrapper, *arguments], env=environment, capture_output=True, text=True, check=True)
    assert "acct -X -j 12 -M c1 -o" in done.stdout


def test_jobstats_is_kept_if_there_is_no_energy(tmp_path: Path) -> None:
    environment = os.environ | {
        "JOBSTATS": program(tmp_path / "jobstats", "echo page"),
        "SENERGY": program(tmp_path / "senergy", "echo half; exit 4"),
    }
    wrapper = EXAMPLES / "jobstats" / "jobstats-energy"
    done = subprocess.run([wrapper, "12"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "page\n", "")


def test_the_ansible_role_runs_existing_commands(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [
        task
        for file in sorted((ROLE / "tasks").glob("*.yml"))
        for task in yaml.safe_load(file.read_text(encoding="utf-8"))
    ]
    calls = [task["ansible.builtin.command"]["argv"] for task in tasks if "ansible.builtin.command" in task]
    ours = [call for call in calls if call[0] == "senergy"]
    assert len(ours) == 3
    for call in ours:
        words = [word.replace("{{ item }}", "node") for word in call[1:]]
        assert help_of(words[:2]) == 0, call
        assert all(word in capsys.readouterr().out for word in words[2:]), call


def help_of(command: list[str]) -> int:
    """Return the exit code of `senergy COMMAND --help`."""
    with contextlib.suppress(SystemExit):
        return main([*command, "--help"])
    return 0


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "migration").glob("*.md")), ids=lambda page: page.stem
)
def test_commands_of_the_migration_pages_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"`senergy ([a-z][^`]*)`", page.read_text(encoding="utf-8"))
    assert len(commands) >= 3
    for command in commands:
        name, *words = command.split()
        if name.startswith("-"):
            continue
        groups = [
            word for word in words[:1] if re.fullmatch(r"[a-z]+", word) and name in ("budget", "db", "quota")
        ]
        help_of([name, *groups])
        printed = capsys.readouterr()
        for option in re.findall(r"(?<!\S)--?[a-zA-Z][a-z-]*", command):
            assert option in printed.out, f"{command}: {printed.out[:200]}{printed.err}"
