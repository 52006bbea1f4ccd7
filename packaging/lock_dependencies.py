#!/usr/bin/env python3
"""Pin the Python distributions that the packages contain: packaging/lock_dependencies.py [PYTHON...].

Writes packaging/locks/pythonX.Y.txt: the versions that pip chooses from the configured index, with the hashes
of their wheels for x86-64 and AArch64. Run it to update the contained distributions, and commit the result.
"""

import hashlib
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
MACHINES = ("x86_64", "aarch64")
GLIBC = ("2014", "_2_17", "_2_24", "_2_27", "_2_28")
"""Tags of wheels for the C library of Enterprise Linux 9 and newer systems."""


def pip_options(python: str, machine: str) -> list[str]:
    """Return pip's options that select wheels for a release of Python and a machine."""
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in GLIBC]
    return ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]


def name_and_version(wheel: Path) -> tuple[str, str]:
    name, version = wheel.name.split("-")[:2]
    return name.replace("_", "-").replace(".", "-").lower(), version


def lock(python: str, requirements: list[str]) -> str:
    hashes: dict[tuple[str, str], set[str]] = {}
    for machine in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder]
            subprocess.run([*command, *pip_options(python, machine), *requirements], check=True)
            for wheel in Path(folder).glob("*.whl"):
                digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
                hashes.setdefault(name_and_version(wheel), set()).add(digest)
    lines = [f"# Python {python}. Written by packaging/lock_dependencies.py."]
    for (name, version), digests in sorted(hashes.items()):
        lines.append(
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(digests))])
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    payload = tomllib.loads((HERE / "payload.toml").read_text())
    requirements = [one for group in payload["requirements"].values() for one in group]
    for python in sys.argv[1:] or sorted({system["python"] for system in payload["systems"].values()}):
        path = HERE / "locks" / f"python{python}.txt"
        path.write_text(lock(python, requirements))
        print(path)


if __name__ == "__main__":
    main()
