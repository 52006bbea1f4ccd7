"""Download of Slurm's source package from the Debian or Ubuntu archive, without changing /etc/apt.

apt verifies the signatures of the archive. Nothing is compiled by this module.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.build_tools import run_tool
from slurm_energy.slurm.command import Runner, run_command

_ONE_LINE: Final = re.compile(r"deb(?:-src)?\s+(?P<options>\[[^]]*\]\s+)?(?P<uri>\S+)\s+(?P<rest>\S.*)")
_ARCHIVE: Final = re.compile(r"/(debian|ubuntu)(-security)?/?$")
_APT: Final = Path("/etc/apt")


def source_package(run: Runner = run_command) -> tuple[str, str]:
    """Return name and version of the source package from which the installed slurmctld was built.

    Raises:
        UnavailableError: slurmctld was not installed from a Debian package.
    """
    try:
        shown = run(["dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", "slurmctld"])
    except UnavailableError:
        raise UnavailableError(
            "source of slurmctld", "it is not installed from a Debian package", "give --slurm-source DIR"
        ) from None
    name, _, version = shown.strip().partition(" ")
    return name, version


def source_lists(etc: Path = _APT) -> str:
    """Return an apt configuration for source packages from the Debian or Ubuntu archives of this host.

    The format is deb822.

    Sources of other publishers are left out, because they would make the download slower and less reliable.

    Args:
        etc: apt's configuration directory.
    """
    stanzas: list[str] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        stanzas += _from_deb822(text) if path.suffix == ".sources" else _from_lines(text)
    return "\n\n".join(dict.fromkeys(stanzas)) + "\n"


def _from_deb822(text: str) -> Iterator[str]:
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if line.strip() and not line.startswith("#")]
        keys = {
            line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines if ":" in line
        }
        uris = [uri for uri in keys.get("uris", "").split() if _ARCHIVE.search(uri)]
        if uris and "main" in keys.get("components", "").split() and keys.get("enabled", "yes") != "no":
            fields = [
                line for line in lines if not re.match(r"(types|uris|architectures):", line, re.IGNORECASE)
            ]
            yield "\n".join(["Types: deb-src", f"URIs: {' '.join(uris)}", *fields])


def _from_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None or not _ARCHIVE.search(match["uri"]):
            continue
        suite, *components = match["rest"].split()
        if "main" in components:
            signed = re.search(r"signed-by=(\S+?)[\]\s]", match["options"] or "")
            key = [f"Signed-By: {signed[1]}"] if signed else []
            yield "\n".join(
                ["Types: deb-src", f"URIs: {match['uri']}", f"Suites: {suite}", "Components: main", *key]
            )


def download(cache: Path, name: str, version: str, etc: Path = _APT) -> Path:
    """Download a source package, unpack it and apply Debian's patches.

    Args:
        cache: working directory, which is created if it is missing.
        name: name of the source package.
        version: version of the source package.
        etc: apt's configuration directory, which names the archive.

    Returns:
        The directory of the unpacked source, below `cache`.

    Raises:
        UnavailableError: no archive is configured, the archive does not have the package, or dpkg-source is
            missing.
    """
    if not shutil.which("dpkg-source"):
        raise UnavailableError("dpkg-source", "not found", "apt-get install dpkg-dev")
    lists = source_lists(etc)
    if not lists.strip():
        raise UnavailableError(
            f"source of {name} {version}", f"{etc} names no Debian archive", "give --slurm-source DIR"
        )
    apt, fetched = cache / "apt", cache / "fetched"
    for directory in (apt / "parts", apt / "lists/partial", apt / "cache/archives/partial", fetched):
        directory.mkdir(parents=True, exist_ok=True)
    (apt / "parts" / "slurm-energy.sources").write_text(lists)
    command = _apt_get(apt)
    what = f"source of {name} {version}"
    run_tool([*command, "update"], fetched, "list of source packages")
    try:
        run_tool([*command, "source", "--download-only", f"{name}={version}"], fetched, what)
    except UnavailableError as error:
        raise UnavailableError(what, error.why, "upgrade slurmctld, or give --slurm-source DIR") from None
    tree = cache / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    descriptions = sorted(fetched.glob("*.dsc"))
    if not descriptions:
        raise UnavailableError(what, "the archive has no .dsc file for it", "give --slurm-source DIR")
    run_tool(["dpkg-source", "--no-check", "-x", descriptions[-1].name, str(tree)], fetched, what)
    for directory in (apt, fetched):
        shutil.rmtree(directory, ignore_errors=True)
    return tree


def _apt_get(apt: Path) -> list[str]:
    """Return an apt-get command that keeps its lists and caches in `apt`.

    The lists and caches of the host are left unchanged.
    """
    options = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(apt / "parts"),
        "Dir::State::lists": str(apt / "lists"),
        "Dir::Cache": str(apt / "cache"),
        "APT::Sandbox::User": "root",  # the directories above do not belong to the user _apt
    }
    return ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
