"""State of a controller that keeps running while its role changes between active and passive.

senergyctld may run on several hosts, one of which is active. The module keeps what a controller needs
in both roles: its configuration, its name, the policy file, and the host of the active slurmctld.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy import __version__, service_manager
from slurm_energy.accounting.controller_lease import LeaseState, Presence
from slurm_energy.config import Config
from slurm_energy.config.addresses import parse_listen
from slurm_energy.controller.policy_file import write_policy_file
from slurm_energy.controller.standby.slurmctld_follower import SlurmctldFollower
from slurm_energy.errors import EnergyError
from slurm_energy.policies.policy_file import policy_file_text, with_budget_lines
from slurm_energy.slurm.active_slurmctld import ActiveSlurmctld
from slurm_energy.validation import DaemonRole, load_for_daemon
from slurm_energy.validation.controller_address import own_url
from slurm_energy.validation.host import this_host

_OBSERVE_S: Final = 5.0
_OBSERVE_LIMIT_S: Final = 2.0
"""Time for which a role waits for an observation. A lease must not lapse while Slurm's files hang."""
log = logging.getLogger("senergyctld")


class ControllerHost:
    """State that a controller keeps when it changes between the active and the passive role.

    Args:
        config: configuration at the start.
        argument: path of the configuration file named on the command line; None means the default path.
        log_level: log level named on the command line; None means that the level in the configuration
            applies.
        clock_s: returns monotonic time in seconds.

    Attributes:
        config: the current configuration.
        name: URL of this controller in `cluster.controller_url`, or host and port.
        beside: whether the active slurmctld runs on this host; None means unknown.
    """

    def __init__(
        self,
        config: Config,
        argument: str | None,
        log_level: str | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.argument, self.log_level = config, argument, log_level
        port = parse_listen(config.controller.listen)[1]
        self.name = own_url(config, this_host()) or f"http://{os.uname().nodename}:{port}"
        self.beside: bool | None = None
        self._clock_s = clock_s
        self._follower = SlurmctldFollower(ActiveSlurmctld(), clock_s)
        self._observed_s = -_OBSERVE_S
        self._observation: threading.Thread | None = None
        self._started = time.time()
        self._written: str | None = None

    def presence(self, *, ready: bool = True) -> Presence:
        """Return the announcement of this controller to the other controllers."""
        return Presence(self.name, __version__, self._started, ready, self.beside)

    def observe_slurmctld(self) -> None:
        """Find out whether the active slurmctld runs on this host, at most every few seconds.

        The call may block for two seconds: the heartbeat file of slurmctld may be on a file system that
        hangs, and scontrol may take long. Until the observation ends, the result of the previous observation
        remains.
        """
        if self._observation is None and self._clock_s() - self._observed_s >= _OBSERVE_S:
            self._observed_s = self._clock_s()
            self._observation = threading.Thread(target=self._observe, name="slurmctld", daemon=True)
            self._observation.start()
        if self._observation is not None:
            self._observation.join(_OBSERVE_LIMIT_S)
            if not self._observation.is_alive():
                self._observation = None

    def _observe(self) -> None:
        self.beside = self._follower.is_beside_slurmctld()

    def successor(self, state: LeaseState) -> str | None:
        """Return the controller that should become active instead of this one.

        The result is None if no change is needed.
        """
        return self._follower.successor(state, self.name, self.beside)

    def write_policies(self, lines: Sequence[str]) -> None:
        """Write the policy file if its text has changed.

        Args:
            lines: lines about power budgets, which the active controller adds.

        Raises:
            ConfigError, UnavailableError: the file cannot be written.
        """
        text, _ = with_budget_lines(policy_file_text(self.config), lines)
        if text != self._written:
            write_policy_file(self.config.controller.policy_file, text)
            self._written = text

    def reload(self) -> None:
        """Read the configuration again while passive.

        Keep the old configuration if the new one is invalid.
        """
        try:
            self.config = load_for_daemon(self.argument, DaemonRole.CONTROLLER, log)
        except EnergyError as error:
            for line in error.lines:
                log.error("configuration not reloaded: %s", line)
            return
        service_manager.set_log_level(self.log_level or self.config.controller.log_level)
        log.info("configuration read again: %s", self.config.path or "defaults")

    def forget_written_policies(self) -> None:
        """Let the next call of `write_policies` write the file even if the text has not changed.

        The controller may have written another text to the file in its other role (active or passive).
        """
        self._written = None
