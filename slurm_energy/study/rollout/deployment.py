"""State of a deployment of a study as plain data.

The state consists of the plan, the stage, the assignment of jobs to the treated or the control group, and
the log of all changes of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from slurm_energy.study.choice.alternatives import StudyAlternative, alternative_of
from slurm_energy.study.data.jobs_table import JobsTable
from slurm_energy.study.rollout.assignment import ArmAssignment, AssignmentDesign, assignment_of
from slurm_energy.study.rollout.stages import DeploymentStage

TREATED: Final = "treated"
CONTROL: Final = "control"
_TOLERANCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConfigurationSwitch:
    """A change of the site's configuration by a deployment.

    Attributes:
        time_s: Unix time from which the change is in force.
        stage: stage of the deployment that this change puts in force; an empty value means that the
            deployment was undone.
        is_treated: whether the change puts the deployed energy measures in force for the treated jobs. With
            False, the measures are not in force.
        sha256: SHA-256 of energy.toml after the change.
        reason: why the configuration was changed, for the log.
    """

    time_s: float
    stage: str
    is_treated: bool
    sha256: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """State of a deployment: how far a study's energy measures are in force at the site.

    The deployment may divide the jobs into two groups (arms): treated jobs and control jobs.

    Attributes:
        alternative: deployed alternative, a combination of levers that save energy.
        configuration: path of the site's energy.toml.
        stage: stage that was last put in force.
        assignment: assignment of periods, partitions or users to the arms; None means that the stage has no
            arms.
        partitions, other_partitions: partitions that the deployment covers, and all other partitions.
        power_share: share of the cluster's power that the covered partitions draw.
        apply_command: program that brings the configuration into force, with its arguments; an empty value
            means that the systemd units of this host are reloaded.
        switches: all changes of the configuration in the order of time.
        stopped: reason why the deployment was undone; an empty value means that it was not undone.
    """

    alternative: StudyAlternative
    configuration: str
    stage: DeploymentStage
    assignment: ArmAssignment | None = None
    partitions: tuple[str, ...] = ()
    other_partitions: tuple[str, ...] = ()
    power_share: float = 1.0
    apply_command: tuple[str, ...] = ()
    switches: tuple[ConfigurationSwitch, ...] = field(default=())
    stopped: str = ""

    @property
    def is_active(self) -> bool:
        """Whether the energy measures of the study are in force, which means that they were not undone."""
        return not self.stopped

    def document(self) -> dict[str, Any]:
        """Return the state as a JSON object."""
        return {
            "alternative": self.alternative.document(),
            "configuration": self.configuration,
            "stage": str(self.stage),
            "assignment": None if self.assignment is None else self.assignment.document(),
            "partitions": list(self.partitions),
            "other_partitions": list(self.other_partitions),
            "power_share": self.power_share,
            "apply_command": list(self.apply_command),
            "switches": [asdict(switch) for switch in self.switches],
            "stopped": self.stopped,
        }

    def with_switch(self, switch: ConfigurationSwitch) -> DeploymentState:
        """Return a copy of the state to which a further switch of the configuration is added."""
        return replace(self, switches=(*self.switches, switch))

    def in_force_at(self, time_s: float) -> ConfigurationSwitch | None:
        """Return the change of the configuration (switch) that was in force at a given time.

        This is the last switch at or before that time. The result is None if there was none yet.
        """
        earlier = [switch for switch in self.switches if switch.time_s <= time_s]
        return earlier[-1] if earlier else None

    def arm(self, start_s: float, partition: str = "", user: str = "") -> str:
        """Return the arm (group) of a job: `treated`, `control`, or empty for neither.

        In a switchback design, periods with and without the deployed measures alternate. The configuration
        may be switched too late at the start of a period, so that the previous configuration is still in
        force. A job that started in this period before the switch belongs to neither arm.

        Args:
            start_s: Unix time at which the job started.
            partition: partition of the job.
            user: user of the job.
        """
        if self.assignment is None or start_s != start_s:
            return ""
        drawn = self.assignment.is_treated(start_s, partition, user)
        switch = self.in_force_at(start_s + _TOLERANCE_S)
        if drawn is None or switch is None or switch.stage != self.stage:
            return ""
        is_switchback = self.assignment.design is AssignmentDesign.SWITCHBACK
        if switch.is_treated != (drawn if is_switchback else True):
            return ""
        return TREATED if drawn else CONTROL

    def with_arms(self, jobs: JobsTable) -> JobsTable:
        """Return the jobs with the column `arm` filled in.

        The column states the group of each job in the deployment: `treated` or `control`. It is empty for a
        job that belongs to neither group.
        """
        rows = zip(jobs.start_s.tolist(), jobs.partition.tolist(), jobs.user.tolist(), strict=True)
        return jobs.with_columns(arm=[self.arm(*row) for row in rows])


def deployment_of(document: Mapping[str, Any]) -> DeploymentState:
    """Build the state of a deployment from the JSON object of `DeploymentState.document`.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the object describes no state.
    """
    assignment = document["assignment"]
    for name in ("configuration", "stopped"):
        if not isinstance(document[name], str):
            raise TypeError(f"{name} is not a text")
    state = DeploymentState(
        alternative=alternative_of(document["alternative"]),
        configuration=document["configuration"],
        stage=DeploymentStage(document["stage"]),
        assignment=None if assignment is None else assignment_of(assignment),
        partitions=tuple(document["partitions"]),
        other_partitions=tuple(document["other_partitions"]),
        power_share=document["power_share"],
        apply_command=tuple(document["apply_command"]),
        switches=tuple(ConfigurationSwitch(**switch) for switch in document["switches"]),
        stopped=document["stopped"],
    )
    if not all(isinstance(word, str) for word in (*state.apply_command, *state.partitions)):
        raise TypeError("a partition or word of the command is not a text")
    state.document()  # raises an error for values of wrong types
    return state
