"""Tests of `senergy tune characterise`, which measures how hardware responds to settings.

The tests cover the plan of the measurement, its compute kernels, and the command against an emulated
cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sweep_runs import EmulatedCluster

from slurm_energy.cli import main as cli
from slurm_energy.cli import sweep
from slurm_energy.config import BoundsConfig
from slurm_energy.errors import NotFoundError, UnavailableError, UsageError
from slurm_energy.sweep import characterisation, reference_kernels
from slurm_energy.sweep.characterisation import NodeRequest
from slurm_energy.sweep.runner import SweepCluster
from slurm_energy.tuning.learned_run import workload_class
from slurm_energy.tuning.sweep.factors import make_factor

DESCRIPTION = {
    "cpu_mhz": [800.0, 3000.0],
    "gpu_watts": [200.0, 300.0],
    "units_per_s": {"compute": 2.0, "memory": 100.0, "host": 7.5},
}


@given(minutes=st.floats(1, 20), jobs=st.integers(1, 100))
def test_all_jobs_fit_into_the_time(minutes: float, jobs: int) -> None:
    def end_s(seconds: int) -> float:
        limit_s = 60 * characterisation.job_minutes(seconds)
        return 30 + (jobs - 1) * (1.4 * seconds + 15) + limit_s

    try:
        seconds = characterisation.kernel_seconds(minutes, jobs)
    except UsageError:
        assert end_s(12) > 60 * minutes
        return
    assert 12 <= seconds <= 60
    assert end_s(seconds) <= 60 * minutes
    assert seconds == 60 or end_s(seconds + 1) > 60 * minutes


def test_values_of_the_knob_are_within_the_range_of_the_hardware() -> None:
    bounds = BoundsConfig()
    caps = characterisation.default_factor(DESCRIPTION, bounds, gpu=True)
    assert (caps.name, caps.values) == ("gpu-cap", ("270", "240", "210"))
    frequencies = characterisation.default_factor(DESCRIPTION, bounds, gpu=False)
    assert (frequencies.name, frequencies.values[0]) == ("cpu-freq", "2700")
    with pytest.raises(UnavailableError):
        characterisation.default_factor({**DESCRIPTION, "gpu_watts": None}, bounds, gpu=True)


def test_values_of_the_knob_are_within_the_bounds_of_the_site() -> None:
    bounds = BoundsConfig(gpu_cap_watts=(230.0, 250.0), cpu_freq_mhz=(2000.0, 2500.0))
    assert characterisation.default_factor(DESCRIPTION, bounds, gpu=True).values == ("240",)
    assert characterisation.default_factor(DESCRIPTION, bounds, gpu=False).values == ("2400", "2100")
    l4 = {**DESCRIPTION, "gpu_watts": [40.0, 72.0]}
    with pytest.raises(
        UnavailableError, match=r"no value from 40 to 72 .* within bounds.gpu_cap_watts: .* 100 to 1000"
    ):
        characterisation.default_factor(l4, BoundsConfig(), gpu=True)


def test_scripts_do_a_fixed_amount_of_work() -> None:
    factor = make_factor("gpu-cap", [200])
    own = characterisation.class_sweep("memory", factor, 30, gpu=True, command=None, units_per_s=100.0)
    assert own.script.rstrip().endswith("memory --units 3000 --gpu")
    assert workload_class(own.tag) == "memory"
    site = characterisation.class_sweep(
        "host", factor, 30, gpu=False, command="bench --time {seconds}", units_per_s=None
    )
    assert site.script == "#!/bin/sh\nexec bench --time 30\n"
    for text in ("compute", "compute=", "other=x", "compute=a\nb"):
        with pytest.raises(UsageError):
            characterisation.parse_kernels([text])


def test_size_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"n1": "64 gpu:a100:4(S:0-1),gpu:t4:1\n64 gpu:a100:4\n", "n2": "8 (null)\n", "n3": ""}
    monkeypatch.setattr(
        characterisation, "CommandRunner", lambda *_: lambda argv: answers[argv[argv.index("-n") + 1]]
    )
    assert characterisation.node_size("n1") == (64, 5)
    assert characterisation.node_size("n2") == (8, 0)
    with pytest.raises(NotFoundError):
        characterisation.node_size("n3")
    with pytest.raises(UsageError):
        characterisation.node_size("n[1-2]")


def test_a_module_that_is_absent_on_the_node_is_named(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def absent(name: str, gpu: bool) -> None:
        raise ImportError("absent", name="torch")

    monkeypatch.setattr(reference_kernels, "make_kernel", absent)
    assert reference_kernels.main(["--describe", "--gpu"]) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr(characterisation, "CommandRunner", lambda *_: lambda argv: output)
    with pytest.raises(UnavailableError, match="torch for"):
        characterisation.describe_node(NodeRequest("n1", True, ()), 4, 1, measure=True)
    assert reference_kernels.main(["host"]) == reference_kernels.EXIT_MISSING


@pytest.mark.parametrize(
    "output", ["", "noise\n", reference_kernels.MARK + "{}", reference_kernels.MARK + '{"units_per_s": 1}']
)
def test_a_bad_description_is_one_line(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(characterisation, "CommandRunner", lambda *_: lambda argv: output)
    with pytest.raises(UnavailableError):
        characterisation.describe_node(NodeRequest("n1", False, ()), 4, 0, measure=True)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "energy.toml").write_text("[bounds]\ngpu_cap_watts = [220, 1000]\n")
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    monkeypatch.setattr(characterisation, "node_size", lambda node: (32, 2))
    monkeypatch.setattr(characterisation, "describe_node", lambda *_, measure: DESCRIPTION)
    monkeypatch.setattr("slurm_energy.sweep.runner.POLL_S", 0.0)
    commands: list[list[str]] = []

    def access(submitter, args) -> SweepCluster:
        emulated = EmulatedCluster(submitter.state)

        def submit(point, job_name: str) -> int:
            commands.append(submitter.command(point, job_name))
            job_id = emulated.submit(point, job_name)
            emulated.tags[job_id] = submitter.state.tag
            return job_id

        return SweepCluster(submit, emulated.find, emulated.read_states, emulated.records)

    monkeypatch.setattr(sweep, "cluster_access", access)
    command = ["tune", "characterise", "-w", "n1", "--gpu", "--json", "--", "-p", "gpu"]
    assert cli.main(command) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["classes"]) == ["compute", "memory", "host"]
    assert [len(result["points"]) for result in document["classes"].values()] == [3, 3, 3]
    assert len(commands) == 9
    assert not [word for command in commands for word in command if word == "--energy-gpu-cap=210"]
    assert {"--gpus-per-node=2", "--exclusive", "--nodelist=n1", "gpu"} < set(commands[0])
    assert cli.main(command) == 0  # everything is measured
    assert len(commands) == 9
    assert cli.main([*command[:5], "--classes", "host"]) == 2
    assert "--restart" in capsys.readouterr().err


def hostile_plan(folder: Path, plan: object) -> None:
    (folder / "plan.json").write_text(json.dumps(plan))


def other_owner(folder: Path) -> None:
    os.chown(folder, 12345, -1)


def open_to_others(folder: Path) -> None:
    folder.chmod(0o777)


def linked(folder: Path) -> None:
    folder.rmdir()
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def planted_script(folder: Path) -> None:
    wanted = {"node": "n1", "gpu": False, "options": [], "classes": ["host"], "kernels": {}, "knobs": []}
    factor, scripts = ["cpu-freq", ["2000"]], {"host": "#!/bin/sh\nid > /stolen\n"}
    hostile_plan(folder, {"wanted": wanted, "seconds": 20, "factor": factor, "scripts": scripts})
    os.chown(folder / "plan.json", 12345, -1)


@pytest.mark.parametrize(
    "prepare",
    [
        other_owner,
        open_to_others,
        linked,
        planted_script,
        lambda folder: hostile_plan(folder, []),
        lambda folder: hostile_plan(folder, {"wanted": {}}),
        lambda folder: hostile_plan(folder, {"wanted": {}, "seconds": 1, "factor": [], "scripts": 3}),
        lambda folder: (folder / "plan.json").symlink_to("/etc/passwd"),
    ],
)
def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prepare: Callable[[Path], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(characterisation, "node_size", lambda node: (32, 0))
    monkeypatch.setattr(characterisation, "describe_node", lambda *_, measure: DESCRIPTION)
    monkeypatch.setattr(sweep, "cluster_access", lambda *_: pytest.fail("a job would be submitted"))
    folder = tmp_path / "senergy-characterise-n1"
    folder.mkdir(mode=0o755)
    try:
        prepare(folder)
    except PermissionError:
        pytest.skip("only root can give files away")
    assert cli.main(["tune", "characterise", "-w", "n1", "--classes", "host"]) == 1
    # For an ordinary user, a note precedes the error: the runs will not become the site's curves.
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("senergy: note:")]
    assert len(lines) == 1
    assert lines[0].startswith("senergy: error: senergy-characterise-n1")


def test_kernels_are_not_loaded_from_the_working_directory() -> None:
    factor = make_factor("gpu-cap", [200])
    site = characterisation.class_sweep("host", factor, 30, gpu=True, command=None, units_per_s=10.0)
    assert " -P -m slurm_energy" in site.script


@pytest.mark.slow
def test_kernels_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("numpy", reason="the kernels are part of the extra tuning")
    assert reference_kernels.main(["--describe", "--seconds", "0.01"]) == 0
    line = capsys.readouterr().out.removeprefix(reference_kernels.MARK)
    assert all(speed > 0 for speed in json.loads(line)["units_per_s"].values())
    assert reference_kernels.main(["host", "--units", "2"]) == 0
