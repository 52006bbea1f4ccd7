"""Refit of a GPU calibration to runs of known workloads at several power limits.

    python -m slurm_energy.oracle.calibration.refit OUTPUT < REQUEST

The refit runs as a separate process with a limit on its CPU time, so that it never delays the controller.
REQUEST is a JSON object with `hardware` (name of the kind), `files` (hardware files of the site) and `runs`:
a list of `model`, `cap_watts` (null: no limit), `time_ratio` (time relative to the run without a limit) and
`power_watts` (of one GPU). The refit does not change the absolute time per step of the present calibration,
because the records of jobs do not contain batch sizes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, EnergyError, NotFoundError, UsageError

MAX_CPU_S: Final = 120
MAX_RUNS: Final = 200
_BATCH: Final = 32.0
_NICE: Final = 15


def main() -> int:
    """Refit a calibration. The request comes from the standard input.

    The calibration is written to the file that the first argument names.
    """
    for library in ("OPENBLAS", "MKL", "OMP"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # The unit of senergyctld may forbid both calls; the caller bounds the time in any case.
    with contextlib.suppress(OSError, ValueError):
        os.nice(_NICE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    try:
        _refit(json.load(sys.stdin), Path(sys.argv[1]))
    except (EnergyError, ImportError, ValueError) as error:
        print(str(error)[:500], file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_OK


def _refit(request: Mapping[str, Any], output: Path) -> None:
    from slurm_energy.oracle.calibration.fitting import fit
    from slurm_energy.oracle.calibration.search import SearchSettings
    from slurm_energy.oracle.calibration_files import save_calibration, shipped_prior
    from slurm_energy.oracle.hardware import find_hardware
    from slurm_energy.oracle.site_files import use_site

    use_site([], [Path(name) for name in request["files"]])
    hardware = find_hardware(request["hardware"])
    rows = _measurements(hardware.name, request["runs"])
    if not rows:
        raise UsageError("refit", "no run is of a workload that the oracle knows")
    prior = shipped_prior(hardware.name)
    made = fit(hardware, rows, SearchSettings(), method="transfer", prior=prior).calibration
    basis = f"refitted to {len(rows)} runs at this site, otherwise {made.basis}"
    save_calibration(dataclasses.replace(made, basis=basis), output)


def _measurements(kind: str, runs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Convert recorded runs to measurements for the calibration.

    Runs of unknown workloads are left out.
    """
    from slurm_energy.oracle.calibration.measurements import Measurement
    from slurm_energy.oracle.hardware import find_hardware
    from slurm_energy.oracle.training_oracle import (
        TrainingAlternatives,
        TrainingOracle,
        default_precision,
    )
    from slurm_energy.oracle.workload import find_profile

    hardware, rows = find_hardware(kind), []
    precision = default_precision(hardware)
    for run in runs[:MAX_RUNS]:
        try:
            profile = find_profile(str(run["model"]))
        except NotFoundError:
            continue
        untuned = TrainingAlternatives.of([(profile, hardware, precision, _BATCH, 1.0, 1.0, math.inf)])
        step_s = float(TrainingOracle().predict_many(untuned).step_s[0])
        cap = run["cap_watts"]
        rows.append(
            Measurement(
                profile.name,
                _BATCH,
                1.0,
                precision,
                profile.optimizer,
                math.inf if cap is None else float(cap),
                step_s * float(run["time_ratio"]),
                float(run["power_watts"]),
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
