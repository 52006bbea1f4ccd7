"""Templates of batch scripts and of configuration files of a site, for `senergy template`.

The package also contains the variables of the templates and the checks of their values.
"""

from slurm_energy.templates.catalogue import Template, TemplateVariable, find, names, render

__all__ = ["Template", "TemplateVariable", "find", "names", "render"]
