"""A job of a few seconds that tests the whole path of an energy measurement.

The path consists of an energy flag of the job, the hook, the agent, the energy record and the controller.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from slurm_energy.doctor.cluster_checks import GroupCheck
from slurm_energy.doctor.cluster_findings import NodeFindings
from slurm_energy.doctor.verdict import CheckState
from slurm_energy.errors import EnergyError, NotFoundError
from slurm_energy.records import EnergyRecord

NAME: Final = "measured job"
_SLEEP_S: Final = 3
_IMMEDIATE_S: Final = 20
_SRUN_TIMEOUT_S: Final = 60.0
_RECORD_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 1.0
_SCRIPT: Final = f"echo $SLURM_JOB_ID; exec sleep {_SLEEP_S}"

Records = Callable[[int], Sequence[Mapping[str, Any]]]
"""Function that returns the records of a job, or raises NotFoundError while there are none."""


def run_measured_job(nodes: Iterable[NodeFindings], records: Records) -> GroupCheck:
    """Check a cluster with a real job: run a job on one idle node as the calling user.

    Return whether the energy record of the job arrived and contains energy.

    Args:
        nodes: nodes from which one idle node is chosen.
        records: function that requests the records of a job from senergyctld.
    """
    idle = [node for node in nodes if node.slurm_state == "idle" and node.is_up]
    if not idle:
        return GroupCheck(NAME, CheckState.ABSENT, "not run: no node is idle and reports")
    if shutil.which("srun") is None:
        return GroupCheck(NAME, CheckState.ABSENT, "not run: srun is not installed on this host")
    node = next((node for node in idle if node.facts.get("sources")), idle[0])
    job_id, error = _run(node)
    if job_id is None:
        return _failed(node, f"srun: {error}", "on the node: senergy setup node")
    if error:
        return _failed(node, f"job {job_id}: srun: {error}", "the log of slurmd on the node")
    return _judged(node, job_id, records)


def _run(node: NodeFindings) -> tuple[int | None, str]:
    """Run the job and return its id. If the job failed, also return the last line of srun's errors."""
    partition = [f"--partition={node.partition}"] if node.partition else []
    command = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", *partition, "--time=1"]
    command += [f"--immediate={_IMMEDIATE_S}", "--job-name=senergy-doctor", "--chdir=/"]
    command += ["--energy-policy=monitor", "sh", "-c", _SCRIPT]
    # Variables of a surrounding job would make this a step of that job.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return None, error.strerror or str(error)
    try:
        output, errors = child.communicate(timeout=_SRUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        output, errors = _stop(child)
        errors += f"no end within {_SRUN_TIMEOUT_S:g} s"
    first = output.strip().split("\n")[0]
    job_id = int(first) if first.isascii() and first.isdecimal() else None
    if child.returncode == 0 and job_id is not None:
        return job_id, ""
    messages = errors.strip().splitlines() or [f"exit status {child.returncode}"]
    return job_id, messages[-1].removeprefix("srun: ").removeprefix("error: ")


def _stop(child: subprocess.Popen[str]) -> tuple[str, str]:
    """End srun and return its output. The end of srun cancels the job."""
    child.terminate()
    try:
        return child.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()


def _judged(node: NodeFindings, job_id: int, records: Records) -> GroupCheck:
    """Wait for the energy record of the test job, and return the result of the check.

    The check succeeds if the record arrives in time and contains energy.
    """
    until_s = time.monotonic() + _RECORD_TIMEOUT_S
    while True:
        try:
            whole = [record for record in map(EnergyRecord.from_json, records(job_id)) if record.step is None]
            break
        except NotFoundError:
            if time.monotonic() > until_s:
                why = f"job {job_id} has run, but no record arrived within {_RECORD_TIMEOUT_S:g} s"
                return _failed(node, why, "on the node: senergy doctor; senergy spool")
            time.sleep(_PAUSE_S)
        except EnergyError as error:
            return _failed(node, f"job {job_id}: {error}", "senergy status")
    joules = [record.energy_joules for record in whole]
    known = [value for value in joules if value is not None]
    if not known:
        cost = "the energy of jobs is unknown (null) in every record of such nodes"
        what = f"the record of job {job_id} arrived without energy"
        fix = "on the node: senergy doctor"
        return GroupCheck(NAME, CheckState.DEGRADED, what, (node.name,), cost, fix)
    what = f"the record of job {job_id} arrived, {sum(known):.1f} J"
    return GroupCheck(NAME, CheckState.OK, what, (node.name,))


def _failed(node: NodeFindings, what: str, fix: str) -> GroupCheck:
    cost = "jobs are not measured, or their records do not arrive"
    return GroupCheck(NAME, CheckState.FAILED, what, (node.name,), cost, fix)
