"""Batch scripts and site files that `senergy template` renders: the files, their variables, the checks."""

from slurm_energy.templates.catalogue import Template, Variable, find, names, render

__all__ = ["Template", "Variable", "find", "names", "render"]
