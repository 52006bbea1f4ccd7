"""Records of earlier runs that tests add to the database of a lab.

With these records, the lab is like a site where the programs of its users have run before.
"""

from __future__ import annotations

import json
import signal
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab_driver import LabDriver

from slurm_energy.accounting import engine

_PAUSE_S = 10.0
"""Between two runs, so that they were not simultaneous."""


def remember_runs(
    lab: LabDriver, users: Iterable[str], count: int, duration_s: float, **attributes: Any
) -> None:
    """Add runs to the history while senergyctld is stopped.

    Args:
        lab: the cluster.
        users: login names.
        count: number of runs of each user. The last ones ended a day ago.
        duration_s: duration of each run in seconds.
        **attributes: further attributes of each run, by the names in `run_history.FinishedRun`.
    """
    settings = tomllib.loads(lab.layout.energy_toml.read_text())
    last_end = time.time() - 86400.0
    lab.kill("senergyctld", how=signal.SIGTERM)
    path = Path(settings["controller"]["database"])
    with engine.connect(path) as connection, engine.transaction(connection):
        for user in users:
            for number in range(count):
                end = last_end - number * (duration_s + _PAUSE_S)
                run = {"state": "COMPLETED", "end": end, "duration_s": duration_s, "user": user, **attributes}
                connection.exec_driver_sql(
                    'INSERT INTO history (kind, "end", body, user) VALUES (?, ?, ?, ?)',
                    (user.encode(), end, json.dumps(run), user),
                )
    lab.start("senergyctld")
