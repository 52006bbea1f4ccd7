"""The part of `senergy sweep` that uses presets, which are configurations for a kind of program.

The module defines the options of the command line and describes the machine of the job. It returns
the combinations of settings to measure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

if TYPE_CHECKING:
    from slurm_energy.tuning.sweep.factors import Factor
    from slurm_energy.tuning.sweep.preset import PresetConfigurations, SweepPreset

_OWN_OPTIONS = ("batch-size", "threads", "precision")
"""Options of `senergy sweep` that replace the choice of the same name in a preset."""


@dataclass(frozen=True, slots=True)
class SweepDesign:
    """Factors and configurations that a parameter sweep varies.

    A preset is a set of configurations for a kind of program.

    Attributes:
        factors: variables, sbatch options and hardware settings (knobs). Their values are combined with each
            other and with the configurations.
        preset: the preset that the user named; None without a preset.
        configurations: the configurations of the preset; None means no preset.
    """

    factors: tuple[Factor, ...]
    preset: SweepPreset | None = None
    configurations: PresetConfigurations | None = None

    @property
    def replaced_options(self) -> tuple[str, ...]:
        """Options of sbatch that the sweep's preset sets instead of the options in the batch script.

        A preset is a named set of settings for a kind of program.
        """
        settings = self.preset.settings if self.preset else {}
        return tuple(name.removeprefix("sbatch.") for name in settings if name.startswith("sbatch."))


def add_options(group: argparse._ArgumentGroup) -> None:
    """Add the options of presets."""
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="configurations of a kind of program: pytorch, pytorch-ddp, openmp, or the path of a TOML file",
    )
    group.add_argument(
        "--vary",
        metavar="CHOICE=VALUE,...",
        action="append",
        default=[],
        help="with --preset: other values of one of its choices, such as cores=4,8",
    )
    group.add_argument(
        "--machine",
        metavar="CORES[xTHREADS]",
        help="with --preset: cores of a node and threads per core (default: those that Slurm reports)",
    )


def sweep_design(args: argparse.Namespace, content: bytes, factors: Sequence[Factor]) -> SweepDesign:
    """Return what `senergy sweep` has to run: the settings to vary and the configurations.

    A factor is a setting or option that varies between the runs of a sweep. A preset is a file that names
    the configurations of a kind of program.

    Args:
        args: command line of `senergy sweep`.
        content: content of the batch script.
        factors: factors that the other options define.

    Raises:
        UsageError: an option of presets is given without a preset, or the preset has no feasible
            configuration.
        NotFoundError: there is no such preset, or Slurm has no such node.
        UnavailableError: slurmctld does not answer.
    """
    from slurm_energy.sweep.preset_files import load_preset
    from slurm_energy.tuning.sweep.factors import option_of
    from slurm_energy.tuning.sweep.preset import configurations

    if args.preset is None:
        for option, value in (("--vary", args.vary), ("--machine", args.machine)):
            if value:
                raise UsageError(option, "given without --preset", "name a preset, such as --preset pytorch")
        return SweepDesign(tuple(factors))
    preset = load_preset(args.preset)
    for text in args.vary:
        name, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--vary {shown(text)}", "no value", "write CHOICE=VALUE,VALUE")
        preset = preset.with_values(name, values)
    kept = []
    for factor in factors:
        if factor.name in _OWN_OPTIONS and factor.name.replace("-", "_") in preset.choices:
            preset = preset.with_values(factor.name, ",".join(str(value) for value in factor.values))
        else:
            kept.append(factor)
    options = {option_of(factor.name) for factor in kept}
    kept += [knob for knob in preset.knobs if option_of(knob.name) not in options]
    return SweepDesign(tuple(kept), preset, configurations(preset, _machine(args, content)))


def refused_lines(refused: Mapping[str, int]) -> list[str]:
    """Return one line of text for each reason why combinations of a sweep's preset are left out."""
    return [f"{number} combinations are left out: {reason}" for reason, number in refused.items()]


def _machine(args: argparse.Namespace, content: bytes) -> dict[str, int]:
    """Return the number of cores and the number of threads per core of the machine.

    The keys of the result are the names that sweep presets use for these numbers.
    """
    from slurm_energy.slurm.batch_script import effective_options
    from slurm_energy.slurm.node_topology import parse_topology, read_topology

    if args.machine is not None:
        topology = parse_topology(args.machine, "--machine")
    else:
        at = args.rest.index("--") if "--" in args.rest else len(args.rest)
        topology = read_topology(effective_options(args.script, content, args.rest[:at]))
    return {"machine_cores": topology.cores, "machine_threads_per_core": topology.threads_per_core}
