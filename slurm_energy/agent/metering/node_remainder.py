"""The energy that the node meter leaves for the component `other`.

This energy is the energy of the node meter minus the energy of the components with counters of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slurm_energy.agent.metering.attribution import rest_of_node
from slurm_energy.agent.metering.component_account import SLACK_S
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

MIN_SOLE_SPAN_S = 1.0
"""Node power meters update at most ten times a second, so a shorter sample shows the components only."""
_MAX_DEBT_S = 30.0
"""A node meter that shows less than the components for longer contradicts the components' counters."""


class NodeRemainder:
    """The energies to subtract from the next energy of the node meter.

    - Energy of the components for the same time as the next energy of the node meter.
    - A debt: the counters of the components were ahead of the node meter. The debt is limited, because the
      node meter and the counters may also contradict each other for good.
    - Late energy: a component reported energy after `other` was charged for the same time, and `other`
      contains this energy. Late energy is subtracted without a limit. Otherwise it would be counted twice.
    """

    def __init__(self) -> None:
        self._parts_uj = 0
        self._debt_uj = 0
        self._late_uj = 0
        self._is_late_new = False
        self._failures = RepeatedFailureLog(log)

    @property
    def has_late(self) -> bool:
        """Whether late energy is left, so that the next energy of `other` is too low."""
        return self._late_uj > 0

    def add_parts(self, energy_uj: int) -> None:
        """Add microjoules of components for time in which `other` is not charged yet."""
        self._parts_uj += energy_uj

    def add_late(self, energy_uj: int) -> None:
        """Add microjoules of a component for time in which `other` is charged already."""
        self._late_uj += energy_uj
        self._is_late_new = self._is_late_new or energy_uj > 0

    def restart(self) -> None:
        """Start with a node meter whose reading does not include earlier energy of the components."""
        self._parts_uj = self._debt_uj = 0

    def take(self, node_uj: int, length_s: float) -> int:
        """Return the microjoules of `other` for an energy of the node meter.

        Args:
            node_uj: microjoules that the node meter counted since the last call.
            length_s: seconds in which it counted them.
        """
        rest_uj, debt_uj = self._take(node_uj)
        self._debt_uj = self._bounded(debt_uj, node_uj, length_s)
        return rest_uj

    def take_before_reboot(self, node_uj: int) -> int:
        """Return the microjoules of `other` for the last energy of the node meter before a reboot."""
        rest_uj, _ = self._take(node_uj)
        self._debt_uj = 0
        return rest_uj

    def dump(self) -> dict[str, int]:
        """Return the energies as entries of the ledger's dict for JSON."""
        return {
            "node_parts_uj": self._parts_uj,
            "debt_uj": self._debt_uj,
            "late_uj": self._late_uj,
            "is_late_new": self._is_late_new,
        }

    def load(self, data: Mapping[str, int]) -> None:
        """Restore the energies from the output of `dump`. Earlier releases stored no late energy."""
        self._parts_uj, self._debt_uj = data["node_parts_uj"], data["debt_uj"]
        self._late_uj, self._is_late_new = data.get("late_uj", 0), bool(data.get("is_late_new"))

    def _take(self, node_uj: int) -> tuple[int, int]:
        rest_uj, debt_uj = rest_of_node(node_uj, self._parts_uj, self._debt_uj)
        if self._is_late_new:
            # A reading is divided into late and current energy by time. If power varied, the debt is late.
            self._late_uj, debt_uj = self._late_uj + debt_uj, 0
        self._parts_uj, self._is_late_new = 0, False
        taken_uj = min(rest_uj, self._late_uj)
        self._late_uj -= taken_uj
        return rest_uj - taken_uj, debt_uj

    def _bounded(self, debt_uj: int, node_uj: int, length_s: float) -> int:
        if length_s < MIN_SOLE_SPAN_S - SLACK_S:  # too short to compare the powers
            return debt_uj
        max_uj = round(node_uj * _MAX_DEBT_S / length_s)
        if debt_uj <= max_uj:
            self._failures.clear("meter of the node", "shows as much as its parts again")
            return debt_uj
        self._failures.report("meter of the node", "shows less than the node's parts together")
        return max_uj
