"""Benchmark of the accuracy and speed of run time predictions from the history of runs.

The jobs are real jobs and those of a synthetic trace. They are replayed in time order. Each job is predicted
at submission from the runs that have ended by then, and is learned at its end. The predictor is compared
with two baselines. The first is the user's time limit. The second is the mean of the user's last two jobs,
at most the limit (Tsafrir, Etsion, Feitelson 2007, the usual baseline). For a job without a prediction, the
limit is used, with the range from 0 to the limit. The few constants of the predictor were chosen on Eagle's
jobs and on 12,000 jobs of seed 4. 1,000 jobs of NREL's Eagle are read from --eagle if the file exists.

Prints these claims for each trace:
- `CLAIM history_limit_*`: median absolute error, divided by the error of the time limit;
- `history_last_two_*`: median absolute error, divided by the error of the last two runs;
- `history_coverage_*`: share of jobs within the predicted range of 5 to 95 %.

Prints these claims about CPU time:
- `history_one_question`: time of one request, divided by 1 ms;
- `history_queue`: time for 100,000 pending jobs, no two alike, divided by 1 s;
- `history_bounds`: time for the lower bounds of these jobs, divided by 2 s.

In the printed table, the line `with lower bound` shows the errors of the time by which the queue engine
ranks jobs. The value `in order` is the fraction of pairs of jobs in which the shorter job is predicted to be
shorter.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from claims import publish

from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun, RunEnding
from slurm_energy.oracle.history.lower_bounds import bounds_many
from slurm_energy.oracle.history.queue_forecast import predict_many
from slurm_energy.oracle.history.similarity import ATTRIBUTES
from slurm_energy.oracle.nameplate import NO_LIMIT_S
from slurm_energy.oracle.prediction import PredictionRequest

QUEUE = 100_000
SHOWN = {
    "limit": "time limit",
    "last_two": "mean of last two",
    "predicted": "history",
    "ranked": "with lower bound",
}


@dataclass(frozen=True)
class Job:
    """A job of a trace: its submission time and its run."""

    submit: float
    run: ObservedRun


@dataclass(frozen=True)
class Outcome:
    """Predicted and actual seconds of a job."""

    true: float
    limit: float
    last_two: float
    predicted: float
    low: float
    high: float
    ranked: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50_000, help="length of the synthetic trace")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--eagle", type=Path, default=Path("../shared/data/traces/sample_eagle_data.csv"))
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    claims = []
    if arguments.eagle.exists():
        claims += evaluate("eagle", replay(eagle(arguments.eagle)))
    else:
        print(f"{arguments.eagle} does not exist: the real jobs are skipped")
    jobs = synthetic(arguments.jobs, arguments.seed)
    claims += evaluate("synthetic", replay(jobs))
    nameless = [replace(job, run=replace(job.run, fingerprint=None)) for job in jobs]
    claims += evaluate("synthetic_without_fingerprints", replay(nameless))
    claims += speed(jobs)
    return publish(claims, arguments.json)


def replay(jobs: Iterable[Job]) -> list[Outcome]:
    """Predict the run time of each job, and return the predictions with the actual times.

    A prediction uses only the runs that ended before the submission of the job.
    """
    history = History()
    ending: list[Any] = []
    last: defaultdict[Any, deque[Any]] = defaultdict(lambda: deque(maxlen=2))
    oracle, outcomes = HistoryOracle(history, _Watts()), []
    for number, job in enumerate(sorted(jobs, key=lambda job: job.submit)):
        while ending and ending[0][0] <= job.submit:
            run = heapq.heappop(ending)[2]
            history.learn(run)
            last[run.user].append(run.duration_s)
        outcomes.append(outcome(oracle, history, job.run, last[job.run.user]))
        heapq.heappush(ending, (job.run.end, number, job.run))
    return outcomes


def outcome(oracle: HistoryOracle, history: History, run: ObservedRun, last: deque[float]) -> Outcome:
    limit = run.time_limit_s or 0.0
    two = min(statistics.mean(last), limit) if last else limit
    attributes = {name: getattr(run, name) for name in ATTRIBUTES}
    prediction = oracle.predict(PredictionRequest(**attributes, submitted_unix_s=run.end))
    if prediction is None:
        return Outcome(run.duration_s, limit, two, limit, 0.0, limit, limit / 2)
    predicted = prediction.duration_s
    return Outcome(
        run.duration_s,
        limit,
        two,
        predicted.mean,
        predicted.low,
        predicted.high,
        ranking_time(history, attributes, predicted.mean),
    )


def ranking_time(history: History, attributes: dict[str, Any], predicted_s: float) -> float:
    """Return the run time by which the queue ranks a job.

    The run time is the predicted time, or the lower bound of the run time if the lower bound is longer. The
    misprediction factor (the ratio of actual to predicted times of a user's jobs) is not applied.
    """
    columns = {name: [value] for name, value in attributes.items()}
    limit = attributes["time_limit_s"] or NO_LIMIT_S
    return max(predicted_s, float(bounds_many(history, columns, [limit], [1.0], 0.0).time_s[0]))


def in_order(outcomes: list[Outcome], name: str) -> float:
    """Return how often the predictions put two jobs into the right order of their run times.

    The result is the share of 100,000 random pairs of jobs. A tie of the predictions counts as half right.
    """
    chance, right, counted = random.Random(1), 0.0, 0
    while counted < 100_000:
        one, other = chance.choice(outcomes), chance.choice(outcomes)
        if one.true != other.true:
            difference = (getattr(one, name) - getattr(other, name)) * (one.true - other.true)
            right += 1.0 if difference > 0 else 0.5 if difference == 0 else 0.0
            counted += 1
    return right / counted


class _Watts:
    """Predictor (oracle) that predicts a power of one watt for every job.

    It is used for traces without power, of which only the times are evaluated.
    """

    def predict(self, request: PredictionRequest) -> Any:
        from slurm_energy.oracle.prediction import Estimate, Prediction, PredictionSource

        one = Estimate(1.0, 1.0, 1.0)
        return Prediction(one, one, one, PredictionSource.NAMEPLATE, "one watt")


def evaluate(trace: str, outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Print the prediction errors for a trace, and return the claims (comparisons with targets)."""
    errors = {
        name: statistics.median(abs(getattr(one, name) - one.true) for one in outcomes) for name in SHOWN
    }
    means = {name: statistics.mean(abs(getattr(one, name) - one.true) for one in outcomes) for name in SHOWN}
    inside = sum(one.low <= one.true <= one.high for one in outcomes) / len(outcomes)
    print(f"{trace}: {len(outcomes)} jobs, absolute error of run time in s")
    for name, text in SHOWN.items():
        order = in_order(outcomes, name)
        print(f"  {text:<17} median {errors[name]:10.1f}   mean {means[name]:10.1f}   in order {order:.1%}")
    return [
        claim(f"history_limit_{trace}", errors["predicted"] / errors["limit"], 0.7),
        claim(f"history_last_two_{trace}", errors["predicted"] / errors["last_two"], 1.0),
        {
            "claim": f"history_coverage_{trace}",
            "ratio": round(inside, 4),
            "target": "0.85-0.95",
            "holds": 0.85 <= inside <= 0.95,
        },
    ]


def speed(jobs: list[Job]) -> list[dict[str, Any]]:
    """Measure the CPU time of a prediction from the history of earlier runs.

    The history contains all runs of a trace.
    """
    history = History()
    for job in sorted(jobs, key=lambda job: job.run.end):
        history.learn(job.run)
    oracle, chance = HistoryOracle(history), random.Random(1)
    questions = [
        PredictionRequest(**{name: getattr(job.run, name) for name in ATTRIBUTES}) for job in jobs[:2000]
    ]
    for request in questions:
        oracle.predict(request)
    began = time.process_time()
    for request in questions:
        oracle.predict(request)
    one = (time.process_time() - began) / len(questions)
    rows = [asdict(jobs[chance.randrange(len(jobs))].run) for _ in range(QUEUE)]
    for number, row in enumerate(rows):  # half of them of new programs, and no two alike
        row["cpus"] = number
        if number % 2:
            row |= {"name": f"new{number}", "fingerprint": None}
    columns = {name: [row[name] for row in rows] for name in ATTRIBUTES}
    predict_many(history, columns)
    times = []
    for _ in range(3):
        began = time.process_time()
        predict_many(history, columns)
        times.append(time.process_time() - began)
    bounds, limits = [], [row["time_limit_s"] for row in rows]
    for _ in range(3):
        began = time.process_time()
        bounds_many(history, columns, limits, [500.0] * len(rows), 0.0)
        bounds.append(time.process_time() - began)
    return [
        claim("history_one_question", one / 1e-3, 1.0),
        claim("history_queue", min(times), 1.0),
        claim("history_bounds", min(bounds), 2.0),
    ]


def claim(name: str, ratio: float, most: float) -> dict[str, Any]:
    return {"claim": name, "ratio": round(ratio, 4), "target": f"<={most:g}", "holds": ratio <= most}


def eagle(path: Path) -> list[Job]:
    """Read a sample of real jobs of the system Eagle from a CSV file."""
    jobs = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            run = ObservedRun(
                datetime.fromisoformat(row["end_time"]).timestamp(),
                float(row["run_time"]),
                RunEnding.of_state(row["state"]),
                user=row["user"],
                account=row["account"],
                partition=row["partition"],
                name=row["name"],
                nodes=int(row["nodes_req"]),
                cpus=int(row["processors_req"]),
                gpus=int(row["gpus_req"]),
                time_limit_s=float(row["wallclock_req"]),
            )
            jobs.append(Job(datetime.fromisoformat(row["submit_time"]).timestamp(), run))
    return jobs


def synthetic(count: int, seed: int) -> list[Job]:
    """Return synthetic jobs of 150 users with up to 8 programs each, submitted in bursts.

    A program has variants of its arguments (fingerprints). It also has its own scatter of run
    times, a slow drift, a failure rate, and a time limit with its user's safety margin. One job in
    ten runs on half of the usual nodes.
    """
    draw = np.random.default_rng(seed)
    users = 150
    share = 1 / np.arange(1, users + 1) ** 1.1
    programs = [_programs(draw, user) for user in range(users)]
    jobs: list[Job] = []
    now = 0.0
    while len(jobs) < count:
        mine = programs[int(draw.choice(users, p=share / share.sum()))]
        program = mine[int(draw.integers(len(mine)))]
        now += draw.exponential(400)
        for _ in range(min(count - len(jobs), int(draw.geometric(0.25)))):
            jobs.append(_job(draw, program, now))
    return jobs


def _programs(draw: np.random.Generator, user: int) -> list[dict[str, Any]]:
    generous = draw.lognormal(0.9, 0.5) + 1
    return [
        {
            "user": f"u{user}",
            "name": f"app{number}",
            "base": draw.lognormal(7.2, 1.6),
            "scatter": draw.choice([0.02, 0.1, 0.3, 0.7]),
            "nodes": int(2 ** draw.integers(0, 5)),
            "gpus": int(draw.choice([0, 0, 0, 1, 4])),
            "fails": draw.choice([0.01, 0.05, 0.2]),
            "drift": draw.normal(0, 0.0015),
            "generous": generous * draw.lognormal(0, 0.3),
            "variants": draw.lognormal(0, 0.8, int(draw.integers(1, 12))),
            "watts": draw.uniform(0.35, 0.95),
            "runs": 0,
        }
        for number in range(int(draw.integers(1, 9)))
    ]


def _job(draw: np.random.Generator, program: dict[str, Any], now: float) -> Job:
    variant = int(draw.integers(len(program["variants"])))
    program["runs"] += 1
    seconds = program["base"] * program["variants"][variant]
    seconds *= np.exp(program["drift"] * program["runs"] + draw.normal(0, program["scatter"]))
    nodes, ending = program["nodes"], RunEnding.COMPLETED
    if draw.random() < 0.1:
        nodes, seconds = max(1, nodes // 2), seconds * 1.8
    limit = program["base"] * max(program["variants"]) * program["generous"] * 1.2
    limit = float(min(max(np.ceil(limit / 1800) * 1800, 1800), 7 * 86400))
    if draw.random() < program["fails"]:
        seconds, ending = seconds * draw.random() ** 3, RunEnding.FAILED
    elif draw.random() < 0.02:
        seconds, ending = seconds * draw.random(), RunEnding.CANCELLED
    if seconds > limit:
        seconds, ending = limit, RunEnding.TIMEOUT
    seconds = max(1.0, float(seconds))
    gpus = program["gpus"] * nodes
    watts = (nodes * 250 + gpus * 300) * program["watts"] * draw.normal(1, 0.03)
    run = ObservedRun(
        end=now + float(draw.exponential(1800)) + seconds,
        duration_s=seconds,
        ending=ending,
        energy_joules=watts * seconds,
        user=program["user"],
        account=f"a{int(program['user'][1:]) % 20}",
        partition="gpu" if gpus else "cpu",
        name=program["name"],
        fingerprint=f"{program['user']}.{program['name']}.{variant}",
        nodes=nodes,
        cpus=nodes * 32,
        gpus=gpus,
        policy="monitor",
        time_limit_s=limit,
    )
    return Job(now, run)


if __name__ == "__main__":
    raise SystemExit(main())
