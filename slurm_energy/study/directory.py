"""The directory of a study, with its manifest, lock, objective, and the files of each step.

A step runs inside the context manager `StudyDirectory.running`, which records the SHA-256 of the inputs and
outputs of the step. If the inputs of a finished step have changed since, the step is stale. Later steps then
refuse its result.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from slurm_energy import __version__, atomic_file
from slurm_energy.errors import AlreadyRunningError, EnergyError, NotFoundError, UsageError
from slurm_energy.study.goals.objective import FILE_NAME, StudyObjective, parse_objective, read_objective
from slurm_energy.study.manifest import StepEntry, StepState, StudyManifest, parse_manifest
from slurm_energy.study.ownership import require_own_study
from slurm_energy.study.step_run import FILE_MODE, RESULT_NAME, StepRun, file_sha256, unwritable
from slurm_energy.study.steps import STEPS

_FLOCK: Final = "@hhqqi4x"
"""struct flock of fcntl(2) with 64-bit offsets."""
MANIFEST_NAME: Final = "study.json"


class StudyDirectory:
    """A study, stored in a directory.

    Args:
        path: directory of an existing study.

    Raises:
        NotFoundError: the directory contains no study.
        UsageError: the study is damaged, or a newer release has written the study.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = path / MANIFEST_NAME
        try:
            text = manifest.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{path}", "is not a study", f"begin one: senergy study init {path}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{manifest}", f"cannot be read: {error}") from None
        self.manifest = parse_manifest(text, str(manifest))

    @classmethod
    def create(cls, path: Path, objective_text: str) -> StudyDirectory:
        """Create a study with an objective file.

        Args:
            path: directory; created if absent. The directory must not contain a study.
            objective_text: content of the objective file. The content is checked before anything is written.

        Raises:
            UsageError: the directory already contains a study, or cannot be written.
            ConfigError: the objective is invalid.
        """
        if (path / MANIFEST_NAME).exists():
            raise UsageError(f"{path}", "contains a study already", f"see it: senergy study status {path}")
        parse_objective(objective_text, path / FILE_NAME)
        manifest = StudyManifest(created=time.time())
        try:
            path.mkdir(parents=True, exist_ok=True)
            atomic_file.write(path / FILE_NAME, objective_text.encode(), mode=FILE_MODE)
            atomic_file.write(path / MANIFEST_NAME, manifest.text().encode(), mode=FILE_MODE)
        except OSError as error:
            raise unwritable(path, error) from None
        return cls(path)

    def objective(self) -> StudyObjective:
        """Read the objective file.

        Raises:
            ConfigError: the file is unreadable or invalid.
        """
        return read_objective(self.path / FILE_NAME)

    def folder(self, step: str) -> Path:
        """Return the directory of the results of a step."""
        return self.path / step

    def result(self, step: str, *, unchanged: bool = True) -> dict[str, Any]:
        """Return the result of a step that is done.

        Args:
            step: name of the step.
            unchanged: whether to refuse a result file whose hash differs from the hash in the manifest.

        Raises:
            UsageError: the step has no result, or its file is damaged.
        """
        path = self.folder(step) / RESULT_NAME
        try:
            content = path.read_bytes()
            data = json.loads(content)
        except FileNotFoundError:
            raise UsageError(f"{self.path}: {step}", "has no result", self._todo(step)) from None
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}", f"cannot be read: {error}", self._todo(step)) from None
        if not isinstance(data, dict):
            raise UsageError(f"{path}", "is not a JSON object", self._todo(step))
        digest = hashlib.sha256(content).hexdigest()
        if unchanged and self._digest_of_result(step) not in (None, digest):
            raise UsageError(f"{path}", "was changed after the step", self._todo(step))
        return data

    def _digest_of_result(self, step: str) -> str | None:
        """Return the SHA-256 of the result of a step; None if the step is not done."""
        entry = self.manifest.steps[step]
        return entry.outputs.get(RESULT_NAME) if entry.state is StepState.DONE else None

    def staleness(self, step: str) -> str:
        """Return the reason why the result of a step of the study is stale (out of date).

        The reason is empty if the result is current or the step has no result.
        """
        entry = self.manifest.steps[step]
        if entry.state is not StepState.DONE:
            return ""
        for name in STEPS[step].requires:
            if self.manifest.steps[name].state is not StepState.DONE:
                return f"the step {name} is not done"
            if reason := self.staleness(name):
                return f"the step {name} is stale: {reason}"
        for name, digest in entry.outputs.items():
            if file_sha256(self.folder(step) / name) != digest:
                return f"{step}/{name} was changed or removed after the step"
        for name, digest in self._inputs(step).items():
            if entry.inputs.get(name) != digest:
                return f"{'the objective' if name == 'objective' else name} has changed"
        for name, digest in entry.inputs.items():
            # A missing file outside the study proves no change: the step keeps the data that it read.
            if name.startswith("file:") and file_sha256(Path(name[5:])) not in (digest, None):
                return f"{name[5:]} has changed"
        return ""

    def require(self, step: str) -> None:
        """Check that the earlier steps on which a step of a study depends are done and up to date.

        A step is up to date if its inputs have not changed since it ran. Otherwise the step is stale.

        Raises:
            UsageError: an earlier step is missing or stale.
        """
        for name in STEPS[step].requires:
            if self.manifest.steps[name].state is not StepState.DONE:
                state = self.manifest.steps[name].state
                why = (
                    "was interrupted"
                    if state is StepState.RUNNING
                    else "has failed"
                    if (state is StepState.FAILED)
                    else "has not run"
                )
                raise UsageError(
                    f"{self.path}: {step}", f"needs the step {name}, which {why}", self._todo(name)
                )
            if reason := self.staleness(name):
                todo = self._todo(self._first_to_repeat(name))
                raise UsageError(f"{self.path}: {name}", f"is stale: {reason}", todo)

    @contextlib.contextmanager
    def locked(self, activity: str) -> Iterator[None]:
        """Hold the lock of the study, and read the manifest of the study again.

        Args:
            activity: activity of this process, for the error that another user sees while the lock is held.

        Raises:
            AlreadyRunningError: another process holds the lock.
            ForbiddenError: another user may have changed the study, see `require_own_study`.
            UsageError: the directory cannot be written.
        """
        require_own_study(self.path)
        path = self.path / "lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise unwritable(self.path, error) from None
        try:
            try:
                fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock_request())
            except (BlockingIOError, PermissionError):
                raise AlreadyRunningError(
                    f"{self.path}", f"is in use by {_holder(descriptor)}", "wait until it has ended"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_identity(activity)).encode(), 0)
            self.manifest = StudyDirectory(self.path).manifest
            yield
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def holder(self) -> str:
        """Return a description of the process that uses the study now; empty if no process does."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock_request())
            is_free = struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK
            return "" if is_free else _holder(descriptor)
        except OSError:
            return ""
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def running(
        self,
        step: str,
        command: str,
        *,
        files: Mapping[str, Path] | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Iterator[StepRun]:
        """Run a step: lock the study, check earlier steps, and record inputs, outputs and state.

        Args:
            step: name of the step.
            command: command line.
            files: files outside the study that the step reads, by a readable name.
            options: options that change the result. Partial work with other options is not continued.
            seed: seed of the step's random numbers.

        Yields:
            The run. The caller must call the run's method `finish`, else the step counts as failed. If the
                step was done before and the run raises a UsageError before its first output, the step stays
                done.

        Raises:
            AlreadyRunningError: another process uses the study.
            UsageError: an earlier step is missing or stale, or a file cannot be read.
        """
        with self.locked(step):
            self.require(step)
            inputs = self._inputs(step) | _file_digests((files or {}).values())
            if options:
                text = json.dumps(options, sort_keys=True, default=str)
                inputs["options"] = hashlib.sha256(text.encode()).hexdigest()
            before = self.manifest.steps[step]
            resumed = _continues(before, inputs, seed)
            run = StepRun(self.folder(step), resumed)
            entry = StepEntry(StepState.RUNNING, time.time(), None, command, inputs, {}, seed)
            self.save(self.manifest.with_step(step, entry))
            try:
                yield run
                if not run.finished:
                    raise UsageError(f"{self.path}: {step}", "ended without a result")
            except EnergyError as error:
                failed = replace(entry, state=StepState.FAILED, ended=time.time(), error=str(error))
                keeps = _keeps_result(before, run, error)
                self.save(self.manifest.with_step(step, before if keeps else failed))
                raise
            for name in set(before.outputs) - set(run.outputs):
                (self.folder(step) / name).unlink(missing_ok=True)
            done = replace(entry, state=StepState.DONE, ended=time.time(), outputs=run.outputs)
            self.save(self.manifest.with_step(step, done))
            run.clear_partial()

    def save(self, manifest: StudyManifest) -> None:
        """Write the manifest. The caller holds the lock.

        Raises:
            UsageError: the directory cannot be written.
        """
        try:
            atomic_file.write(self.path / MANIFEST_NAME, manifest.text().encode(), mode=FILE_MODE)
        except OSError as error:
            raise unwritable(self.path, error) from None
        self.manifest = manifest

    def _inputs(self, step: str) -> dict[str, str]:
        """Return the present SHA-256 of the objective and of the results of all earlier steps."""
        spec = STEPS[step]
        inputs = {"objective": self.objective().digest(*spec.sections)} if spec.sections else {}
        for name in (*spec.requires, *spec.uses):
            if self.manifest.steps[name].state is StepState.DONE:
                inputs[f"{name}/{RESULT_NAME}"] = file_sha256(self.folder(name) / RESULT_NAME) or ""
        return inputs

    def _first_to_repeat(self, step: str) -> str:
        """Return the step of the study that must run first, so that `step` can then use current inputs.

        The result is the earliest required step that either is not done or has outdated inputs. If there is
        no such step, the result is `step` itself.
        """
        for name in STEPS[step].requires:
            if self.manifest.steps[name].state is not StepState.DONE or self.staleness(name):
                return self._first_to_repeat(name)
        return step

    def _todo(self, step: str) -> str:
        stage = " --stage STAGE" if step == "deploy" else ""
        return f"run: senergy study {step} {self.path}{stage}"


def _continues(before: StepEntry, inputs: Mapping[str, str], seed: int | None) -> bool:
    """Return whether a new run of a step continues an earlier run that was interrupted.

    This is the case if inputs, seed and release are the same.
    """
    interrupted = before.state in (StepState.RUNNING, StepState.FAILED)
    return interrupted and before.inputs == inputs and before.seed == seed and before.release == __version__


def _keeps_result(before: StepEntry, run: StepRun, error: EnergyError) -> bool:
    """Return whether the earlier result of a study step stays valid after a failed run of the step.

    The earlier result stays valid if the failed run was refused because of its input and wrote nothing.
    """
    return before.state is StepState.DONE and isinstance(error, UsageError) and not run.outputs


def _file_digests(paths: Any) -> dict[str, str]:
    digests = {}
    for path in paths:
        digest = file_sha256(path)
        if digest is None:
            raise UsageError(f"{path}", "cannot be read", "name a readable file")
        digests[f"file:{path.absolute()}"] = digest
    return digests


def _identity(activity: str) -> dict[str, Any]:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {"pid": os.getpid(), "user": user, "host": socket.gethostname(), "activity": activity}


def _lock_request() -> bytes:
    """Return a request for a write lock on the whole file.

    The lock belongs to the open file description. Other processes can query this kind of lock without taking
    the lock, see fcntl(2).
    """
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _holder(descriptor: int) -> str:
    """Return the description of the process that holds the lock, as stored in the lock file."""
    try:
        data = json.loads(os.pread(descriptor, 4096, 0))
        return f"{data['user']} (process {data['pid']} on {data['host']}: {data['activity']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
