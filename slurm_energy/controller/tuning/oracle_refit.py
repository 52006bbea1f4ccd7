"""Periodic task that improves the calibrations of the predictor (oracle) from finished runs.

The task uses runs of known workloads at several power limits. A job names its workload with
`--energy-model`, and nothing proves that the name is true. A calibration serves all users of the
site. Therefore only runs of trusted accounts are used: operators and `controller.agent_users`.

A kind of GPU is calibrated again only if its present calibration was derived from measurements on
other kinds. A calibration that was fitted to training steps measured on the kind itself contains more
information than runs of jobs. A calibration that the configuration names is never replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from slurm_energy.accounting.history import tuning_runs
from slurm_energy.accounting.history.tuning_runs import StoredRun
from slurm_energy.config import Config
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.advisor import parse_run
from slurm_energy.controller.tuning.oracle_calibrations import refit_file
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.quantities import shown
from slurm_energy.tuning.learned_run import LearnedRun

INTERVAL_S: Final = 3600.0
TIMEOUT_S: Final = 300.0
MIN_LIMITS: Final = 3
"""Minimum number of different limits of one program, the untuned run included."""
_MAX_RUNS: Final = 5000
_MAX_OWNERS: Final = 500
_MODULE: Final = "slurm_energy.oracle.calibration.refit"

log = logging.getLogger(__name__)


class OracleRefit:
    """Periodic task that fits the calibrations of the predictor (oracle) to new runs.

    Each fit runs in a separate process.

    Args:
        config: function that returns the current configuration.
        store: the database.
        failures: log of failures; a repeated failure is logged once.
        is_trusted: function that takes a login name and returns whether runs of this user may change a
            calibration. The call may block.
        changed: function that is called after a calibration was written.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        store: Store,
        failures: RepeatedFailureLog,
        is_trusted: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._config, self._store, self._failures = config, store, failures
        self._is_trusted, self._changed = is_trusted, changed
        self._fitted: dict[str, str] = {}

    async def loop(self) -> None:
        """Refit the predictor (oracle) to the finished runs, periodically until cancelled."""
        while True:
            try:
                await self.refit()
                self._failures.clear("oracle refit")
            except EnergyError as error:
                self._failures.report("oracle refit", str(error))
            await asyncio.sleep(INTERVAL_S)

    async def refit(self) -> list[str]:
        """Fit the predictor (oracle) again for each kind of GPU that has new runs.

        Return the names of the kinds for which a new fit was made. A fit that fails is repeated at the next
        call, and does not prevent the fits for other kinds.

        Raises:
            UnavailableError: the database refused, a fit failed or took too long.
        """
        owners = await self._store.read(tuning_runs.owners_of_models)
        trusted = await asyncio.to_thread(lambda: [owner for owner in owners if self._is_trusted(owner)])
        stored = await self._store.read(tuning_runs.find_runs, trusted[:_MAX_OWNERS], limit=_MAX_RUNS)
        requests = await asyncio.to_thread(self._requests, stored)
        done: list[str] = []
        errors: list[UnavailableError] = []
        for kind, runs in requests.items():
            digest = hashlib.sha256(json.dumps(runs).encode()).hexdigest()
            if self._fitted.get(kind) == digest:
                continue
            try:
                await self._fit(kind, runs)
            except UnavailableError as error:
                errors.append(error)
                continue
            self._fitted[kind] = digest
            done.append(kind)
        if done:
            self._changed()
        if errors:
            raise errors[0]
        return done

    def _requests(self, stored: Sequence[StoredRun]) -> dict[str, list[dict[str, Any]]]:
        """Return the measured runs to which the oracle's parameters are fitted, by kind of GPU."""
        programs: dict[tuple[str, str, str], list[LearnedRun]] = {}
        for run in stored:
            if run.model is not None and (parsed := parse_run(run)) is not None:
                programs.setdefault((run.hardware, run.owner, run.workload), []).append(parsed)
        requests: dict[str, list[dict[str, Any]]] = {}
        for (hardware, _, _), runs in sorted(programs.items()):
            kind = refittable_kind(hardware, self._config())
            rows = relative_rows(runs)
            if kind is not None and rows:
                requests.setdefault(kind, []).extend(rows)
        return requests

    async def _fit(self, kind: str, runs: Sequence[Mapping[str, Any]]) -> None:
        config = self._config()
        output = refit_file(config, kind)
        files = [str(path) for path in config.oracle.hardware]
        request = json.dumps({"hardware": kind, "files": files, "runs": runs}).encode()
        try:
            output.parent.mkdir(mode=0o755, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _MODULE, str(output)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise UnavailableError(f"calibration of {kind}", error.strerror or str(error)) from None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                _, errors = await process.communicate(request)
        except TimeoutError:
            raise UnavailableError(f"calibration of {kind}", f"not fitted within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            why = shown(errors.decode(errors="replace").strip(), 200) or f"exit code {process.returncode}"
            raise UnavailableError(f"calibration of {kind}", why)
        log.info("the oracle's calibration of %s was refitted to %d runs: %s", kind, len(runs), output)


def refittable_kind(hardware: str, config: Config) -> str | None:
    """Return the name of a kind of GPU, if the calibration for this kind may be fitted again.

    The predictor (oracle) knows the kind by this name. The result is None if the calibration must not be
    fitted again.

    Args:
        hardware: product name of the GPU.
        config: configuration. Calibrations that it names are never replaced.
    """
    try:
        from slurm_energy.oracle.calibration_files import shipped_calibration
        from slurm_energy.oracle.hardware import find_hardware
        from slurm_energy.oracle.site_files import use_site
    except ImportError:  # without numpy there is no oracle to refit
        return None
    try:
        own = use_site(config.oracle.calibrations, config.oracle.hardware).own
        kind = find_hardware(hardware)
        if kind.kind != "gpu" or kind.name in own or "/" in kind.name:
            return None
        calibration = shipped_calibration(kind.name)
    except EnergyError:
        return None
    return kind.name if calibration.evidence is not None and not calibration.rows else None


def relative_rows(runs: Iterable[LearnedRun]) -> list[dict[str, Any]]:
    """Return the runs of one program as rows for a new fit of the model (refit).

    Runs with the same number of nodes, GPUs and CPUs form a group. The time of each row is relative to
    the untuned runs of its group. Only whole runs whose only setting is a power limit of the GPUs are
    used. A group without an untuned run, or with too few power limits, gives no rows.
    """
    shapes: dict[str, list[LearnedRun]] = {}
    for run in runs:
        point = run.point
        if point is None or not run.gpu_watts or not run.seconds or not run.model:
            continue
        if point == OperatingPoint(gpu_limit_watts=point.gpu_limit_watts):
            shapes.setdefault(run.shape, []).append(run)
    rows: list[dict[str, Any]] = []
    for of_shape in shapes.values():
        untuned = [math.log(run.seconds or 1.0) for run in of_shape if run.point == UNTUNED]
        if not untuned or len({run.point for run in of_shape}) < MIN_LIMITS:
            continue
        reference_s = math.exp(math.fsum(untuned) / len(untuned))
        rows += [
            {
                "model": run.model,
                "cap_watts": run.point and run.point.gpu_limit_watts,
                "time_ratio": (run.seconds or reference_s) / reference_s,
                "power_watts": run.gpu_watts,
            }
            for run in of_shape
        ]
    return rows
