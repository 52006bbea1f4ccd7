"""Unpacking of wheels into a directory of site-packages, without pip and without a network."""

import re
import zipfile
from pathlib import Path, PurePosixPath

_TESTS = re.compile(r"(^|/)(tests?|sample_data)/")
"""Directories that are not needed to run: a third of pandas and numba."""


def distribution_name(wheel: Path) -> str:
    """Return the normalized name of the distribution, such as `nvidia-ml-py`."""
    return re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()


def unpack(wheel: Path, target: Path, *, keep_tests: bool = False) -> None:
    """Unpack the importable files of a wheel, and its metadata. Scripts and headers are left out.

    Args:
        wheel: path of the wheel.
        target: directory of site-packages.
        keep_tests: keep the distribution's own tests.
    """
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            path = None if item.is_dir() else _target(item.filename)
            if path is None or (not keep_tests and _TESTS.search(str(path))):
                continue
            file = target / path
            if file.exists():
                raise SystemExit(f"stage_payload: {wheel.name}: {path} is in another distribution too")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(item))
            file.chmod(0o644)


def _target(name: str) -> PurePosixPath | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SystemExit(f"stage_payload: a wheel contains the path {name}")
    if not path.parts[0].endswith(".data"):
        return path
    if path.parts[1] in ("purelib", "platlib"):
        return PurePosixPath(*path.parts[2:])
    return None
