"""Reader of the response curves (time and power at settings) of programs for an energy study.

The curves were learned by senergyctld, or measured by a sweep.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number


@dataclass(frozen=True, slots=True)
class CurveProgram:
    """A program with its response curve, as in a response to `GET /v1/tuning`.

    Attributes:
        user: user who owns the program; an empty value means unknown.
        names: names that jobs of the program may have: the name of the trained model, and the name of the
            workload.
        last_job: id of the program's last job; an empty value means unknown.
        points: points of the curve as in `GET /v1/tuning`.
        program: program as `USER/NAME`; an empty value means that the other attributes identify the program.
    """

    user: str
    names: tuple[str, ...]
    last_job: str
    points: Sequence[Mapping[str, Any]]
    program: str = ""


def curve_programs(answer: Mapping[str, Any]) -> list[CurveProgram]:
    """Return the programs with a response curve from a response to `GET /v1/tuning`.

    Raises:
        UsageError: the object does not have the form of a response to `GET /v1/tuning`.
    """
    programs = []
    try:
        for one in answer["programs"]:
            points = (one.get("curve") or {}).get("points") or ()
            names = tuple(str(one[key]) for key in ("model", "workload") if one.get(key))
            if points:
                for point in points:
                    float(point["time_ratio"]), float(point["power_ratio"])
                owner, last = str(one.get("user") or ""), str(one.get("last_job") or "")
                programs.append(CurveProgram(owner, names, last, points))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"is not a response of senergy tune show --json: {error!r}"
        raise UsageError("response curves", why) from None
    return programs


def read_curves(path: Path) -> list[CurveProgram]:
    """Read response curves (time and power at settings) from a file.

    The file contains the output of `senergy tune show --json`.

    Raises:
        UsageError: the file cannot be read, or has another form.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}", error.strerror or str(error), "write it with: senergy tune show --json"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}", str(error), "write it with: senergy tune show --json") from None
    return curve_programs(data if isinstance(data, Mapping) else {})


def read_sweep_curve(program: str, path: Path) -> CurveProgram:
    """Read the response curve of a program from a file with the output of `senergy sweep --json`.

    The response curve states time and power of the program at several settings.

    Args:
        program: program of the jobs, as `USER/NAME` in the plan of the step `characterise`.
        path: file with the output of the sweep.

    Raises:
        UsageError: the file cannot be read, has another form, or contains no measurement of the first
            point of the sweep, to which the other points are compared.
    """
    todo = "write it with: senergy sweep SCRIPT --gpu-cap WATTS,... --json"
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["points"]
        measured = [one for one in listed if is_number(one["time_s"]) and is_number(one["energy_joules"])]
        if not measured or measured[0] is not listed[0]:
            raise UsageError(f"{path}", "its reference point is not measured", "run the sweep to its end")
        points = [_sweep_point(one, measured[0]) for one in measured]
    except OSError as error:
        raise UsageError(f"{path}", error.strerror or str(error), todo) from None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, ZeroDivisionError) as error:
        raise UsageError(f"{path}", f"is not the result of a sweep: {error!r}", todo) from None
    return CurveProgram("", (), "", points, program)


def _sweep_point(point: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a sweep at one combination of settings, as a JSON object.

    Time and power are relative to those at the reference settings of the sweep. The object has the form
    that `GET /v1/tuning` uses.
    """
    errors = [
        one["time_s_deviation"] / one["time_s"] / math.sqrt(one["runs"])
        for one in (point, reference)
        if one.get("time_s_deviation") is not None
    ]
    watts = [one["energy_joules"] / one["time_s"] for one in (point, reference)]
    return {
        "point": dict(point["settings"]),
        "time_ratio": point["time_s"] / reference["time_s"],
        "power_ratio": watts[0] / watts[1],
        "time_error": math.hypot(*errors) if errors else None,
    }
