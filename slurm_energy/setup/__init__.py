"""Setup of slurm-energy on a host of a Slurm cluster, and its complete removal.

The package reads the site's Slurm configuration, proposes changes, and makes the changes. A journal records
the changes, so that an interrupted setup can be completed or undone. The following modules contain only pure
functions on texts: `conf_text`, `hunk`, `slurm_conf_edit`, `plugstack_edit`, `job_submit_edit`,
`lua_tokens`.
"""
