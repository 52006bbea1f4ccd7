"""Warnings about configuration keys that take effect only at the next start of senergyctld."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config import Config


def pending_changes(current: Config, new: Config) -> Iterator[str]:
    """Yield one line for each changed key that a reload does not apply."""
    for key in ("listen", "database", "database_password_file", "state_dir"):
        if getattr(new.controller, key) != getattr(current.controller, key):
            yield f"controller.{key}: a new value takes effect at the next start"
    if new.cluster.controller_url != current.cluster.controller_url:
        yield "cluster.controller_url: senergyctld uses a new value from its next start on"
    if new.metrics != current.metrics:
        yield "section metrics: new values take effect at the next start"
