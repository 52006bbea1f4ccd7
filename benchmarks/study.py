"""Benchmark of energy studies: estimated savings are compared with the true savings.

Each repetition simulates the site of `senergy lab weeks` with four emulated nodes for four weeks and
measures the baseline. It then deploys tuning in one of two designs: on days drawn at random (switchback), or
in one partition. It simulates four more weeks and validates each week. All steps are command lines. The true
saving compares the same jobs with and without tuning. With --trace, half of the repetitions use the job
lengths and sizes of a trace. The other half use the mix of jobs of the thesis. Without --trace, all
repetitions use this mix.

There are two special conditions. A placebo is the same deployment on a site on which the settings have no
effect. A fault is a deployment that starves one account. It covers the whole cluster, on all days or as a
switchback of single days. A fault must be undone, and energy.toml must then be as before.

With --model, each repetition also runs the steps characterise, model and choose. It states the replay error
of the twin (the simulated site) on days that did not calibrate the twin. Without
--model, the deployed alternative is given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from claims import Claim, at_least, at_most, publish

from slurm_energy.cli.main import main as senergy
from slurm_energy.study.choice.alternatives import StudyAlternative, parse_alternative
from slurm_energy.study.directory import StudyDirectory
from slurm_energy.study.rollout.deploy_step import Deployment
from slurm_energy_lab.study_weeks.site_directory import SiteDirectory
from slurm_energy_lab.study_weeks.study_site import SiteMode, tuned_mode

BASELINE_DAYS = DEPLOYED_DAYS = 28
FIRST_DAY, DEPLOY_DAY = date(2026, 9, 7), "2026-10-05"
ALTERNATIVE = "gentle:tuning=energy,slowdown=5"
OBJECTIVE = """
title = "benchmark"
[[target]]
kpi = "energy_per_work_kwh"
change_percent = -5.0
[[limit]]
kpi = "worst_wait_s"
worse_percent = 100.0
"""
REPLAY_TARGETS = {"energy_kwh": 0.08, "makespan_s": 0.08, "mean_jct_s": 0.15}


@dataclass(frozen=True)
class Trial:
    """One repetition of the benchmark of energy studies.

    It is given by a seed, a trace, the design of the deployment, and a special condition (`placebo`, `fault`
    or empty).
    """

    seed: int
    trace: Path | None
    design: str
    plant: str = ""
    with_model: bool = False


@dataclass(frozen=True)
class TrialResult:
    """Result of one simulated energy study: estimated effect, verdict, and true effect.

    The benchmark repeats the study many times; each result describes one repetition.
    """

    trial: Trial
    change: float
    low: float
    high: float
    truth: float
    verdict: str
    broken: list[str]
    alarm_weeks: list[int]
    undone_after_days: int | None
    detectable: float | None
    replay: dict[str, float] = field(default_factory=dict)

    @property
    def covers(self) -> bool:
        return self.low <= self.truth <= self.high

    def to_json(self) -> dict[str, Any]:
        shown = {name: value for name, value in vars(self).items() if name != "trial"}
        plant = self.trial.plant or "none"
        trace = self.trial.trace.name if self.trial.trace else "thesis"
        return {"seed": self.trial.seed, "mix": trace, "design": self.trial.design, "plant": plant, **shown}


def run_trial(trial: Trial) -> TrialResult:
    """Run one repetition of the benchmark in a separate temporary directory."""
    os.fsync = lambda fd: None
    out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with tempfile.TemporaryDirectory(prefix="senergy-study-") as name, out, err:
        return _run(trial, Path(name))


def _run(trial: Trial, folder: Path) -> TrialResult:
    site = SiteDirectory.create(folder / "site", trial.seed, FIRST_DAY, trial.trace)
    site.run(BASELINE_DAYS)
    config = folder / "site" / "energy.toml"
    own = config.read_text()
    study = str(folder / "study")
    (folder / "objective.toml").write_text(OBJECTIVE)
    _step("init", study, f"--objective={folder}/objective.toml")
    _step("baseline", study, *_files(site))
    replay = _modelled(study) if trial.with_model else _given(study)
    _step("deploy", study, *_deployment(trial), f"--config={config}")
    fault = "physics" if trial.plant == "fault" else None
    undone_after, alarm_weeks = None, []
    for week in range(1, DEPLOYED_DAYS // 7 + 1):
        site.run(7, lambda now: _tick(study, now), fault, has_effect=trial.plant != "placebo")
        words = [] if trial.plant == "fault" else ["--no-undo"]
        _step("validate", study, *_files(site), *words, permitted=(0, 1))
        result = StudyDirectory(Path(study)).result("validate")
        if any(one["verdict"] == "broken" for one in result["limits"]):
            alarm_weeks.append(week)
        if result["undone"]:
            undone_after = 7 * week
            break
    effect = result["targets"][0]["effect"]
    return TrialResult(
        trial,
        effect["change"],
        effect["low"],
        effect["high"],
        _truth(trial, site),
        result["targets"][0]["verdict"],
        [f"{one['kpi']}: {one['reason']}" for one in result["limits"] if one["verdict"] == "broken"],
        alarm_weeks,
        undone_after if config.read_text() == own else None,
        StudyDirectory(Path(study)).result("baseline")["power"][0]["detectable_switchback"],
        replay,
    )


def replay_error(trial: Trial) -> dict[str, float]:
    """Return the error of the twin for each KPI, measured in one week of a baseline of four weeks.

    The twin is a simulator of the site. The week is held out, so that it does not calibrate the twin.
    """
    os.fsync = lambda fd: None
    out = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory(prefix="senergy-study-") as name, out:
        folder = Path(name)
        site = SiteDirectory.create(folder / "site", trial.seed, FIRST_DAY, trial.trace)
        site.run(BASELINE_DAYS)
        (folder / "objective.toml").write_text(OBJECTIVE)
        study = str(folder / "study")
        _step("init", study, f"--objective={folder}/objective.toml")
        _step("baseline", study, *_files(site))
        return _twin_errors(study)


def _step(action: str, study: str, *words: str, permitted: tuple[int, ...] = (0,)) -> None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = senergy(["study", action, study, *words])
    if status not in permitted:
        raise RuntimeError(f"senergy study {action}: {status}: {errors.getvalue()}")


def _files(site: SiteDirectory) -> list[str]:
    return [f"--{name}={site.path}/{name}-{site.days}.csv" for name in ("jobs", "energy")]


def _deployment(trial: Trial) -> list[str]:
    common = ["--skip-stages", "--yes", "--apply-command=true", "--alternative=gentle"]
    if trial.design == "switchback":
        days = [f"--first-day={DEPLOY_DAY}", f"--days={DEPLOYED_DAYS}", f"--seed={trial.seed}"]
        return [*common, "--stage=all", "--design=switchback", "--at=2026-10-04T12:00", *days]
    if trial.design == "none":
        return [*common, "--stage=all", "--at=2026-10-05T00:00"]
    design = [f"--design={trial.design}", f"--seed={trial.seed}"]
    return [*common, "--stage=partition", "--at=2026-10-05T00:00", *design]


def _tick(study: str, now: datetime) -> None:
    deployment = Deployment(StudyDirectory(Path(study)), now.timestamp(), lambda _: [])
    state = deployment.state()
    if state is not None and state.assignment is not None and state.assignment.periods:
        deployment.tick("tick")


def _modelled(study: str) -> dict[str, float]:
    """Run the steps of a study between the baseline and the deployment.

    The steps are characterise, model and choose. Return, for each key performance indicator (KPI), the
    replay error of the twin (the simulated site).
    """
    _step("characterise", study)
    replay = _twin_errors(study)
    _step("choose", study, f"--alternative={ALTERNATIVE}", "--seeds=3", "--processes=1")
    return replay


def _twin_errors(study: str) -> dict[str, float]:
    """Run the study step `model`, and return the replay error of the digital twin by KPI."""
    _step("model", study, "--nodes=ampere=2", "--nodes=hopper=2", "--accept-error")
    errors = {one["kpi"]: one["error"] for one in StudyDirectory(Path(study)).result("model")["errors"]}
    return {name: abs(errors[name]) for name in REPLAY_TARGETS if errors.get(name) is not None}


def _given(study: str) -> dict[str, float]:
    """Store example results of the steps `model` and `choose`, so that the deployment can be tested.

    A study can then deploy an alternative (a combination of energy-saving measures) without a digital twin.
    """
    directory = StudyDirectory(Path(study))
    alternatives = [StudyAlternative("today").document(), parse_alternative(ALTERNATIVE).document()]
    choice = {
        "recommended": "gentle",
        "alternatives": alternatives,
        "partition_energy_joules": {"ampere": 1.0, "hopper": 2.0},
        "user_energy_joules": {},
    }
    for step, result in (("model", {}), ("choose", choice)):
        with directory.running(step, "given") as run:
            run.finish(result)
    return {}


def _truth(trial: Trial, site: SiteDirectory) -> float:
    if trial.plant == "placebo":
        return 0.0
    mode = tuned_mode()
    if trial.design != "partition":
        return site.true_saving(mode, BASELINE_DAYS)
    state = Deployment(StudyDirectory(site.path.parent / "study")).state()
    assert state is not None
    assert state.assignment is not None
    partition = state.assignment.treated[0]
    return site.true_job_saving(SiteMode(mode.tuned, "energy"), BASELINE_DAYS, partition)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20, help="repetitions of each kind (20)")
    parser.add_argument("--trace", type=Path, help="CSV with columns length (hours) and cpus")
    parser.add_argument("--seed", type=int, default=100, help="seed of the first repetition (100)")
    parser.add_argument("--plant", choices=("none", "placebo", "fault"), help="only these repetitions")
    parser.add_argument("--design", choices=("switchback", "partition", "none"), help="only this design")
    parser.add_argument("--model", action="store_true", help="also run characterise, model and choose")
    parser.add_argument("--replay", action="store_true", help="only the replay error of the twin")
    parser.add_argument("--processes", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", help="write all claims to this file")
    args = parser.parse_args()
    trials = []
    for number in range(args.repetitions):
        trace = args.trace if number % 2 else None
        seed = args.seed + number
        trials += [Trial(seed, trace, "switchback", plant, args.model) for plant in ("", "placebo")]
        trials += [Trial(seed, trace, "partition", plant, args.model) for plant in ("", "placebo")]
        trials += [Trial(seed, trace, design, "fault") for design in ("none", "switchback")]
    if args.plant:
        trials = [trial for trial in trials if (trial.plant or "none") == args.plant]
    if args.design:
        trials = [trial for trial in trials if trial.design == args.design]
    if args.replay:
        checked = [trial for trial in trials if trial.design == "switchback" and not trial.plant]
        with ProcessPoolExecutor(args.processes) as pool:
            return publish(_replay_claims(list(pool.map(replay_error, checked))), args.json)
    results = []
    with ProcessPoolExecutor(args.processes) as pool:
        for result in pool.map(run_trial, trials):
            print(json.dumps(result.to_json()), flush=True)
            results.append(result)
    return publish(_claims(results, args.repetitions), args.json)


def _claims(results: list[TrialResult], count: int) -> list[Claim]:
    least = 0.9 * count
    claims = []
    for design in ("switchback", "partition"):
        own = [one for one in results if one.trial.design == design]
        real = [one for one in own if not one.trial.plant]
        placebo = [one for one in own if one.trial.plant == "placebo"]
        if real:
            width = round(median(one.high - one.low for one in real), 4)
            bias = round(fmean(one.change - one.truth for one in real), 4)
            details: dict[str, float | None] = {"median_width": width, "bias": bias, "repetitions": count}
            if design == "switchback":
                ratios = [(one.high - one.low) / 2 / one.detectable for one in real if one.detectable]
                details["half_width_to_detectable"] = round(median(ratios), 2)
            covered = sum(one.covers for one in real)
            claims.append(at_least(f"{design}_covers_the_true_saving", covered, least) | details)
        if placebo:
            quiet = sum(one.verdict == "no effect" for one in placebo)
            alarms = {
                "false_alarms": sum(bool(one.broken) for one in placebo),
                "false_alarms_in_any_week": sum(bool(one.alarm_weeks) for one in placebo),
            }
            claims.append(at_least(f"{design}_placebo_no_effect", quiet, least) | alarms)
    for design, needed in (("none", float(count)), ("switchback", least)):
        faults = [one for one in results if (one.trial.plant, one.trial.design) == ("fault", design)]
        if faults:
            days = [one.undone_after_days for one in faults if one.undone_after_days is not None]
            details = {"median_days": median(days) if days else None}
            name = "starved_account_undone" + ("" if design == "none" else f"_{design}")
            claims.append(at_least(name, len(days), needed) | details)
    return claims + _replay_claims([one.replay for one in results if one.replay])


def _replay_claims(replays: list[dict[str, float]]) -> list[Claim]:
    claims = []
    for name, target in REPLAY_TARGETS.items():
        errors = [replay[name] for replay in replays if name in replay]
        if errors:
            details = {"median": round(median(errors), 4), "weeks": len(errors)}
            claims.append(at_most(f"twin_{name}_max_error_held_out", max(errors), target) | details)
    return claims


if __name__ == "__main__":
    sys.exit(main())
