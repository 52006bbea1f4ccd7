"""Batch scripts and site files that `senergy template` renders: the files, their variables, the checks."""

from slurm_energy.templates.catalogue import Template, TemplateVariable, find, names, render

__all__ = ["Template", "TemplateVariable", "find", "names", "render"]
