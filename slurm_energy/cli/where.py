"""`senergy where`: the best cluster for a batch script, and submission to it."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slurm_energy.cli import connection, predict_job
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.config.cluster_tables import PLACEMENT_POLICIES
from slurm_energy.errors import (
    EXIT_OK,
    EnergyError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.quantities import format_duration, shown

if TYPE_CHECKING:
    from slurm_energy.config import Config
    from slurm_energy.oracle.prediction import Prediction, PredictionRequest
    from slurm_energy.slurm.batch_script import BatchScript

HELP = "choose the cluster for a job by energy, price, carbon, data transfer and queue"

EPILOG = """\
The clusters are those in [clusters.NAME] of energy.toml. For each, the command asks its senergyctld for the
predicted time and power of the job there. The senergyctld of this cluster knows the queues, prices and carbon
intensities of all and chooses. A cluster whose senergyctld does not answer is left out.

With --submit the job is submitted to the best cluster (sbatch --clusters). If its slurmctld does not answer,
the next best one gets the job. If the senergyctld of this cluster does not answer, the job is submitted here,
and if slurmctld does not answer either, to another cluster.

columns:
  wait: predicted time in the queue
  start: time until the predicted start (+00:00:00: at once), the longer of wait and transfer
  run, transfer: predicted times of the job and of its data

policies: home (stay), cheapest, cleanest, least-energy, fastest, follow-the-sun,
  weighted (placement.weights)

exit codes: 0 ok, 1 failure, 2 usage, or sbatch refused the job, 3 configuration,
  4 no senergyctld or slurmctld answers, 6 no cluster can run the job

examples:
  senergy where job.sh
  senergy where --policy cleanest --data 50GB job.sh
  senergy where --submit job.sh input.dat
  senergy where --submit --sbatch='-p gpu -t 2:00:00' job.sh
  senergy where --clusters east,west --json job.sh
See docs/clusters.md.
"""
_PREDICTION_TIMEOUT_S: Final = 4.0
"""Time limit of the prediction for this cluster. Without this prediction, no cluster can be chosen."""
_OTHERS_TIMEOUT_S: Final = 1.0
"""Time limit of the predictions for all other clusters together. These predictions are optional."""
_CHOICE_TIMEOUT_S: Final = 5.0
_MAX_RESPONSE_BYTES: Final = 4 << 20
_SIZE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s?(?:([kKMGTP])(i?)B?|B)", re.ASCII)
_CLUSTER_VARIABLES: Final = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
_UNREACHABLE: Final = ("can't be reached", "Unable to contact", "Connection refused")
"""Parts of sbatch's messages that prove that no job was submitted because slurmctld does not run."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy where`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "job",
        nargs="+",
        metavar="SCRIPT [ARGUMENT]",
        help="batch script and its arguments; write -- before arguments that begin with a dash",
    )
    parser.add_argument("--submit", action="store_true", help="submit the job to the chosen cluster")
    parser.add_argument(
        "--policy",
        metavar="POLICY",
        choices=PLACEMENT_POLICIES,
        default="",
        help="instead of placement.policy: " + ", ".join(PLACEMENT_POLICIES),
    )
    parser.add_argument(
        "--data", metavar="SIZE", type=data_bytes, default=0.0, help="data to transfer, such as 50GB"
    )
    parser.add_argument("--clusters", metavar="A,B", help="choose among these only (default: all)")
    parser.add_argument(
        "--sbatch", metavar="OPTIONS", default="", help="options of sbatch that precede those in the script"
    )
    parser.add_argument("--json", action="store_true", help="print the choice as JSON")
    parser.set_defaults(user=None, calibration=None)
    connection.add_config_option(parser)


def data_bytes(text: str) -> float:
    """Return the bytes of a size such as `50GB`, `1.5 TiB` or `100B`. A number without a unit is refused.

    Raises:
        ArgumentTypeError: the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        units = "B, kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB or PiB"
        todo = f"write a number and a unit, as 500MB or 50GiB (units: {units})"
        raise argparse.ArgumentTypeError(f"'{shown(text)}' is not a size: {todo}")
    exponent = " KMGTP".index((match[2] or " ").upper())
    return float(match[1]) * (1024.0 if match[3] else 1000.0) ** exponent


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A submitted job: the job id, and the name of the cluster. None stands for the local cluster."""

    job_id: int
    cluster: str | None


def run(args: argparse.Namespace) -> int:
    """Choose the cluster, print the choice, and submit the job if requested."""
    script, extra = _script(args)
    config = connection.configuration(args)
    notes = list(script.notes)
    request = predict_job.prediction_request(args, script, notes)
    wanted = _wanted(args, config, extra)
    try:
        predictions = _predictions(args, config, request, wanted, notes)
        choice = _choice(args, script, predictions)
    except UnavailableError as error:
        if not args.submit:
            raise
        notes.append(f"no choice was possible, this cluster is tried first: {error}")
        choice = _no_choice(config, wanted, str(error))
    notes += choice.get("notes", [])
    try:
        submitted = _submit(args, extra, choice, notes) if args.submit else None
    except EnergyError:
        for text in notes:  # they say why which clusters were tried
            note(text)
        raise
    if args.json:
        job = None if submitted is None else {"job_id": submitted.job_id, "cluster": submitted.cluster}
        emit_json({**choice, "notes": notes, **({} if job is None else {"submitted": job})})
    else:
        _print(choice, notes, submitted)
    if choice["cluster"] is None and not args.submit:
        raise NotFoundError("a cluster for the job", choice["reason"], "see the problems of the clusters")
    return EXIT_OK


def _print(choice: Mapping[str, Any], notes: Sequence[str], submitted: SubmittedJob | None) -> None:
    if choice["clusters"] or choice["left_out"]:
        emit_fitted(lines(choice))
    for text in notes:
        note(text)
    if submitted is not None:
        cluster = f" on cluster {submitted.cluster}" if submitted.cluster else ""
        emit_fitted([f"Submitted batch job {submitted.job_id}{cluster}"])


def _no_choice(config: Config, wanted: Sequence[str], why: str) -> dict[str, Any]:
    """Return the result of `senergy where` if senergyctld cannot choose a cluster.

    The result contains the reason, and the order in which to try the clusters, with the local cluster first.
    """
    home = config.cluster.name
    order = sorted(wanted, key=lambda name: name != home)
    return {"cluster": None, "reason": why, "order": order, "clusters": [], "left_out": [], "home": home}


def lines(choice: Mapping[str, Any]) -> list[str]:
    """Return the lines that `senergy where` prints.

    The lines contain a table of the clusters, the chosen cluster, and the reason for the choice.
    """
    header = ["", "cluster", "wait", "start", "run", "transfer", "kWh", "cost", "kg CO2e"]
    table = [header]
    now_s = time.time()
    for row in choice["clusters"]:
        table.append(
            [
                "*" if row["cluster"] == choice["cluster"] else "",
                shown(str(row["cluster"])),
                _duration(row["wait_s"]),
                "-" if row["start"] is None else f"+{_duration(row['start'] - now_s)}",
                _duration(row["run_s"]),
                _duration(row["transfer_s"]),
                _with_deviation(row["kwh"], 0.0),
                _with_deviation(row["cost"], row["cost_deviation"], str(row["currency"])),
                _with_deviation(row["carbon_kg"], row["carbon_deviation_kg"]),
            ]
        )
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    page = [
        "  ".join(
            word.ljust(width) if at < 2 else word.rjust(width)
            for at, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    page += [
        f"left out: {shown(str(one['cluster']))}: {shown(str(one['problem']), 300)}"
        for one in choice["left_out"]
    ]
    if choice["cluster"] is not None:
        page.append(f"{choice['policy']}: {choice['cluster']}, because {choice['reason']}")
    return page


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def _with_deviation(value: float | None, deviation: float | None, unit: str = "") -> str:
    if value is None:
        return "unknown"
    has_deviation = deviation is not None and deviation > 1e-4 * abs(value)
    text = f"{value:.3g}±{deviation:.1g}" if has_deviation else f"{value:.3g}"
    return f"{text} {shown(unit)}".rstrip()


def _script(args: argparse.Namespace) -> tuple[BatchScript, list[str]]:
    from slurm_energy.slurm.batch_script import read_content, read_script

    content = read_content(Path(args.job[0]))
    try:
        extra = shlex.split(args.sbatch)
    except ValueError as error:
        raise UsageError(f"--sbatch: {error}") from None
    return read_script(args.job[0], content, args.job[1:], extra), extra


def _wanted(args: argparse.Namespace, config: Config, extra: Sequence[str]) -> list[str]:
    """Return the clusters to choose among: --clusters, else the clusters of the job's option -M, else all."""
    from slurm_energy.slurm.batch_script import effective_options, read_content

    known = list(dict.fromkeys([config.cluster.name, *config.clusters]))
    text = args.clusters
    if not text:
        text = effective_options(args.job[0], read_content(Path(args.job[0])), extra).get("clusters")
    if not text or text == "all":
        return known
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if not names:
        raise UsageError("--clusters", "names no cluster", f"known: {', '.join(known)}")
    for name in names:
        if name not in known:
            todo = f"known: {', '.join(known)}; add [clusters.{shown(name)}] to energy.toml"
            raise UsageError(f"cluster '{shown(name)}'", "is not configured", todo)
    return names


def _predictions(
    args: argparse.Namespace,
    config: Config,
    request: PredictionRequest,
    wanted: Sequence[str],
    notes: list[str],
) -> dict[str, Prediction]:
    """Return the predicted time and energy of the job for each cluster.

    Each cluster predicts the job from its own history. If a cluster has no similar runs, or does not
    answer within `_OTHERS_TIMEOUT_S`, the prediction of the local cluster is used for it.

    Args:
        args: command line.
        config: configuration of the local cluster.
        request: the job to predict.
        wanted: names of the clusters.
        notes: list to which a note is added for each cluster that did not answer.
    """
    others = [name for name in wanted if name != config.cluster.name]
    answers: dict[str, Prediction | EnergyError | None] = {}

    def ask(name: str) -> None:
        try:
            answers[name] = _prediction_of(config, name, request)
        except EnergyError as error:
            answers[name] = error

    # Daemon threads: a name resolution that hangs must not delay the choice or the end of this process.
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in others]
    end_s = time.monotonic() + _OTHERS_TIMEOUT_S
    for thread in threads:
        thread.start()
    home = predict_job.predict(args, request, notes, _PREDICTION_TIMEOUT_S)
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
    silent = UnavailableError("senergyctld", f"no answer within {_OTHERS_TIMEOUT_S:g} s")
    predictions = dict.fromkeys(wanted, home)
    for name in others:
        answer = answers.get(name, silent)
        if isinstance(answer, EnergyError):
            notes.append(f"cluster {name}: the prediction of this cluster is used: {answer}")
        elif answer is not None:
            predictions[name] = answer
    return predictions


def _prediction_of(config: Config, name: str, request: PredictionRequest) -> Prediction | None:
    """Return the prediction of another cluster's senergyctld; None without similar runs.

    Raises:
        EnergyError: senergyctld did not answer, or its response was invalid.
    """
    from slurm_energy.oracle.prediction import Prediction
    from slurm_energy.protocol.controller_client import ControllerClient

    cluster = config.clusters[name]
    client = ControllerClient(
        cluster.controller_url or (),
        cluster.munge_socket or config.cluster.munge_socket,
        _OTHERS_TIMEOUT_S,
        cluster.controller_users,
        total_timeout_s=_OTHERS_TIMEOUT_S,
        max_response_bytes=_MAX_RESPONSE_BYTES,
    )
    plain = {key: getattr(request, key) for key in request.__slots__}
    body = {"requests": [{key: value for key, value in plain.items() if value is not None}]}
    try:
        answers = client.post("/v1/predict", body).get("predictions")
        first = answers[0] if isinstance(answers, list) and answers else None
        return None if first is None else Prediction.from_json(first)
    except ValueError as error:
        raise UnavailableError("senergyctld", f"its response is invalid: {error}") from None


def _choice(
    args: argparse.Namespace, script: BatchScript, predictions: Mapping[str, Prediction]
) -> dict[str, Any]:
    from slurm_energy.protocol.placement_requests import PLACEMENT_PATH, ClusterPrediction, PlacementQuery

    figures = {
        name: ClusterPrediction(one.duration_s.mean, one.power_watts.mean * script.tasks)
        for name, one in predictions.items()
    }
    query = PlacementQuery(
        cpus=script.cpus,
        gpus=script.gpus,
        predictions={name: one for name, one in figures.items() if one.is_in_range},
        data_bytes=args.data,
        policy=args.policy,
        reserve=args.submit,
    )
    client = connection.connect(
        args, total_timeout_s=_CHOICE_TIMEOUT_S, max_response_bytes=_MAX_RESPONSE_BYTES
    )
    answer = client.post(PLACEMENT_PATH, query.to_json())
    sources = {name: str(one.source) for name, one in predictions.items()}
    answer["clusters"] = [{**row, "prediction": sources.get(row["cluster"])} for row in answer["clusters"]]
    return answer


def _submit(
    args: argparse.Namespace, extra: Sequence[str], choice: Mapping[str, Any], notes: list[str]
) -> SubmittedJob:
    """Submit the job to the best cluster that can be reached.

    Raises:
        UsageError: sbatch refused the job.
        UnavailableError: no cluster can be reached.
    """
    from slurm_energy.slurm.sbatch import RefusedError, run_sbatch

    # Without --clusters, sbatch does not ask slurmdbd, and this cluster accepts jobs while slurmdbd is down.
    default = None if _names_clusters(args, extra) else choice.get("home")
    candidates: list[str | None] = list(choice["order"]) or [None]
    for at, cluster in enumerate(candidates):
        option = [f"--clusters={cluster}"] if cluster and cluster != default else []
        try:
            job_id = run_sbatch(["sbatch", "--parsable", *extra, *option, *args.job], {})
            return SubmittedJob(job_id, cluster)
        except (RefusedError, UnavailableError) as error:
            # After a timeout the job may have been submitted: it must not be submitted again.
            is_down = any(text in str(error) for text in _UNREACHABLE)
            if not is_down or at + 1 == len(candidates):
                raise
            notes.append(f"cluster {cluster} cannot be reached, the next best one gets the job: {error}")
    raise AssertionError("there is at least one candidate")


def _names_clusters(args: argparse.Namespace, extra: Sequence[str]) -> bool:
    """Return whether the job names its clusters itself: in the script, in options or the environment.

    The options are those of sbatch.
    """
    from slurm_energy.slurm.batch_script import effective_options, read_content

    named = effective_options(args.job[0], read_content(Path(args.job[0])), extra)
    return "clusters" in named or any(name in os.environ for name in _CLUSTER_VARIABLES)
