"""HTTP routes with which users read and change what tuning has learned from earlier runs.

The routes are `/v1/tuning`, and below it `advice`, `forget`, `pin` and `unpin`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from slurm_energy.accounting.history import tuning_runs, tuning_starts
from slurm_energy.accounting.history.tuning_runs import SITE, StoredRun
from slurm_energy.accounting.history.tuning_starts import Pin, Program
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.http.node_hosts import Sender
from slurm_energy.controller.http.route_group import RouteGroup
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.tuning.advisor import TuningAdvisor, parse_run
from slurm_energy.errors import ForbiddenError, NotFoundError, UnavailableError, UsageError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.protocol.query_parameters import refuse_unknown, switch
from slurm_energy.protocol.tuning_advice import AdviceRequest
from slurm_energy.quantities import shown
from slurm_energy.tuning.learned_run import LearnedLimitRange, LearnedRun
from slurm_energy.tuning.program_curve import program_curve
from slurm_energy.tuning.response_curve import CurveSource
from slurm_energy.user_lookup import name_of, uid_of

_MAX_NAME: Final = 256
_SHOW_KEYS: Final = ("user", "workload", "hardware", "site")
_PROGRAM_KEYS: Final = ("user", "workload", "hardware")


class TuningRoutes:
    """Handlers of the routes about tuning. The caller has been identified.

    Args:
        store: the database.
        advisor: answers agents; None means that this controller gives no advice.
    """

    def __init__(self, store: Store, advisor: TuningAdvisor | None = None) -> None:
        self._store, self._advisor = store, advisor

    @property
    def routes(self) -> RouteGroup:
        """The HTTP routes that users may use."""
        changes = {"forget": self.forget, "pin": self.pin, "unpin": self.unpin}
        return RouteGroup(
            costly={"/v1/tuning": self.show},
            changes={f"/v1/tuning/{name}": change for name, change in changes.items()},
        )

    async def advise(self, query: Mapping[str, str], sender: Sender) -> dict[str, Any]:
        """Return the response to `GET /v1/tuning/advice`, see `TuningAdvisor.advise`."""
        if self._advisor is None:
            raise UnavailableError("tuning advice", "this controller gives none")
        return await self._advisor.advise(AdviceRequest.from_query(query), sender)

    async def show(self, query: Mapping[str, str], rights: Rights) -> dict[str, Any]:
        """Return the response to `GET /v1/tuning`: programs with response curves and fixed points.

        The fixed operating points are called pins. Everyone may see the measured response of the site's
        hardware (characterisation).

        Raises:
            ForbiddenError: the query names another user.
            UsageError: a parameter is unknown or malformed.
        """
        refuse_unknown(query, _SHOW_KEYS)
        workload, hardware = _name(query, "workload"), _name(query, "hardware")
        owners: list[str] | None
        if switch(query, "site"):
            owners = [SITE]
        elif (user := _name(query, "user")) is not None:
            owners = [await asyncio.to_thread(_permitted_owner, user, rights)]
        else:
            owners = None if rights.everything else [_own_name(rights)]
        runs = await self._store.read(tuning_runs.find_runs, owners, workload=workload, hardware=hardware)
        pins = await self._store.read(tuning_starts.pins_of, owners)
        pins = [
            pin
            for pin in pins
            if workload in (None, pin.program.workload) and hardware in (None, pin.program.hardware)
        ]
        programs = await asyncio.to_thread(_programs, runs, pins)
        return {"scope": "all" if rights.everything else "own", "programs": programs}

    async def forget(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Delete the stored runs of one program, or of all programs of a user on a kind of hardware.

        Raises:
            ForbiddenError: the program belongs to another user.
            NotFoundError: there are no stored runs of this program.
        """
        owner, workload, hardware = await self._owned(body, rights)
        if workload is None and hardware is None and body.get("all") is not True:
            raise UsageError("forget", "names neither a program nor a kind of hardware", "give one, or all")
        deleted = await self._store.write(tuning_runs.forget, owner, workload, hardware)
        if not deleted:
            raise NotFoundError(_described(workload), "nothing has been learned about it")
        return {"forgotten_runs": deleted}

    async def pin(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Fix the operating point of a program, so that tuning uses this point in its later runs.

        Raises:
            ForbiddenError: the program belongs to another user.
            NotFoundError: no run of the program was learned.
            UsageError: the operating point is malformed or out of the range of the hardware, the program has
                runs on several kinds of hardware, or points are fixed for too many programs of the program's
                owner.
        """
        point = OperatingPoint.from_json(body.get("point"))
        owner, program, runs = await self._known_program(body, rights)
        _check_range(point, runs)
        pin = Pin(program, json.dumps(point.to_json()), rights.name or str(rights.uid), time.time())
        if not await self._store.write(tuning_starts.set_pin, pin):
            todo = "remove some: senergy tune unpin"
            raise UsageError(f"user {shown(owner)}", "has too many pinned programs", todo)
        return {"pinned": _pin_json(pin)}

    async def unpin(self, body: Mapping[str, Any], rights: Rights) -> dict[str, Any]:
        """Remove the pins of a program: the operating points that its owner has fixed.

        Raises:
            ForbiddenError: the program belongs to another user.
            NotFoundError: the program is not pinned.
        """
        owner, workload, hardware = await self._owned(body, rights)
        if workload is None:
            raise UsageError("workload", "is missing")
        pins = await self._store.read(tuning_starts.pins_of, [owner])
        removed = 0
        for pin in pins:
            if pin.program.workload == workload and hardware in (None, pin.program.hardware):
                removed += await self._store.write(tuning_starts.remove_pin, pin.program)
        if not removed:
            raise NotFoundError(_described(workload), "is not pinned")
        return {"unpinned": removed}

    async def _owned(self, body: Mapping[str, Any], rights: Rights) -> tuple[str, str | None, str | None]:
        """Return the owner, the workload and the hardware of the program that a request names.

        The request changes data about this program: its stored response curves, or its pin (an operating
        point that a user has fixed). A caller who is not the owner needs the right to change programs of this
        owner. Only operators may change the characterisation of the site.
        """
        for key in body:
            if key not in (*_PROGRAM_KEYS, "point", "all", "site"):
                raise UsageError(f"unknown key '{shown(key)}'")
        texts = {key: body[key] for key in _PROGRAM_KEYS if body.get(key) is not None}
        workload, hardware = _name(texts, "workload"), _name(texts, "hardware")
        if body.get("site") is True:
            if not rights.everything:
                raise ForbiddenError("the site's characterisation", "belongs to the operators")
            return SITE, workload, hardware
        user = _name(texts, "user")
        if user is None:
            return _own_name(rights), workload, hardware
        return await asyncio.to_thread(_permitted_owner, user, rights), workload, hardware

    async def _known_program(
        self, body: Mapping[str, Any], rights: Rights
    ) -> tuple[str, Program, list[LearnedRun]]:
        owner, workload, hardware = await self._owned(body, rights)
        if workload is None or owner == SITE:
            raise UsageError("pin", "names no program", "give its fingerprint or --energy-model")
        stored = await self._store.read(tuning_runs.find_runs, [owner], workload=workload, hardware=hardware)
        kinds = sorted({run.hardware for run in stored})
        if not kinds:
            todo = "senergy tune show lists the programs that have run"
            raise NotFoundError(_described(workload), "no run of it has been learned", todo)
        if len(kinds) > 1:
            why = f"it has run on {', '.join(map(shown, kinds))}"
            raise UsageError(_described(workload), why, "name one with --hardware")
        runs = [run for run in map(parse_run, stored) if run is not None]
        return owner, Program(owner, workload, kinds[0]), runs


def _name(values: Mapping[str, Any], key: str) -> str | None:
    text = values.get(key)
    if text is None or text == "":
        return None
    if not (isinstance(text, str) and len(text) <= _MAX_NAME and text.isprintable()):
        raise UsageError(f"{key}: '{shown(str(text))}' is not a name")
    return text


def _own_name(rights: Rights) -> str:
    return rights.name or str(rights.uid)


def _permitted_owner(user: str, rights: Rights) -> str:
    """Return the user name under which a user's programs are stored, if the caller may change them.

    Raises:
        ForbiddenError: the caller is neither this user nor an operator.
    """
    uid = uid_of(user)
    if uid != rights.uid and user != rights.name and not rights.everything:
        why = "you may see and change your own"
        raise ForbiddenError(f"programs of user {shown(user)}", why, "ask an operator (controller.operators)")
    return (name_of(uid) if uid is not None else None) or user


def _described(workload: str | None) -> str:
    return f"program {shown(workload)}" if workload is not None else "this hardware"


def _check_range(point: OperatingPoint, runs: Iterable[LearnedRun]) -> None:
    """Refuse to fix a GPU power limit for a program (pin) outside the range of its GPUs.

    The range is that of the GPUs on which the program ran.
    """
    limits: LearnedLimitRange | None = None
    for run in runs:
        limits = run.gpu_limits or limits
    watts = point.gpu_limit_watts
    if watts is None or limits is None or limits.min_watts <= watts <= limits.default_watts:
        return
    why = f"the GPUs take {limits.min_watts:g} to {limits.default_watts:g} W"
    raise UsageError(f"GPU limit {watts:g} W", why, "pin a limit in this range")


def _programs(runs: Iterable[StoredRun], pins: Iterable[Pin]) -> list[dict[str, Any]]:
    """Return all programs that have runs or a fixed operating point (pin), as JSON.

    The programs are sorted by owner, workload and hardware.
    """
    groups: dict[Program, list[StoredRun]] = {}
    for run in runs:
        groups.setdefault(Program(run.owner, run.workload, run.hardware), []).append(run)
    pinned = {pin.program: pin for pin in pins}
    return [
        _program(program, groups.get(program, []), pinned.get(program))
        for program in sorted({*groups, *pinned})
    ]


def _program(program: Program, stored: list[StoredRun], pin: Pin | None) -> dict[str, Any]:
    runs = [run for run in map(parse_run, stored) if run is not None]
    source = CurveSource.CHARACTERISATION if program.owner == SITE else CurveSource.EARLIER_RUNS
    curve = program_curve(runs, program.hardware, program.workload, source)
    return {
        "user": program.owner or None,
        "workload": program.workload,
        "hardware": program.hardware,
        "fingerprint": next((run.fingerprint for run in reversed(stored) if run.fingerprint), None),
        "model": next((run.model for run in reversed(stored) if run.model), None),
        "runs": len(stored),
        "explorations": sum(run.exploration for run in runs),
        "last_run_unix_s": max((run.end for run in stored), default=None),
        "last_job": runs[-1].job if runs else None,
        "curve": curve and curve.to_json(),
        "pin": pin and _pin_json(pin),
    }


def _pin_json(pin: Pin) -> dict[str, Any]:
    return {
        "user": pin.program.owner,
        "workload": pin.program.workload,
        "hardware": pin.program.hardware,
        "point": json.loads(pin.point),
        "pinned_by": pin.pinned_by,
        "pinned_unix_s": pin.time,
    }
