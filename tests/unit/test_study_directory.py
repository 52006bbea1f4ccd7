"""Tests of the directory of a study.

The tests check the order of the steps, the detection of stale steps, the continuation of an interrupted
step, the lock, and manifests of other releases.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurm_energy.cli.main import main
from slurm_energy.errors import (
    AlreadyRunningError,
    ConfigError,
    EnergyError,
    ForbiddenError,
    NotFoundError,
    UsageError,
)
from slurm_energy.study.choice.alternatives import StudyAlternative
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.goals.objective_document import objective_example
from slurm_energy.study.manifest import FORMAT, StepState, StudyManifest, parse_manifest
from slurm_energy.study.rollout.deploy_step import Deployment
from slurm_energy.study.rollout.deployment import DeploymentState
from slurm_energy.study.rollout.stages import DeploymentStage

OBJECTIVE = objective_example("test")


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    return StudyDirectory.create(tmp_path / "study", OBJECTIVE)


def run(study: StudyDirectory, step: str, result: object = 1, **options: object) -> bool:
    """Run one step of a study with a trivial result. Return whether it resumed an interrupted run."""
    with study.running(step, f"senergy study {step}", **options) as run:  # type: ignore[arg-type]
        run.finish({"value": result})
        return run.resumed


def test_a_step_needs_the_steps_before_it(study: StudyDirectory) -> None:
    with pytest.raises(UsageError, match="model: needs the step baseline, which has not run: run: senergy"):
        run(study, "model")
    run(study, "baseline")
    run(study, "model")
    assert study.result("model")["value"] == 1
    entry = study.manifest.steps["model"]
    assert entry.state is StepState.DONE
    assert set(entry.inputs) == {"objective", "baseline/result.json"}
    assert set(entry.outputs) == {"result.json"}


def test_a_step_is_stale_after_a_change_of_its_inputs(study: StudyDirectory, tmp_path: Path) -> None:
    data = tmp_path / "jobs.csv"
    data.write_text("one")
    run(study, "baseline", files={"jobs": data})
    run(study, "model")
    assert (study.staleness("baseline"), study.staleness("model")) == ("", "")
    data.write_text("two")
    assert study.staleness("baseline") == f"{data} has changed"
    with pytest.raises(UsageError, match="baseline: is stale"):
        run(study, "characterise")
    data.unlink()  # proves no change
    assert study.staleness("baseline") == ""
    run(study, "baseline", result=2)
    assert study.staleness("model") == "baseline/result.json has changed"


def test_only_the_sections_of_the_objective_that_a_step_uses_make_it_stale(study: StudyDirectory) -> None:
    run(study, "baseline")
    run(study, "characterise")
    path = study.path / "objective.toml"
    path.write_text(OBJECTIVE.replace('title = "test"', 'title = "other"'))
    assert study.staleness("baseline") == ""
    path.write_text(OBJECTIVE.replace("[season]", '[season]\nexclude = ["2026-01-01"]'))
    assert study.staleness("baseline") == "the objective has changed"
    assert study.staleness("characterise") == "the step baseline is stale: the objective has changed"


def test_the_remedy_of_a_stale_step_is_the_first_step_to_repeat(study: StudyDirectory) -> None:
    for step in ("baseline", "model", "choose"):
        run(study, step)
    with pytest.raises(UsageError, match=r"run: senergy study deploy \S+ --stage STAGE"):
        run(study, "validate")
    (study.path / "model/result.json").write_text("{}")
    with pytest.raises(UsageError, match=r"choose: is stale: .*: run: senergy study model"):
        run(study, "deploy")
    (study.path / "objective.toml").write_text(OBJECTIVE.replace("[season]", '[season]\ntimezone = "UTC"'))
    with pytest.raises(UsageError, match=r"choose: is stale: .*: run: senergy study baseline"):
        run(study, "deploy")


def test_a_changed_result_is_stale(study: StudyDirectory) -> None:
    run(study, "baseline")
    (study.path / "baseline/result.json").write_text("{}")
    assert study.staleness("baseline") == "baseline/result.json was changed or removed after the step"


def test_an_interrupted_step_continues_with_its_partial_work(study: StudyDirectory) -> None:
    with pytest.raises(KeyboardInterrupt), study.running("baseline", "x", options={"a": 1}) as first:
        assert not first.resumed
        first.save_partial("half", [1, 2])
        raise KeyboardInterrupt
    again = StudyDirectory(study.path)
    assert again.manifest.steps["baseline"].state is StepState.RUNNING
    with again.running("baseline", "x", options={"a": 1}) as second:
        assert second.resumed
        assert second.partial("half") == [1, 2]
        second.finish({})
    assert not (study.path / "baseline/partial").exists()


def test_partial_work_of_other_options_is_dropped(study: StudyDirectory) -> None:
    with pytest.raises(UsageError), study.running("baseline", "x", options={"a": 1}) as first:
        first.save_partial("half", 1)
        raise UsageError("failed")
    assert study.manifest.steps["baseline"].error == "failed"
    with study.running("baseline", "x", options={"a": 2}) as second:
        assert second.partial("half") is None
        second.finish({})


def test_a_refused_run_keeps_the_result_of_a_step_that_was_done(study: StudyDirectory) -> None:
    run(study, "baseline", result=7)
    with pytest.raises(UsageError), study.running("baseline", "x", options={"typo": 1}):
        raise UsageError("--jobs", "no such file")
    assert study.manifest.steps["baseline"].state is StepState.DONE
    assert study.result("baseline")["value"] == 7
    with pytest.raises(UsageError), study.running("baseline", "x") as late:
        late.write("jobs.csv", "other")  # the result of before may rest on what was here
        raise UsageError("late")
    assert study.manifest.steps["baseline"].state is StepState.FAILED
    run(study, "baseline")
    with pytest.raises(EnergyError), study.running("baseline", "x"):
        raise EnergyError("the site", "does not answer")
    assert study.manifest.steps["baseline"].state is StepState.FAILED


def test_status_names_the_command_that_follows(
    study: StudyDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    def following() -> str:
        assert main(["study", "status", str(study.path)]) == 0
        return capsys.readouterr().out.splitlines()[-1].replace(str(study.path), "DIR")

    for step in ("baseline", "characterise", "model", "choose"):
        assert following() == f"next: senergy study {step} DIR"
        run(study, step)
    stages = ("shadow", "advise", "partition --design partition")
    for stage in stages:
        assert following() == f"next: senergy study deploy DIR --stage {stage}"
        with study.running("deploy", "x") as made:
            made.finish({"stage": stage.split()[0], "stopped": ""})
    assert following() == "next: senergy study validate DIR"
    run(study, "validate")
    assert following() == "next: senergy study report DIR"
    run(study, "choose", result=2)
    assert following() == "next: senergy study deploy DIR --undo"
    with study.running("deploy", "x") as made:
        made.finish({"stage": "partition", "stopped": "by hand"})
    assert following() == "next: senergy study validate DIR"
    with study.locked("test"):
        assert following().startswith("in use by ")


def test_outputs_of_an_earlier_run_that_are_not_written_again_are_removed(study: StudyDirectory) -> None:
    with study.running("baseline", "x") as first:
        first.write("old.csv", "1")
        first.finish({})
    run(study, "baseline")
    assert not (study.path / "baseline/old.csv").exists()


def test_a_step_without_a_result_fails(study: StudyDirectory) -> None:
    with pytest.raises(UsageError, match="ended without a result"), study.running("baseline", "x"):
        pass
    assert study.manifest.steps["baseline"].state is StepState.FAILED


def test_a_second_user_is_refused_by_name(study: StudyDirectory) -> None:
    second = StudyDirectory(study.path)
    assert second.holder() == ""
    with study.locked("model"):
        assert "model)" in second.holder()
        with pytest.raises(AlreadyRunningError, match=r"is in use by \S+ \(process \d+ on \S+: model\)"):
            run(second, "baseline")
    assert not run(second, "baseline")


def test_the_manifest_is_read_again_under_the_lock(study: StudyDirectory) -> None:
    second = StudyDirectory(study.path)
    run(study, "baseline")
    run(second, "model")  # `second` was opened before the baseline ran
    assert second.manifest.steps["baseline"].state is StepState.DONE


def test_a_newer_manifest_is_refused_and_an_older_one_upgraded(study: StudyDirectory) -> None:
    data = study.manifest.to_json()
    newer = json.dumps(data | {"format": FORMAT + 1, "release": "9.9"})
    with pytest.raises(UsageError, match=rf"has format {FORMAT + 1} \(release 9.9\).* use the newer release"):
        parse_manifest(newer, "study.json")
    older = json.dumps({"format": FORMAT - 1, "name": data["id"]})
    with pytest.raises(UsageError, match="which no upgrade exists for: begin a new study"):
        parse_manifest(older, "study.json", {})
    upgraded = parse_manifest(older, "study.json", {FORMAT - 1: lambda old: data | {"id": old["name"]}})
    assert upgraded == study.manifest


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": true}', '{"format": 1, "steps": 3}']
)
def test_a_damaged_manifest_is_one_line(study: StudyDirectory, text: str) -> None:
    (study.path / "study.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        StudyDirectory(study.path)
    assert len(caught.value.lines) == 1


def test_directories_that_cannot_be_used_are_errors(tmp_path: Path, study: StudyDirectory) -> None:
    with pytest.raises(NotFoundError, match="is not a study: begin one: senergy study init"):
        StudyDirectory(tmp_path)
    with pytest.raises(UsageError, match="contains a study already"):
        StudyDirectory.create(study.path, OBJECTIVE)
    with pytest.raises(ConfigError):
        StudyDirectory.create(tmp_path / "new", "[[target]]\nkpi = 5\n")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(EnergyError, match="name a directory"):
        StudyDirectory.create(tmp_path / "file", OBJECTIVE)


@pytest.mark.parametrize("how", ["mode", "link", "owner"])
def test_a_study_that_others_could_have_written_is_not_continued(study: StudyDirectory, how: str) -> None:
    run(study, "baseline")
    result = study.folder("baseline") / "result.json"
    if how == "mode":
        result.chmod(0o666)
    elif how == "link":
        result.rename(study.path / "elsewhere")
        result.symlink_to("../elsewhere")
    elif os.geteuid() == 0:
        os.chown(result, 65533, -1)
    else:
        pytest.skip("only root can give files away")
    with pytest.raises(ForbiddenError, match=r"baseline/result\.json"):
        run(study, "baseline")
    with pytest.raises(ForbiddenError, match=r"baseline/result\.json"):
        Deployment(study).undo("reason", "c")


@pytest.mark.parametrize(
    "entry",
    [
        {"outputs": {"../../victim": "0"}},
        {"outputs": {"/victim": "0"}},
        {"outputs": 1},
        {"outputs": []},
        {"inputs": {"objective": 1}},
        {"command": ["a"]},
        {"error": 5},
        {"started": 1e300},
    ],
)
def test_a_damaged_entry_of_the_manifest_is_refused(entry: dict[str, object]) -> None:
    data = StudyManifest().to_json()
    data["steps"]["baseline"] |= entry
    with pytest.raises(UsageError, match=r"study\.json: is damaged"):
        parse_manifest(json.dumps(data), "study.json")


def test_a_manifest_with_a_huge_number_is_refused() -> None:
    text = json.dumps(StudyManifest().to_json() | {"created": 10**400})
    with pytest.raises(UsageError, match=r"study\.json: is damaged"):
        parse_manifest(text, "study.json")


def test_a_result_that_was_changed_by_hand_is_refused(study: StudyDirectory) -> None:
    run(study, "baseline")
    (study.folder("baseline") / "result.json").write_text('{"value": 2}')
    with pytest.raises(UsageError, match="was changed after the step"):
        study.result("baseline")


@pytest.mark.parametrize(
    ("key", "value"),
    [("alternative", "x"), ("configuration", None), ("apply_command", [1]), ("switches", 1)],
)
def test_a_damaged_deployment_is_refused_in_one_line(study: StudyDirectory, key: str, value: object) -> None:
    state = DeploymentState(StudyAlternative("green"), "/etc/energy.toml", DeploymentStage.SHADOW)
    folder = study.folder("deploy")
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(state.document() | {key: value}))
    with pytest.raises(UsageError, match="is damaged"):
        Deployment(study).state()
