"""A virtual environment for tests with the package and its core dependencies, without extras.

The metadata of the installed package names the core dependencies. Each distribution is linked, not
installed. The environment therefore takes less than a second, needs no network and cannot see any other
module.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import slurm_energy

DISTRIBUTION = "slurm-energy"


def core_distributions() -> set[str]:
    """Return the names of all distributions that the package requires without extras, excluding itself."""
    waiting, names = [DISTRIBUTION], set[str]()
    while waiting:
        for text in importlib.metadata.requires(waiting.pop()) or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and _canonical(requirement.name) not in names:
                names.add(_canonical(requirement.name))
                waiting.append(requirement.name)
    return names


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _module_paths(distributions: set[str]) -> Iterator[Path]:
    """Yield the path of each top-level module that the given Python distributions install.

    The path is a directory for a package, otherwise a file.
    """
    for module, owners in importlib.metadata.packages_distributions().items():
        if {_canonical(owner) for owner in owners} & distributions:
            spec = importlib.util.find_spec(module)
            if spec is not None and spec.submodule_search_locations:
                yield Path(next(iter(spec.submodule_search_locations)))
            elif spec is not None and spec.origin is not None:
                yield Path(spec.origin)


def create(directory: Path) -> Path:
    """Create a Python environment without optional packages in a directory; return its interpreter."""
    venv.EnvBuilder(symlinks=True).create(directory)
    python = directory / "bin" / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    links = {Path(slurm_energy.__file__).parent, *_module_paths(core_distributions())}
    for source in links:
        (packages / source.name).symlink_to(source)
    return python


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str


# Each command runs in its own forked process, so that imports of other commands have no effect.
_DRIVER = """
import io, json, os, sys, traceback
from slurm_energy.cli import connection
from slurm_energy.cli.main import main
from slurm_energy.errors import UnavailableError

plan = json.load(sys.stdin)

class Controller:
    def get(self, path, params=None):
        if path not in plan["answers"]:
            raise UnavailableError("controller", "not reachable")
        return plan["answers"][path]

    def post(self, path, body):
        raise UnavailableError("controller", "not reachable")

connection.connect = lambda args, **limits: Controller()
outcomes = []
for number, argv in enumerate(plan["commands"]):
    child = os.fork()
    if child == 0:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), stream)
        code = 70
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    outcomes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
json.dump(outcomes, sys.stdout)
"""


def run_commands(
    python: Path, directory: Path, commands: Sequence[Sequence[str]], answers: Mapping[str, Any]
) -> list[Outcome]:
    """Run commands of senergy in `directory` with a fake controller.

    `answers` contains the controller's response for each path.
    """
    plan = json.dumps({"commands": commands, "answers": answers})
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "SENERGY_CONFIG": "energy.toml"}
    (directory / "energy.toml").touch()
    done = subprocess.run(
        [str(python), "-c", _DRIVER],
        input=plan,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=240,
        check=True,
    )
    return [
        Outcome(code, (directory / f"{number}.out").read_text(), (directory / f"{number}.err").read_text())
        for number, code in enumerate(json.loads(done.stdout))
    ]
