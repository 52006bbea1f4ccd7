#!/usr/bin/env python3
"""Put the files of each package into one directory tree per package.

    packaging/stage_payload.py --system bookworm --wheels DIR --output DIR

The builds of deb and rpm only wrap the trees. The program writes DIR/<package>/usr/... for the
packages in packaging/payload.toml and for slurm-energy-plugins. It needs a C compiler, make, the
headers of any supported Slurm, setuptools and wheel. It needs no network. The directory of
--wheels contains the wheels that packaging/locks/pythonX.Y.txt lists (packaging/fetch-wheels
downloads them). Modes and contents of the files depend on the sources only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import wheel_contents

SOURCE = Path(__file__).resolve().parent.parent
HERE = SOURCE / "packaging"
LIBRARY = Path("usr/lib/slurm-energy")
SITE_PACKAGES = LIBRARY / "site-packages"
UNITS = Path("usr/lib/systemd/system")
BASE, NODE, CONTROLLER, LAB = (f"slurm-energy{part}" for part in ("", "-node", "-controller", "-lab"))
PLUGINS, ANALYSIS = "slurm-energy-plugins", "slurm-energy-analysis"
BUILD = "build"
"""Distributions in packaging/payload.toml that only the build needs."""
COMPLETION = {
    "bash": "bash-completion/completions/senergy",
    "zsh": "zsh/vendor-completions/_senergy",
    "fish": "fish/vendor_completions.d/senergy.fish",
}
COMMANDS = {
    "senergy": (BASE, "usr/bin", "slurm_energy.cli.main"),
    "senergyd": (NODE, "usr/sbin", "slurm_energy.agent.main"),
    "senergyctld": (CONTROLLER, "usr/sbin", "slurm_energy.controller.main"),
}
"""Package, directory and module of each command."""
LIBRARY_FILES = {
    NODE: ("senergy-hook", "prolog", "epilog"),
    CONTROLLER: ("job_submit.lua", "senergy_submit.lua", "senergy_licenses.lua", "prolog_slurmctld"),
}
UNIT_FILES = {
    BASE: ("senergy-policies.service", "senergy-policies.timer"),
    NODE: ("senergyd.service",),
    CONTROLLER: ("senergyctld.service",),
}
SYSTEM_FILES = {
    "sysusers": ("usr/lib/sysusers.d/{package}.conf",),
    "tmpfiles": ("usr/lib/tmpfiles.d/{package}.conf",),
    "service": ("usr/lib/systemd/system/{package}.service",),
    "dropin": tuple(
        f"usr/lib/systemd/system/{daemon}.service.d/slurm-energy.conf" for daemon in ("slurmctld", "slurmd")
    ),
}
"""Paths of the files in packaging/files, by suffix."""
TEMPLATE_PATHS = {
    "/opt/slurm-energy/bin": f"/{LIBRARY}/bin",
    "/usr/local/lib/slurm-energy": f"/{LIBRARY}",
    "/usr/local/bin/senergy": "/usr/bin/senergy",
}
"""Default paths in the templates of site files, and those of the packages."""
PLUGIN_SOURCES = ("spank", "prolog_epilog", "plugins", "packaging")
LAUNCHER = """\
#!/usr/lib/slurm-energy/bin/python3 -I
import sys

from {module} import main

sys.exit(main())
"""


class Payload:
    """Writer of the directory trees that become the packages, one tree per package.

    Attributes:
        output: directory of the trees.
        system: entry of packaging/payload.toml for the system that the packages are for.
        payload: content of packaging/payload.toml.
    """

    def __init__(self, output: Path, name: str) -> None:
        self.output = output
        self.payload = tomllib.loads((HERE / "payload.toml").read_text())
        self.name = name
        self.system = self.payload["systems"][name]

    def path(self, package: str, name: Path | str) -> Path:
        """Return the path of a file in a distribution package, and create the directory of the file."""
        path = self.output / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, package: str, name: Path | str, text: str, mode: int = 0o644) -> None:
        path = self.path(package, name)
        path.write_text(text)
        path.chmod(mode)

    def link(self, package: str, name: Path | str, target: str) -> None:
        self.path(package, name).symlink_to(target)


def stage_python(payload: Payload, wheels: Path) -> None:
    """Put the Python files of the packages into the directory trees that become the packages.

    These are slurm_energy, the lab, the contained Python distributions, and the virtual environment that
    contains all of these.
    """
    package_of = {
        name: package for package, names in payload.payload["distributions"].items() for name in names
    }
    pinned = re.findall(r"^([a-z0-9-]+)==", _lock(payload).read_text(), re.MULTILINE)
    for name in pinned:
        found = [
            wheel for wheel in sorted(wheels.glob("*.whl")) if wheel_contents.distribution_name(wheel) == name
        ]
        if len(found) != 1 or name not in package_of:
            why = f"{len(found)} wheels in {wheels}" if name in package_of else "no package in payload.toml"
            raise SystemExit(f"stage_payload: {name}: {why}")
        if package_of[name] != BUILD:
            wheel_contents.unpack(found[0], payload.path(package_of[name], SITE_PACKAGES))
    own = payload.path(BASE, SITE_PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        wheel_contents.unpack(build_wheel(Path(folder)), own, keep_tests=True)
    _separate_lab(payload, own)
    for template in (own / "slurm_energy/templates/site").glob("*.j2"):
        template.write_text(with_packaged_paths(template.read_text()))
    python = payload.system["python"]
    payload.link(BASE, LIBRARY / f"lib/python{python}/site-packages", "../../site-packages")
    payload.link(BASE, LIBRARY / "bin/python3", f"/usr/bin/python{python}")
    text = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    payload.write(BASE, LIBRARY / "pyvenv.cfg", text)
    kind = "rpm" if payload.name.startswith("el") else "deb"
    payload.write(BASE, LIBRARY / "package.toml", f'format = "{kind}"\nsystem = "{payload.name}"\n')
    for name, (package, folder, module) in COMMANDS.items():
        payload.write(package, LIBRARY / "bin" / name, LAUNCHER.format(module=module), 0o755)
        payload.link(package, f"{folder}/{name}", f"../lib/slurm-energy/bin/{name}")


def with_packaged_paths(template: str) -> str:
    """Return the text of a template of a site file with the default paths of the packages."""
    for path, packaged in TEMPLATE_PATHS.items():
        template = template.replace(f'default = "{path}"', f'default = "{packaged}"')
    return template


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this source in a folder and return its path."""
    copy = folder / "source"
    shutil.copytree(
        SOURCE,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", "debian", "vendor"),
    )
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    run([sys.executable, "-c", code, str(folder)], copy)
    return next(folder.glob("*.whl"))


def _separate_lab(payload: Payload, site_packages: Path) -> None:
    """Move the lab and its entry point into a distribution package of their own.

    The lab is the Python package slurm_energy_lab, which emulates a cluster.
    """
    target = payload.path(LAB, SITE_PACKAGES / "slurm_energy_lab")
    (site_packages / "slurm_energy_lab").rename(target)
    metadata = next(site_packages.glob("slurm_energy-*.dist-info"))
    for name in ("RECORD", "top_level.txt"):
        (metadata / name).unlink(missing_ok=True)
    entries = metadata / "entry_points.txt"
    scripts, _, lab = entries.read_text().partition("[slurm_energy.subcommands]")
    entries.write_text(scripts)
    version = metadata.name.removeprefix("slurm_energy-").removesuffix(".dist-info")
    folder = SITE_PACKAGES / f"slurm_energy_lab-{version}.dist-info"
    text = f"Metadata-Version: 2.1\nName: slurm-energy-lab\nVersion: {version}\n"
    payload.write(LAB, folder / "METADATA", text)
    payload.write(LAB, folder / "entry_points.txt", f"[slurm_energy.subcommands]{lab}")


def stage_plugins(payload: Payload) -> None:
    """Build the plugins and copy them into the file trees of the distribution packages.

    The files are the SPANK plugins for each supported series of Slurm, the hooks, the Lua modules, and
    the sources of the plugins.
    """
    series = " ".join(payload.payload["slurm"]["series"])
    library = payload.path(BASE, LIBRARY)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "spank"
        make("spank", "series", f"SERIES={series}", f"OUTPUT={built}")
        for directory in sorted(built.iterdir()):
            for package, name in ((BASE, "energy.so"), (NODE, "energy_hooks.so")):
                shutil.copyfile(directory / name, payload.path(package, LIBRARY / directory.name / name))
        installed = Path(folder) / "installed"
        make("prolog_epilog")
        make("prolog_epilog", "install", f"DESTDIR={installed}", "PREFIX=/usr")
        for package, names in LIBRARY_FILES.items():
            for name in names:
                path = installed / LIBRARY / name
                shutil.copy(path, payload.path(package, LIBRARY / name), follow_symlinks=False)
    line = f"optional /{LIBRARY}/energy.so policy_file=/run/senergyctld/policies\n"
    payload.write(BASE, LIBRARY / "plugstack.d/energy.conf", line)
    payload.write(NODE, LIBRARY / "plugstack.d/hooks.conf", f"optional /{LIBRARY}/energy_hooks.so\n")
    chosen = payload.system.get("slurm", payload.payload["slurm"]["series"][0])
    (library / "energy.so").symlink_to(f"slurm-{chosen}/energy.so")
    payload.link(NODE, LIBRARY / "energy_hooks.so", f"slurm-{chosen}/energy_hooks.so")
    _stage_plugin_sources(payload)


def _stage_plugin_sources(payload: Payload) -> None:
    for name in PLUGIN_SOURCES:
        for path in sorted((SOURCE / name).glob("*")):
            wanted = path.suffix in (".c", ".h", ".lua") or path.name in (
                "Makefile",
                "slurm-headers",
                "install-file",
            )
            if path.is_file() and wanted:
                target = payload.path(PLUGINS, Path("usr/src/slurm-energy") / name / path.name)
                shutil.copy(path, target)
    payload.link(PLUGINS, LIBRARY / "source", "../../src/slurm-energy")


def stage_system_files(payload: Payload, tools: Path) -> None:
    """Put the system files of the packages into the directory trees that become the packages.

    These are systemd units, files in sysusers.d and tmpfiles.d, man pages, shell completion and the
    documentation.
    """
    for package, units in UNIT_FILES.items():
        for unit in units:
            text = run_staged(payload, tools, "slurm_energy.cli.main", "template", "render", unit)
            payload.write(package, UNITS / unit, text)
    for path in sorted((HERE / "files").iterdir()):
        package, kind = path.stem, path.suffix.removeprefix(".")
        for name in SYSTEM_FILES[kind]:
            payload.write(package, name.format(package=package), path.read_text())
    documents = Path("usr/share/doc/slurm-energy")
    payload.write(BASE, documents / "README.md", (SOURCE / "README.md").read_text())
    payload.write(BASE, documents / "CHANGELOG.md", (SOURCE / "CHANGELOG.md").read_text())
    for path in sorted((SOURCE / "docs").rglob("*.md")):
        payload.write(BASE, documents / "docs" / path.relative_to(SOURCE / "docs"), path.read_text())
    for shell, name in COMPLETION.items():
        text = run_staged(payload, tools, "slurm_energy.cli.completion", shell)
        payload.write(BASE, Path("usr/share") / name, text)
    with tempfile.TemporaryDirectory() as folder:
        run_staged(payload, tools, "slurm_energy.cli.man", folder)
        for page in sorted(Path(folder).iterdir()):
            package = COMMANDS.get(page.stem, (BASE,))[0]
            payload.write(package, f"usr/share/man/man{page.suffix[1:]}/{page.name}", page.read_text())


def run_staged(payload: Payload, tools: Path, module: str, *arguments: str) -> str:
    """Run a module of the staged slurm_energy and return its output.

    A staged distribution may contain compiled libraries for another Python version than the running one.
    The modules that this function runs need no compiled library.
    """
    paths = [str(payload.path(package, SITE_PACKAGES)) for package in (BASE, LAB)] + [str(tools)]
    code = (
        f"import runpy, sys; sys.path[:0] = {paths!r}; runpy.run_module({module!r}, None, '__main__', True)"
    )
    command = [sys.executable, "-B", "-I", "-c", code, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"stage_payload: {module} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def make(directory: str, *arguments: str) -> None:
    run(["make", "--no-print-directory", "-C", str(SOURCE / directory), *arguments], SOURCE)


def run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stage_payload: {command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def set_modes(output: Path) -> None:
    """Set the permissions and the modification time of all files, so that builds are reproducible.

    Directories and executable files get mode 755, all other files 644. The modification time is that of
    the variable SOURCE_DATE_EPOCH, if it is set.
    """
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    for path in sorted(output.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        if epoch:
            os.utime(path, (epoch, epoch), follow_symlinks=False)


def _lock(payload: Payload) -> Path:
    return HERE / "locks" / f"python{payload.system['python']}.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put the files of each package into a directory tree.")
    parser.add_argument("--system", required=True, help="bookworm, trixie or el9")
    parser.add_argument("--wheels", type=Path, required=True, help="directory of the contained wheels")
    parser.add_argument("--output", type=Path, required=True, help="directory for the trees")
    args = parser.parse_args()
    os.umask(0o022)
    payload = Payload(args.output.resolve(), args.system)
    with tempfile.TemporaryDirectory() as tools:
        stage_python(payload, args.wheels.resolve())
        stage_plugins(payload)
        for wheel in (args.wheels / "tools").glob("*.whl"):
            wheel_contents.unpack(wheel, Path(tools))
        stage_system_files(payload, Path(tools))
    for package in (BASE, ANALYSIS, NODE, CONTROLLER, PLUGINS, LAB):
        set_modes(payload.output / package)


if __name__ == "__main__":
    main()
