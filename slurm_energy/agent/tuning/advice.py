"""The controller's advice about the tuning of a job, and copies of the advice on the node.

The copies are used while the controller is unreachable.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.response_curve import ResponseCurve

log = logging.getLogger(__name__)

_MAX_FILES = 200
_MAX_FILE_BYTES = 256_000
_MAX_SITE_CURVES = 16


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice of senergyctld about a job's program on this kind of hardware, for the agent.

    An operating point is a set of hardware settings.

    Attributes:
        curve: response curve of the program, measured in earlier runs or predicted; None if the controller
            has no curve.
        site_curves: response curves of reference kernels that the site has measured on this hardware, by
            class of program.
        start: operating point to start from; None if unknown.
        start_source: source of `start`, or `pinned`.
        exploration: whether the run tries `start` in order to learn the program's response.
        pinned: whether the job stays at `start`, because a user or an operator has fixed it.
    """

    curve: ResponseCurve | None = None
    site_curves: tuple[ResponseCurve, ...] = ()
    start: OperatingPoint | None = None
    start_source: str = ""
    exploration: bool = False
    pinned: bool = False

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Advice:
        """Build the advice from the controller's response.

        Raises:
            UsageError: a value has the wrong form.
        """
        curve, start, site = data.get("curve"), data.get("start"), data.get("site_curves") or []
        source = data.get("start_source") or ""
        if not isinstance(site, list) or len(site) > _MAX_SITE_CURVES:
            raise UsageError(f"tuning advice: site_curves is not a list of at most {_MAX_SITE_CURVES} curves")
        if not (isinstance(source, str) and len(source) <= 64 and source.isprintable()):
            raise UsageError("tuning advice: start_source is not a short text")
        return cls(
            curve=None if curve is None else ResponseCurve.from_json(curve).plausible(),
            site_curves=tuple(ResponseCurve.from_json(item).plausible() for item in site),
            start=None if start is None else OperatingPoint.from_json(start),
            start_source=source,
            exploration=data.get("exploration") is True,
            pinned=data.get("pinned") is True,
        )

    def without_controller(self) -> Advice:
        """Return the part of this advice that may be used in a run without contact to the controller.

        The advice to explore other settings is left out, because such a run never explores.
        """
        if not self.exploration:
            return self
        return Advice(self.curve, self.site_curves)


class AdviceCache:
    """Cache of the controller's tuning advice, for times when the controller does not answer.

    The agent's state directory has one file per user, program, hardware and objective.

    Args:
        folder: directory of the files; created on first use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def store(self, key: tuple[str, ...], data: Mapping[str, Any]) -> None:
        """Store a response of the controller.

        If there are too many files, the oldest files are deleted. A failure is logged.
        """
        content = json.dumps(data).encode()
        if len(content) > _MAX_FILE_BYTES:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            atomic_file.write(self._path(key), content, sync=False)
            files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for path in files[:-_MAX_FILES]:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("tuning advice is not cached: %s", error)

    def load(self, key: tuple[str, ...]) -> Advice | None:
        """Return the stored advice for a run without contact to the controller; None if nothing is stored."""
        try:
            data = json.loads(atomic_file.read(self._path(key), _MAX_FILE_BYTES))
            return Advice.from_json(data).without_controller()
        except (OSError, ValueError, AttributeError, UsageError):
            return None

    def _path(self, key: tuple[str, ...]) -> Path:
        digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:32]
        return self._folder / f"{digest}.json"
