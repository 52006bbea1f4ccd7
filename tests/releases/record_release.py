"""Record what a release of slurm-energy writes and sends: record_release.py COMMIT DIRECTORY.

`git archive` extracts the code of COMMIT. The senergyd and senergyctld of this code run with an emulated
node that consists of plain files, and with a separate munged. Their outputs are the fixtures of
tests/unit/test_earlier_release.py:

    .venv/bin/python tests/releases/record_release.py 441f2bc8 tests/releases/0.1
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).with_name("release_session.py")
PARTS = ("slurm_energy", "slurm_energy_lab", "tests", "prolog_epilog", "spank", "templates", "packaging")


def extract(commit: str, folder: Path) -> None:
    """Extract the code of a commit."""
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", commit, *PARTS], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
    if archive.wait():
        sys.exit(f"record_release.py: git has no commit {commit}")


def main() -> None:
    commit, target = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(prefix="rel-") as directory:
        folder = Path(directory)
        folder.chmod(0o755)
        code = folder / "code"
        code.mkdir()
        extract(commit, code)
        paths = [code, code / "tests/unit", code / "tests/cluster"]
        environment = os.environ | {"PYTHONPATH": ":".join(map(str, paths)), "SLURMD_NODENAME": "n1"}
        command = [sys.executable, "-P", str(INSIDE), str(code), str(folder / "work"), str(target)]
        subprocess.run(command, env=environment, check=True, cwd=directory)


if __name__ == "__main__":
    main()
