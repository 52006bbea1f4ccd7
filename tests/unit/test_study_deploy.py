"""Test the study step `deploy`, which changes the configuration of a site in stages.

The tests check the stages, the switchback (alternating periods with and without the change), undo,
interruption, and refused requests.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from slurm_energy.cli import study_sources
from slurm_energy.cli.main import main
from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError, UsageError
from slurm_energy.study.choice.alternatives import StudyAlternative, parse_alternative
from slurm_energy.study.data import site_data
from slurm_energy.study.data.jobs_table import jobs_table
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.effects import validation
from slurm_energy.study.goals.objective_document import objective_example
from slurm_energy.study.rollout.assignment import AssignmentDesign
from slurm_energy.study.rollout.deploy_plan import StageRequest
from slurm_energy.study.rollout.deploy_step import Deployment
from slurm_energy.study.rollout.stages import DeploymentStage, DeploymentTarget, stage_keys

SITE = '# site\n[controller]\nhistory_days = 100\n\n[tuning]\nmode = "off"\n'
GREEN = parse_alternative("green:tuning=energy,slowdown=3,ranking=zeus,off=yes")
START = datetime(2026, 11, 30, 0, 5, tzinfo=UTC)
ALL, SHADOW = DeploymentStage.ALL, DeploymentStage.SHADOW


def make_study(path: Path, *alternatives: StudyAlternative) -> StudyDirectory:
    study = StudyDirectory.create(path / "study", objective_example("test"))
    for step in ("baseline", "model"):
        with study.running(step, step) as run:
            run.finish({})
    choice = {
        "recommended": alternatives[0].name,
        "alternatives": [one.document() for one in (StudyAlternative("today"), *alternatives)],
        "partition_energy_joules": {"gpu": 3e9, "cpu": 1e9},
        "user_energy_joules": {"ann": 4.0, "bob": 3.0, "eve": 2.0, "joe": 1.0},
    }
    with study.running("choose", "choose") as run:
        run.finish(choice)
    (path / "energy.toml").write_text(SITE)
    return study


def nothing(command: Sequence[str]) -> list[str]:
    return []


def at(
    study: StudyDirectory, day: float = 0.0, apply: Callable[[Sequence[str]], list[str]] = nothing
) -> Deployment:
    return Deployment(study, (START + timedelta(days=day)).timestamp(), apply)


def request(path: Path, stage: DeploymentStage, **options: object) -> StageRequest:
    return StageRequest(stage, path / "energy.toml", **options)  # type: ignore[arg-type]


def test_stages_follow_each_other_and_change_only_their_keys(tmp_path: Path) -> None:
    study, file = make_study(tmp_path, GREEN), tmp_path / "energy.toml"
    with pytest.raises(UsageError, match="stage advise: comes after shadow: --stage shadow"):
        at(study).begin_stage(request(tmp_path, DeploymentStage.ADVISE), "c")
    at(study).begin_stage(request(tmp_path, SHADOW), "c")
    own = tomllib.loads(SITE)
    shadow = {"priority": {"mode": "shadow", "policy": "zeus"}, "power_saving": {"mode": "observe"}}
    assert tomllib.loads(file.read_text()) == own | shadow
    with pytest.raises(UsageError, match="stage all: comes after partition"):
        at(study).begin_stage(request(tmp_path, ALL), "c")
    assert study.manifest.steps["deploy"].state == "done"
    at(study).begin_stage(request(tmp_path, DeploymentStage.ADVISE), "c")
    at(study).begin_stage(request(tmp_path, DeploymentStage.PARTITION, partitions=("gpu",)), "c")
    assert tomllib.loads(file.read_text()) == own | {
        "tuning": {"mode": "off", "slowdown_limit_percent": 3.0, "partition": {"gpu": "on"}},
        "defaults": {"partition": {"gpu": "energy"}},
        "priority": {"mode": "portable", "policy": "zeus", "partitions": ["gpu"]},
        "power_saving": {"mode": "on", "exclude_partitions": ["cpu"]},
    }
    state = at(study).begin_stage(request(tmp_path, ALL), "c")
    assert tomllib.loads(file.read_text())["defaults"] == {"policy": "energy"}
    assert [switch.stage for switch in state.switches] == ["shadow", "advise", "partition", "all"]
    at(study).undo("enough", "c")
    assert file.read_text() == SITE
    assert not study.staleness("deploy")


def test_a_switchback_sets_each_period_and_ends_with_the_sites_configuration(tmp_path: Path) -> None:
    study, file = make_study(tmp_path, GREEN), tmp_path / "energy.toml"
    wanted = request(tmp_path, ALL, design=AssignmentDesign.SWITCHBACK, days=6, seed=5, skip_stages=True)
    state = at(study, -1).begin_stage(wanted, "c")
    assert file.read_text() == SITE
    assert state.assignment is not None
    for day, period in enumerate(state.assignment.periods):
        state = at(study, day).tick("c")
        assert (file.read_text() != SITE) == period.is_treated
        assert state.switches[-1].is_treated == period.is_treated
    state = at(study, 6).tick("c")
    assert file.read_text() == SITE
    starts = [(START + timedelta(days=day, hours=5)).timestamp() for day in range(-1, 7)]
    jobs = jobs_table(job_id=list(map(str, range(8))), start_s=starts)
    drawn = ["treated" if period.is_treated else "control" for period in state.assignment.periods]  # type: ignore[union-attr]
    assert state.with_arms(jobs).arm.tolist() == ["", *drawn, ""]


def test_jobs_of_a_late_switch_belong_to_no_arm(tmp_path: Path) -> None:
    study = make_study(tmp_path, GREEN)
    wanted = request(tmp_path, ALL, design=AssignmentDesign.SWITCHBACK, days=4, seed=5, skip_stages=True)
    at(study, -1).begin_stage(wanted, "c")
    state = at(study, -1).state()
    assert state is not None and state.assignment is not None
    day = next(i for i, period in enumerate(state.assignment.periods) if period.is_treated)
    state = at(study, day + 0.5).tick("c")
    morning, evening = ((START + timedelta(days=day + part)).timestamp() for part in (0.25, 0.75))
    assert state.arm(morning) == ""
    assert state.arm(evening) == "treated"


def test_a_repeated_stage_keeps_its_arms_and_a_failed_reload_is_repeated(tmp_path: Path) -> None:
    study = make_study(tmp_path, parse_alternative("gentle:tuning=energy"))
    wanted = request(tmp_path, ALL, design=AssignmentDesign.USERS, skip_stages=True)
    reloads: list[Sequence[str]] = []

    def failing(command: Sequence[str]) -> list[str]:
        reloads.append(command)
        raise UnavailableError("systemctl", "no answer")

    with pytest.raises(UnavailableError):
        at(study, apply=failing).begin_stage(wanted, "c")
    first = at(study).state()
    assert first is not None and first.assignment is not None and first.switches == ()
    state = at(study).begin_stage(wanted, "c")
    assert state.assignment == first.assignment
    assert len(state.switches) == len(reloads) == 1
    users = tomllib.loads((tmp_path / "energy.toml").read_text())["defaults"]["user"]
    assert users == dict.fromkeys(first.assignment.treated, "energy")
    assert len(users) == 2


def test_a_stage_with_another_configuration_is_refused_until_the_undo(tmp_path: Path) -> None:
    study, file, other = make_study(tmp_path, GREEN), tmp_path / "energy.toml", tmp_path / "other.toml"
    other.write_text(SITE)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    at(study).begin_stage(request(tmp_path, SHADOW), "c")
    advise = StageRequest(DeploymentStage.ADVISE, other)
    with pytest.raises(UsageError, match=r"other\.toml: is not the file that the study has changed.*energy"):
        at(study).begin_stage(advise, "c")
    at(study).begin_stage(StageRequest(DeploymentStage.ADVISE, link), "c")
    at(study).undo("stop", "c")
    assert (file.read_text(), other.read_text()) == (SITE, SITE)
    at(study).begin_stage(StageRequest(SHADOW, other), "c")
    at(study).undo("stop", "c")
    assert (file.read_text(), other.read_text()) == (SITE, SITE)


def test_a_stage_that_is_not_in_force_has_no_arms(tmp_path: Path) -> None:
    study = make_study(tmp_path, GREEN)
    wanted = request(tmp_path, DeploymentStage.PARTITION, partitions=("gpu",), skip_stages=True)
    state = at(study).begin_stage(wanted, "c")
    later = (START + timedelta(days=2)).timestamp()
    assert [state.arm(later, name) for name in ("gpu", "cpu", "new")] == ["treated", "control", ""]

    def failing(command: Sequence[str]) -> list[str]:
        raise UnavailableError("systemctl", "no answer")

    with pytest.raises(UnavailableError):
        at(study, 1, failing).begin_stage(request(tmp_path, ALL), "c")
    unfinished = at(study).state()
    assert unfinished is not None and unfinished.stage is ALL
    assert unfinished.arm(later, "cpu") == ""
    assert at(study, 1).begin_stage(request(tmp_path, ALL), "c").arm(later, "cpu") == "treated"


def test_undo_works_although_the_choice_is_stale(tmp_path: Path) -> None:
    study = make_study(tmp_path, GREEN)
    at(study).begin_stage(request(tmp_path, SHADOW), "c")
    with study.running("baseline", "again") as run:
        run.finish({"other": 1})
    with pytest.raises(EnergyError, match="stale"):
        at(study).begin_stage(request(tmp_path, DeploymentStage.ADVISE), "c")
    state = at(study).undo("limit broken", "c")
    assert state is not None and state.stopped == "limit broken"
    assert (tmp_path / "energy.toml").read_text() == SITE


@pytest.mark.parametrize(
    ("lever", "stage", "expected"),
    [
        ("budget=800", "shadow", {"budget": {"mode": "observe"}, "watts": 800.0}),
        ("budget=800", "partition", {"budget": {"mode": "enforce"}, "watts": 600.0}),
        ("deferral=cheapest", "partition", {}),
        ("deferral=cheapest", "all", {"deferral": {"policy": "cheapest"}}),
        ("tuning=edp", "shadow", {}),
        ("tuning=edp", "advise", {"defaults": {"policy": "edp"}, "tuning": {"mode": "advise"}}),
    ],
)
def test_keys_of_levers(lever: str, stage: str, expected: dict[str, object]) -> None:
    target = (
        DeploymentTarget(("gpu",), ("cpu",), power_share=0.75) if stage == "partition" else DeploymentTarget()
    )
    keys = stage_keys(parse_alternative(f"a:{lever}"), DeploymentStage(stage), target, {})
    values: dict[str, object] = {}
    for change in keys.changes:
        if change.is_list_table:
            values["watts"] = change.value["watts"]
        else:
            values.setdefault(change.path[0], {})[change.path[1]] = change.value  # type: ignore[index]
    assert values == expected
    assert keys.changes or keys.remarks


def test_a_budget_of_the_site_is_never_lowered_to_observation() -> None:
    keys = stage_keys(
        parse_alternative("a:budget=800"), SHADOW, DeploymentTarget(), {"budget": {"mode": "enforce"}}
    )
    assert not keys.changes
    assert "enforces budgets already" in keys.remarks[0]


def test_a_budget_that_the_site_only_observes_is_never_enforced(tmp_path: Path) -> None:
    study, file = make_study(tmp_path, parse_alternative("a:budget=800")), tmp_path / "energy.toml"
    own = '[budget]\nmode = "observe"\n\n[[budgets]]\nname = "row-1"\nnodes = "n[1-4]"\nwatts = 1000\n'
    file.write_text(own)
    at(study).begin_stage(request(tmp_path, SHADOW), "c")
    with pytest.raises(UsageError, match="would also enforce budgets that the site does not enforce: row-1"):
        at(study).begin_stage(request(tmp_path, ALL, skip_stages=True), "c")
    assert tomllib.loads(file.read_text())["budget"]["mode"] == "observe"
    at(study).undo("stop", "c")
    file.write_text(own.replace("observe", "enforce"))
    at(study).begin_stage(request(tmp_path, ALL, skip_stages=True), "c")
    assert [table["name"] for table in tomllib.loads(file.read_text())["budgets"]] == ["row-1", "study"]


def test_only_tuning_can_be_limited_to_users(tmp_path: Path) -> None:
    study = make_study(tmp_path, GREEN)
    wanted = request(tmp_path, ALL, design=AssignmentDesign.USERS, skip_stages=True)
    with pytest.raises(UsageError, match="priority, power_saving cannot be limited to users"):
        at(study).begin_stage(wanted, "c")
    assert (tmp_path / "energy.toml").read_text() == SITE


def test_command_line_shows_the_change_begins_and_takes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_study(tmp_path, GREEN)
    file = tmp_path / "energy.toml"
    deploy = ["study", "deploy", str(tmp_path / "study")]
    stage = [*deploy, "--stage", "shadow", "--config", str(file), "--apply-command", "true"]
    assert main([*stage, "--dry-run"]) == 0
    assert '+mode = "shadow"  # set by senergy study' in capsys.readouterr().out
    assert file.read_text() == SITE
    switchback = [*deploy, "--stage", "all", "--config", str(file), "--skip-stages", "--dry-run"]
    assert main([*switchback, "--design", "switchback", "--days", "14"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("change on treated days:\n")
    assert '+policy = "energy"  # set by senergy study' in shown
    assert main([*switchback, "--days", "14"]) == 2
    assert "--days: belongs to a switchback: --design switchback" in capsys.readouterr().err
    assert main([*stage, "--yes"]) == 0
    assert "in force now: decisions without effect" in capsys.readouterr().out
    assert main([*deploy, "--tick"]) == 2
    assert "there is no switchback" in capsys.readouterr().err
    assert main([*deploy, "--undo", "--json"]) == 0
    assert file.read_text() == SITE
    assert main([*deploy, "--undo", "--seed", "3"]) == 2
    assert "--seed: belongs to --stage" in capsys.readouterr().err
    assert main([*deploy, "--tick", "--yes"]) == 2
    assert "--yes: belongs to --stage" in capsys.readouterr().err
    assert main([*stage, "--seed", "3"]) == 2
    assert "--seed: nothing is drawn" in capsys.readouterr().err
    assert main([*deploy, "--stage", "partition", "--partition", "gpu", "--seed", "3", "--dry-run"]) == 2
    assert "--seed: nothing is drawn" in capsys.readouterr().err
    assert main([*stage, "--yes", "--reason", "spring"]) == 2
    assert "--reason: belongs to --undo" in capsys.readouterr().err


def test_a_policy_that_does_not_exist_is_refused_before_anything_changes(tmp_path: Path) -> None:
    study = make_study(tmp_path, parse_alternative("odd:ranking=fastest"))
    wanted = request(tmp_path, ALL, design=AssignmentDesign.SWITCHBACK, days=4, skip_stages=True)
    with pytest.raises(EnergyError, match=r"energy.toml:\d+: priority.policy: .*fastest"):
        at(study, -1).begin_stage(wanted, "c")
    assert (tmp_path / "energy.toml").read_text() == SITE
    assert list((study.path / "deploy").iterdir()) == []


class Crash(BaseException):
    """Exception that simulates the sudden end of the process."""


@pytest.mark.soak
def test_a_crash_before_any_write_is_repaired_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_study(tmp_path / "0", GREEN)
    real, left = os.replace, [0]

    def replace(source: str, target: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for write in range(1, 20):
        folder = shutil.copytree(tmp_path / "0", tmp_path / str(write))
        study, file = StudyDirectory(folder / "study"), folder / "energy.toml"
        crashes = 0
        for action in ("stage", "undo", "stage"):
            for left[0] in (write, 0):
                try:
                    if action == "stage":
                        at(study).begin_stage(request(folder, SHADOW), "c")
                    else:
                        at(study).undo("enough", "c")
                except Crash:
                    crashes += 1
            state = at(study).state()
            assert state is not None and state.is_active == (action == "stage")
            assert ("shadow" in file.read_text()) == state.is_active
        at(study).undo("enough", "c")
        assert file.read_text() == SITE
        assert StudyDirectory(study.path).manifest.steps["deploy"].state == "done"
        if not crashes:
            break
    assert 7 < write < 19


def test_a_failing_apply_command_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_study(tmp_path, GREEN)
    arguments = ["study", "deploy", str(tmp_path / "study"), "--stage", "shadow", "--yes"]
    code = main([*arguments, "--config", str(tmp_path / "energy.toml"), "--apply-command", "false"])
    assert code == 4
    assert capsys.readouterr().err.strip() == "senergy: error: false: exit status 1"


def test_validation_reads_the_site_from_a_week_before_the_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path, GREEN)
    at(study).begin_stage(request(tmp_path, ALL, skip_stages=True), "c")
    starts = []

    def read(client: object, start_s: float, end_s: float) -> None:
        starts.append(start_s)
        raise UnavailableError("sacct", "no answer")

    monkeypatch.setattr(site_data, "read_site", read)
    monkeypatch.setattr(validation, "read_baseline", lambda study: None)
    monkeypatch.setattr(study_sources.connection, "connect", lambda args: None)
    monkeypatch.setattr(study_sources, "datetime", AfterTheDeployment)
    assert main(["study", "validate", str(study.path)]) == 4
    assert starts == [(START - timedelta(days=7)).timestamp()]


class AfterTheDeployment(datetime):
    """A clock 60 days after the begin of the deployment."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return (START + timedelta(days=60)).astimezone(tz).replace(tzinfo=tz)


def test_a_preview_writes_nothing_through_a_link(tmp_path: Path) -> None:
    study, elsewhere = make_study(tmp_path, GREEN), tmp_path / "elsewhere"
    elsewhere.mkdir()
    study.folder("deploy").symlink_to(elsewhere)
    (elsewhere / "own.toml").write_text("of another program")
    with pytest.raises(ForbiddenError, match="is a symbolic link"):
        at(study).preview(request(tmp_path, SHADOW))
    assert (elsewhere / "own.toml").read_text() == "of another program"
