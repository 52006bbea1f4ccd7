"""The plan of setup: the changes that a host needs for its role, and the steps left to the administrator."""

from __future__ import annotations

import pwd
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from slurm_energy.config.loader import load, locate
from slurm_energy.errors import ConfigError, EnergyError, UnavailableError
from slurm_energy.setup import job_submit_edit, plugstack_edit, slurm_conf_edit, unit_files
from slurm_energy.setup.changes import FileChange, edit
from slurm_energy.setup.configuration import configuration_text
from slurm_energy.setup.detection import detected_values
from slurm_energy.setup.hunk import Hunk
from slurm_energy.setup.own_files import OwnFiles
from slurm_energy.setup.power_saving_lines import power_saving_lines
from slurm_energy.setup.site import SlurmSite, file_that_sets
from slurm_energy.setup.site_file import SiteFile, read_site_file
from slurm_energy.slurm.plugin_release import plugin_release
from slurm_energy.slurm.spank_selection import SPANK_PLUGINS
from slurm_energy.trusted_files import check_folder

DATABASE_DIRECTORY: Final = Path("/var/lib/senergyctld")
_JOB_SUBMIT_PLUGIN: Final = "job_submit_lua.so"


class Role(StrEnum):
    """Role of a host in the cluster: controller, compute node or login node."""

    CONTROLLER = "controller"
    NODE = "node"
    LOGIN = "login"


@dataclass
class SetupPlan:
    """Changes that setup would make on a host.

    The plan includes the steps that setup leaves to the administrator.

    Attributes:
        role: role of the host.
        own_changes: changes of files of slurm-energy, in the order of execution.
        slurm_changes: changes to files of Slurm, in the order in which they are made. Each needs consent.
        by_hand: steps for the administrator; each step is one complete line.
        notes: facts about the host, and remarks on files that setup leaves unchanged.
        services: units of slurm-energy to enable and start.
    """

    role: Role
    own_changes: list[FileChange] = field(default_factory=list)
    slurm_changes: list[FileChange] = field(default_factory=list)
    by_hand: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    services: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Choices of the administrator for `senergy setup`.

    Attributes:
        contain: whether to add the flag Contain to PrologFlags of slurm.conf as well.
        config: path of energy.toml; None means the usual path.
        values: further values of energy.toml, by section and key.
        slurmctld_has_alloc: whether the running slurmctld runs prologs at allocation; None means unknown.
    """

    contain: bool = False
    config: Path | None = None
    values: dict[tuple[str, str], object] = field(default_factory=dict)
    slurmctld_has_alloc: bool | None = None


def make_plan(role: Role, site: SlurmSite, own: OwnFiles, options: PlanOptions) -> SetupPlan:
    """Return the plan of `senergy setup`: all changes that set up slurm-energy on a host.

    Raises:
        UnavailableError: files of slurm-energy are not installed.
        ConfigError: an installed unit reads another energy.toml than the options name.
        EnergyError: a file of the site cannot be read.
    """
    if not own.has_plugins:
        todo = "install the packages of slurm-energy, or run make install-hooks"
        raise UnavailableError(f"{own.library}/plugstack.d", "the plugins for Slurm are not installed", todo)
    _check_series(site, own)
    plan = SetupPlan(role)
    _plan_configuration(plan, site, own, options)
    if role is not Role.LOGIN:
        _plan_service(plan, site, own, locate(options.config))
    elif not site.is_controller:  # senergyctld writes the file itself
        plan.services.append(unit_files.POLICY_TIMER)
        plan.own_changes += unit_files.policy_copy_changes(own, locate(options.config))
    if site.is_configless_client and not (role is Role.CONTROLLER or site.is_controller):
        plan.notes.append(f"{site.conf} comes from slurmctld (configless), so nothing is edited here")
        plan.notes.append("run `senergy setup controller` on the host of slurmctld, if not yet done")
        return plan
    _note_other_controllers(plan, site)
    if role is Role.CONTROLLER:
        _plan_job_submit(plan, site, own)
    if _may_edit_slurm_conf(plan, site, options):
        _plan_prolog_flags(plan, site, options)
    _plan_plugstack(plan, site, own)
    return plan


def _check_series(site: SlurmSite, own: OwnFiles) -> None:
    """Raise an error if the plugins were built for another release series than that of the installed Slurm.

    Slurm would not load plugins of another series.
    """
    plugins = (own.library / name for name in SPANK_PLUGINS)
    # Login nodes lack energy_hooks.so.
    releases = {plugin: plugin_release(plugin) for plugin in plugins if plugin.exists()}
    if site.installation is None or not any(releases.values()):
        return
    installed = site.installation.release()
    for plugin, built in releases.items():
        if built is not None and built[:2] != installed[:2]:
            todo = "install the package or build the plugins for this Slurm"
            raise UnavailableError(
                str(plugin), f"was built for Slurm {built}, installed is {installed}", todo
            )


def _plan_configuration(plan: SetupPlan, site: SlurmSite, own: OwnFiles, options: PlanOptions) -> None:
    path = locate(options.config)
    file = read_site_file(path)
    if file.data is not None:
        plan.notes.append(f"{path} exists and stays as it is")
        config = load(path, trusted=True)  # the daemons would not start with a faulty file
        name = config.cluster.name
        if name != site.cluster_name:
            plan.by_hand.append(f"{path}: cluster.name is {name}, but ClusterName is {site.cluster_name}")
        if plan.role is Role.CONTROLLER and config.power_saving.mode != "off":
            plan.by_hand += power_saving_lines(site, own.library)
        return
    if path.parent.exists():
        check_folder(path.parent)  # the daemons would reject the file
    detected = detected_values(site, options.values, is_node=plan.role is Role.NODE)
    text = configuration_text(detected)
    plan.own_changes.append(
        FileChange(file, text.encode(), reason="configuration with the values of this host")
    )


def _plan_service(plan: SetupPlan, site: SlurmSite, own: OwnFiles, config: Path) -> None:
    if plan.role is Role.NODE:
        name = "senergyd"
    elif site.controllers and site.controllers[0].host not in site.names:
        primary = site.controllers[0].host
        plan.notes.append(f"{primary} is the primary controller: senergyctld is not started here")
        plan.notes.append("two instances of senergyctld need a shared database: docs/high-availability.md")
        return
    else:
        name = "senergyctld"
    plan.services.append(f"{name}.service")
    plan.own_changes += unit_files.unit_changes(name, site, own, service_user(site), config)


def service_user(site: SlurmSite) -> str:
    """Return the user as whom senergyctld runs: SlurmUser, else the user slurm, else root."""
    user = site.slurm_user if site.slurm_user != "root" else "slurm"
    try:
        return pwd.getpwnam(user).pw_name
    except KeyError:
        if user == site.slurm_user:
            raise ConfigError(f"SlurmUser={user}", "this host has no such user", "create the user") from None
        return "root"


def _may_edit_slurm_conf(plan: SetupPlan, site: SlurmSite, options: PlanOptions) -> bool:
    """Return whether setup may change PrologFlags in slurm.conf on this host now.

    A slurmd with the flag Alloc waits for a message that a slurmctld without Alloc never sends. Jobs then
    fail. Therefore the flag is set for slurmctld first.
    """
    if plan.role is Role.CONTROLLER or site.runs_prolog_at_allocation:
        return True
    if site.is_controller or options.slurmctld_has_alloc:
        return True
    plan.notes.append(
        "PrologFlags is first set by `senergy setup controller`; run this command again after it if this "
        "host has a slurm.conf of its own"
    )
    return False


def _note_other_controllers(plan: SetupPlan, site: SlurmSite) -> None:
    others = [one.host for one in site.controllers if one.host not in site.names]
    if plan.role is Role.CONTROLLER and others:
        plan.notes.append(f"run `senergy setup controller` on {', '.join(others)} too, before the nodes")


def _plan_prolog_flags(plan: SetupPlan, site: SlurmSite, options: PlanOptions) -> None:
    flags = site.items("prologflags")
    wanted = [] if site.runs_prolog_at_allocation else ["Alloc"]
    if options.contain and not {"contain", "x11"}.intersection(flags):
        if "nohold" in flags:
            plan.by_hand.append("PrologFlags: Slurm does not permit Contain with NoHold; decide for one")
        else:
            wanted.append("Contain")
    for key in ("Prolog", "Epilog"):
        if values := site.settings.get(key.lower()):
            plan.notes.append(f"{key}={', '.join(values)} stays as it is")
    if not wanted:
        plan.notes.append(f"PrologFlags={site.value('prologflags')} stays as it is")
    elif "frontendname" in site.settings:
        plan.by_hand.append("PrologFlags=Alloc is not possible with front end nodes; jobs are measured late")
    else:
        reason = "announces each job on all of its nodes at allocation"
        _edit_conf(plan, site, "PrologFlags", wanted, reason)


def _plan_job_submit(plan: SetupPlan, site: SlurmSite, own: OwnFiles) -> None:
    """Plan the changes of job_submit.lua and JobSubmitPlugins.

    The script is written before slurm.conf names it.
    """
    if not own.has_check_module:
        plan.by_hand.append(f"{own.library}/senergy_submit.lua is missing: install slurm-energy-controller")
        return
    directory = site.plugin_directory
    if not site.uses_job_submit_lua and (directory is None or not (directory / _JOB_SUBMIT_PLUGIN).exists()):
        where = directory or "Slurm's plugin directory"
        plan.by_hand.append(f"{_JOB_SUBMIT_PLUGIN} is not in {where}: slurmctld cannot check energy flags")
        return
    script = read_site_file(site.job_submit_script)
    if script.data is not None and not site.uses_job_submit_lua and not _is_own_script(script, own):
        plan.by_hand.append(
            f"{script.path} exists, but JobSubmitPlugins does not name lua: if the script is meant to run, "
            "add lua to JobSubmitPlugins and run this command again"
        )
        return
    reason = "checks energy flags in slurmctld; the functions of the site run first"
    try:
        if script.data is None:
            text = job_submit_edit.new_script(own.library)
            plan.slurm_changes.append(FileChange(script, text.encode(), reason=reason, kind="script"))
        elif hunk := job_submit_edit.add_check(script.text, own.library, script.path):
            plan.slurm_changes.append(edit(script, (hunk,), reason, "script"))
    except EnergyError as error:
        plan.by_hand.append(str(error))
        return
    if not site.uses_job_submit_lua:
        _edit_conf(plan, site, "JobSubmitPlugins", ["lua"], "checks energy flags in slurmctld")


def _is_own_script(script: SiteFile, own: OwnFiles) -> bool:
    try:
        shipped = (own.library / "job_submit.lua").read_bytes()
    except OSError:
        shipped = b""
    return script.data in (shipped, job_submit_edit.new_script(own.library).encode())


def _plan_plugstack(plan: SetupPlan, site: SlurmSite, own: OwnFiles) -> None:
    file = read_site_file(site.plugstack)
    hunk = plugstack_edit.add_include(file.text, own.plugstack_pattern)
    if hunk is None:
        plan.notes.append(f"{site.plugstack} includes {own.plugstack_pattern} already")
        return
    reason = "adds the --energy-* flags and reports jobs to senergyd; a missing file has no effect"
    plan.slurm_changes.append(edit(file, (hunk,), reason, "plugstack"))


def _edit_conf(plan: SetupPlan, site: SlurmSite, key: str, items: list[str], reason: str) -> None:
    """Add items to a key of slurm.conf, in the file that sets the key last."""
    file = read_site_file(file_that_sets(key, site.conf, site.cluster_name))
    try:
        hunk = slurm_conf_edit.add_items(file.text, key, items, reason)
    except EnergyError as error:
        plan.by_hand.append(str(error))
        return
    _merge(plan, file, hunk, reason)


def _merge(plan: SetupPlan, file: SiteFile, hunk: Hunk, reason: str) -> None:
    """Add a change of some lines (hunk) to the setup plan.

    If the plan already changes this file, the hunk is added to that change, so that each file is written
    only once.
    """
    for number, change in enumerate(plan.slurm_changes):
        if change.path == file.path:
            if any(other.at == hunk.at for other in change.hunks):
                hunk = replace(hunk, joined=False)
            plan.slurm_changes[number] = edit(
                file, (*change.hunks, hunk), f"{change.reason}; {reason}", change.kind
            )
            return
    plan.slurm_changes.append(edit(file, (hunk,), reason, "slurm.conf"))
