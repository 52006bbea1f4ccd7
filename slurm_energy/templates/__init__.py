"""Templates of batch scripts and site files for `senergy template`, their variables and value checks."""

from slurm_energy.templates.catalogue import Template, TemplateVariable, find, names, render

__all__ = ["Template", "TemplateVariable", "find", "names", "render"]
