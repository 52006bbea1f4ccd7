"""Tests of two interventions of senergyctld in jobs: a change of their GPUs, and preemption.

The tests check the commands sent to Slurm, that no command is sent twice, and the recorded decisions.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from queue_examples import NOW, queue, running
from slurm_answers import squeue_fields, squeue_text
from store_examples import Accounting, item, job

from slurm_energy import config as configuration
from slurm_energy.accounting import decisions, engine
from slurm_energy.accounting.decisions import Decision
from slurm_energy.controller.queue.interventions import MAX_SHAPES_PER_CYCLE, START_TIMEOUT_S, Interventions
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority.engine import EngineState, PriorityEngine
from slurm_energy.priority.interventions import ABSENCE_LIMIT_S, PROTECTED_S, AssignedShape, InterventionState
from slurm_energy.priority.offered_shapes import OfferedShapeProvider
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.priority.usage import DecayedUsage
from slurm_energy.slurm.queue.job_update import UpdateResult

A4, H2 = GpuShape("a100", 4), GpuShape("h100", 2)
NODES = """\
NodeName=a1 CPUTot=64 CPUAlloc=0 Gres=gpu:a100:4 GresUsed=gpu:a100:{a} State=MIXED Partitions=gpu
NodeName=h1 CPUTot=64 CPUAlloc=0 Gres=gpu:h100:8 GresUsed=gpu:h100:{h} State=MIXED Partitions=gpu
NodeName=x1 CPUTot=64 CPUAlloc=0 Gres=gpu:h100:8 GresUsed=gpu:h100:8 State=MIXED Partitions=other
"""


class Slurm:
    """Stand-in for slurmctld with one job.

    It reports the job's request, and records all commands that it receives.
    """

    def __init__(self, version="22.05.8"):
        self.version, self.asked, self.changed, self.requeued, self.names = version, [], [], [], []
        self.uids = []
        self.used = {"a": 0, "h": 0}
        self.gres, self.excluded, self.state = "gres:gpu:4", "(null)", "PENDING"
        self.features, self.outcome = "(null)", None
        self.places, self.modes = "", "PreemptMode = OFF"

    def __call__(self, argv):
        self.asked.append(argv)
        if argv[0] == "sinfo":
            return f"slurm-wlm {self.version}\n"
        if argv[0] == "squeue" and "all" not in argv:
            return self.places
        if argv[-1] == "node" and self.used is None:
            raise UnavailableError("scontrol", "no answer")
        if argv[-1] == "node":
            return NODES.format(**self.used)
        if argv[-1] == "config":
            return self.modes
        if argv[-1] == "partition":
            return "PartitionName=gpu State=UP PreemptMode=OFF"
        if self.state is False:
            raise UnavailableError("scontrol", "Unable to contact slurm controller (connect failure)")
        if self.state is None:
            raise UnavailableError("scontrol", "slurm_load_jobs error: Invalid job id specified")
        array, _, task = argv[-1].removeprefix("--jobs=").partition("_")
        values = {"%A": array, "%F": array, "%K": task or "N/A", "%i": array, "%T": self.state}
        values |= {"JobID": array, "ArrayJobID": array, "ArrayTaskID": task or "N/A"}
        values |= {"%x": self.excluded, "%f": self.features, "tres-per-node": self.gres}
        return squeue_text(argv, [[values.get(field, "N/A") for field in squeue_fields(argv)]])

    def asked_of(self, name):
        """Return how often squeue was called for one job.

        squeue is called with two output formats. Only the calls with the first format are counted.
        """
        asked = [argv for argv in self.asked if argv[-1] == f"--jobs={name}"]
        return sum("SQUEUE_FORMAT" in argv.environment for argv in asked)

    def set_fields(self, job_id, fields, uid, name=""):
        self.uids.append(uid)
        self.names.append(name)
        self.changed.append((job_id, fields))
        return self.outcome or UpdateResult((job_id,))

    def requeue(self, names):
        self.names += names.values()
        self.requeued.append(tuple(names))
        return self.outcome or UpdateResult(tuple(names))


class Controller:
    """Priority engine and the component that changes jobs in Slurm, for tests with a test clock.

    The two parts are connected as in senergyctld.
    """

    def __init__(self, slurm, policy="zeus", intervention_state=None, **more):
        lines = [f"{key} = {str(value).lower()}" for key, value in more.items()]
        config = configuration.parse(f'[priority]\npolicy = "{policy}"\n' + "\n".join(lines))
        self.slurm, self.now = slurm, NOW
        self.engine_state = EngineState(
            DecayedUsage(3600.0), interventions=intervention_state or InterventionState()
        )
        self.intervention_state = self.engine_state.interventions
        self.made = Interventions(config, slurm, slurm, self.intervention_state, lambda: self.now)
        shaper = OfferedShapeProvider(
            QueuePredictor(config),
            self.made.nodes,
            self.intervention_state.blocked_shapes,
            self.intervention_state.keeps_request,
        )
        self.engine = PriorityEngine(config, self.engine_state, None, shaper)

    def cycle(self, *rows):
        self.made.begin_cycle()
        self.made.apply(self.engine.cycle(queue(*rows), self.now), self.engine.policy)
        return self.slurm.changed


def offering(text="gpu:a100:4,gpu:h100:2", **more):
    flags = {"ENERGY_ALTERNATIVES": text, "ENERGY_MODEL": "resnet50"}
    return {"partition": "gpu", "gpus": 4, "flags": flags} | more


FIELDS = {H2: {"Gres": "gpu:2", "ExcNodeList": "a1"}, A4: {"Gres": "gpu:4", "ExcNodeList": "h1"}}


def test_the_chosen_shape_is_set_and_recorded_once():
    controller = Controller(Slurm())
    for _ in range(3):
        assert controller.cycle(offering()) == [(101, FIELDS[H2])]
    (made,) = controller.intervention_state.unsaved
    assert (made.job_id, made.submit, made.kind) == (101, NOW, "shape")
    assert made.details == {
        "offered": ["gpu:a100:4", "gpu:h100:2"],
        "chosen": "gpu:h100:2",
        "requested_gres": "gpu:4",
        "excluded_nodes": "",
    }
    assert controller.cycle({"job_id": 5}) == [(101, FIELDS[H2])]
    controller.now += ABSENCE_LIMIT_S + 1.0
    controller.cycle({"job_id": 5})
    assert controller.intervention_state.assigned == {}


def test_a_shape_is_set_and_restored_as_the_jobs_owner():
    controller = Controller(Slurm())
    controller.cycle(offering(uid=1234))
    controller.cycle(offering(uid=1234, reason="BadConstraints"))
    assert (len(controller.slurm.changed), controller.slurm.uids) == (2, [1234, 1234])


def test_from_23_02_on_the_gpu_type_is_set():
    assert Controller(Slurm("24.11.5")).cycle(offering()) == [(101, {"Gres": "gpu:h100:2"})]


def test_another_shape_is_set_if_only_it_fits_and_exclusions_stay():
    slurm = Slurm()
    controller = Controller(slurm)
    slurm.excluded, slurm.used = "n9", {"a": 1, "h": 7}
    controller.cycle(offering())
    slurm.gres, slurm.excluded, slurm.used = "gres:gpu:2", "n9,a1", {"a": 0, "h": 7}
    controller.cycle(offering())
    wanted = [{"Gres": "gpu:2", "ExcNodeList": "n9,a1"}, {"Gres": "gpu:4", "ExcNodeList": "n9,h1"}]
    assert [fields for _, fields in slurm.changed] == wanted


def test_nodes_excluded_in_squeues_order_are_the_same_nodes():
    slurm = Slurm()
    slurm.gres, slurm.excluded = "gres:gpu:2", "a1,n9"
    intervention_state = InterventionState(
        assigned={101: AssignedShape(NOW, H2, NOW, "gpu:4", "n9")}
    )  # so that the requested value is "n9,a1"
    assert Controller(slurm, intervention_state=intervention_state).cycle(offering()) == []


def test_a_job_with_its_shape_is_unchanged_but_the_choice_is_recorded():
    slurm = Slurm()
    slurm.gres = "gres:gpu:h100:2"
    controller = Controller(slurm)
    assert controller.cycle(offering()) == []
    assert [made.details["chosen"] for made in controller.intervention_state.unsaved] == ["gpu:h100:2"]


@pytest.mark.parametrize(
    ("state", "outcome"), [("RUNNING", None), (None, None), ("PENDING", UpdateResult(gone=(101,)))]
)
def test_a_job_that_has_started_is_no_failure(state, outcome):
    slurm = Slurm()
    slurm.state, slurm.outcome = state, outcome
    controller = Controller(slurm)
    controller.cycle(offering())
    assert controller.intervention_state.unsaved == []
    assert controller.intervention_state.assigned == {}


def test_a_started_job_is_not_queried_again_until_the_queue_is_updated():
    slurm = Slurm()
    slurm.state = "RUNNING"
    controller = Controller(slurm)
    for after in (0.0, 15.0, 30.0, 70.0):
        controller.now = NOW + after
        controller.cycle(offering(submit_s=NOW))
    assert slurm.asked_of("101") == 2


def test_setting_the_clock_back_extends_no_period():
    intervention_state = InterventionState(
        left_queue={1: NOW + 60},
        protected_until={2: NOW + 900},
        being_served={3: NOW + 120},
        blocked_shapes={(4, A4): NOW + 600},
    )
    intervention_state.expire(NOW, ())
    intervention_state.expire(NOW - 86400.0, ())
    intervention_state.expire(NOW - 86400.0 + 130.0, ())
    assert (
        intervention_state.left_queue,
        intervention_state.being_served,
        [*intervention_state.protected_until],
        [*intervention_state.blocked_shapes],
    ) == (
        {},
        {},
        [2],
        [(4, A4)],
    )
    intervention_state.expire(NOW - 86400.0 + 901.0, ())
    assert (intervention_state.protected_until, intervention_state.blocked_shapes) == ({}, {})


@pytest.mark.parametrize("how", ["refused", "typed"])
def test_a_refused_change_is_recorded_once(how):
    slurm = Slurm()
    if how == "refused":
        slurm.outcome = UpdateResult(refused={101: "Invalid generic resource"})
    else:
        slurm.gres = "gres:gpu:a100:4"
    controller = Controller(slurm)
    for _ in range(3):
        controller.cycle(offering())
    (made,) = controller.intervention_state.unsaved
    assert made.details["chosen"] is None
    assert ("Invalid generic" if how == "refused" else "cannot turn gpu:a100") in made.why
    assert len(slurm.changed) == (how == "refused")


def test_a_shape_in_which_the_job_does_not_start_is_blocked_for_a_while():
    slurm = Slurm()
    controller = Controller(slurm)
    controller.cycle(offering())
    for after in (1.0, START_TIMEOUT_S + 2.0, START_TIMEOUT_S + 3.0):
        controller.now = NOW + after
        controller.cycle(offering(submit_s=NOW))
    assert [fields for _, fields in slurm.changed] == [FIELDS[H2], FIELDS[A4]]


def test_waiting_for_its_turn_does_not_block_a_shape():
    slurm = Slurm()
    controller = Controller(slurm)
    slurm.used = {"a": 4, "h": 8}
    controller.cycle(offering())
    slurm.used = {"a": 0, "h": 0}
    for after in (START_TIMEOUT_S + 2.0, START_TIMEOUT_S + 9.0):
        controller.now = NOW + after
        controller.cycle(offering(submit_s=NOW))
    assert slurm.changed == [(101, FIELDS[H2])]
    assert controller.intervention_state.blocked_shapes == {}


def test_a_shape_beyond_a_limit_of_the_owner_is_blocked_at_once():
    slurm = Slurm()
    controller = Controller(slurm)
    controller.cycle(offering())
    controller.cycle(offering(reason="QOSMaxGRESPerUser"))
    controller.cycle(offering(reason="QOSMaxGRESPerUser"))
    assert [fields for _, fields in slurm.changed] == [FIELDS[H2], FIELDS[A4]]


def test_the_start_timeout_restarts_after_a_lost_turn():
    slurm = Slurm()
    controller = Controller(slurm)
    full, free = {"a": 4, "h": 8}, {"a": 0, "h": 0}
    for after, slurm.used in (
        (0, free),
        (1, free),
        (2, full),
        (START_TIMEOUT_S + 9, free),
        (START_TIMEOUT_S + 19, free),
    ):
        controller.now = NOW + after
        controller.cycle(offering(submit_s=NOW))
    assert controller.intervention_state.blocked_shapes == {}


def test_an_unrunnable_shape_is_reverted_and_not_set_again():
    slurm = Slurm()
    controller = Controller(slurm)
    controller.cycle(offering())
    stuck = offering(reason="BadConstraints", held=True)
    slurm.outcome = UpdateResult(refused={101: "busy"})
    controller.cycle(stuck)
    slurm.outcome = None
    controller.cycle(stuck)
    assert [fields for _, fields in slurm.changed[1:]] == [{"Gres": "gpu:4", "ExcNodeList": ""}] * 2
    controller.cycle(offering())
    assert len(slurm.changed) == 3
    assert [made.details["chosen"] for made in controller.intervention_state.unsaved] == ["gpu:h100:2", None]
    Controller(slurm).cycle(stuck)  # this job was not changed: Slurm's own reason stays
    assert len(slurm.changed) == 3


def test_text_of_one_job_that_scontrol_refuses_does_not_affect_other_jobs():
    class Strict(Slurm):
        def set_fields(self, job_id, fields, uid, name=""):
            if "n9" in fields.get("ExcNodeList", ""):
                raise UsageError("cannot be given to scontrol")
            return super().set_fields(job_id, fields, uid, name)

    slurm = Strict()
    controller = Controller(slurm)
    controller.cycle(offering())
    given = controller.intervention_state.assigned[101]
    controller.intervention_state.assigned[101] = replace(given, excluded_nodes="n9")
    controller.cycle(offering(reason="BadConstraints", held=True), offering())
    assert [job_id for job_id, _ in slurm.changed] == [101, 102]


def test_a_job_that_keeps_its_request_is_ranked_by_it():
    slurm = Slurm()
    slurm.outcome = UpdateResult(refused={101: "Invalid generic resource"})
    controller = Controller(slurm)
    cheap = offering("gpu:h100:1", gpu_kind="a100")
    controller.cycle(cheap)
    assert controller.engine.cycle(queue(cheap), NOW).shapes.gpu_kind == ["a100"]
    another = cheap | {"submit_s": NOW + 60.0}
    assert controller.engine.cycle(queue(another), NOW + 60.0).shapes.gpu_kind == ["h100"]


def test_the_last_task_of_an_array_is_never_addressed_by_the_array_id():
    slurm = Slurm()
    task = {"job_id": 102, "array_job_id": 102, "array_task_id": 7}
    rescuing(slurm).cycle(URGENT, GUEST | task)
    assert (slurm.requeued, slurm.names) == ([(102,)], ["102_7"])
    slurm = Slurm()
    Controller(slurm).cycle(offering(**task))
    assert slurm.names == ["102_7"]
    assert slurm.asked_of("102_7") == 1


def test_a_requeued_job_is_recognised_and_another_of_its_id_is_not():
    slurm = Slurm()
    controller = Controller(slurm)
    slurm.excluded = "n9"
    controller.cycle(offering())
    slurm.gres, slurm.excluded = "gres:gpu:2", "n9,a1"
    controller.cycle()  # the first run completes: the job is neither pending nor running
    slurm.used = {"a": 0, "h": 8}
    controller.cycle(offering(submit_s=NOW + 60, restart_count=1))
    assert slurm.changed[1:] == [(101, {"Gres": "gpu:4", "ExcNodeList": "n9,h1"})]
    slurm.used = {"a": 0, "h": 0}
    controller.cycle(offering(submit_s=NOW + 60, restart_count=1))
    del slurm.changed[1:]
    slurm.gres = "gres:gpu:4"
    slurm.excluded = "(null)"
    controller.cycle(offering(submit_s=NOW + 90))
    assert slurm.changed[1:] == [(101, FIELDS[H2])]


def test_a_cycle_changes_a_bounded_number_of_jobs():
    slurm = Slurm()
    controller = Controller(slurm)
    slurm.used = {"a": 4, "h": 8}
    rows = [offering() for _ in range(2 * MAX_SHAPES_PER_CYCLE + 1)]
    counts = []
    for _ in range(4):
        controller.cycle(*rows)
        counts.append(len(slurm.changed))
    assert counts == [
        MAX_SHAPES_PER_CYCLE,
        2 * MAX_SHAPES_PER_CYCLE,
        2 * MAX_SHAPES_PER_CYCLE + 1,
        2 * MAX_SHAPES_PER_CYCLE + 1,
    ]
    assert sum(argv[-1] == "node" for argv in slurm.asked) == 4


def test_unavailable_nodes_are_queried_once_a_cycle_and_logged_once(caplog):
    slurm = Slurm()
    controller = rescuing(slurm)
    slurm.used = None
    for _ in range(3):
        controller.cycle(URGENT, offering(), GUEST)
    assert sum(argv[-1] == "node" for argv in slurm.asked) == 3
    assert caplog.text.count("no answer") == 1
    assert slurm.changed == slurm.requeued == []


def test_without_slurmctld_no_further_job_is_queried():
    slurm = Slurm()
    controller = Controller(slurm)
    slurm.state = False
    with pytest.raises(UnavailableError):
        controller.cycle(offering(), offering())
    assert slurm.asked_of("101") == 1 and slurm.asked_of("102") == 0


def test_decisions_survive_a_restart(tmp_path):
    accounting = Accounting(tmp_path)
    slurm = Slurm()
    slurm.excluded = "n9"
    controller = Controller(slurm)
    controller.cycle(offering())
    with engine.connect(accounting.path) as connection:
        decisions.save(connection, "c1", controller.intervention_state.unsaved)
        decisions.save(
            connection, "c2", [Decision(101, NOW, NOW, "shape", "elsewhere", {"chosen": "gpu:x:1"})]
        )
        intervention_state = InterventionState()
        intervention_state.load(decisions.since(connection, "c1", NOW - 60))
        assert decisions.since(connection, "c1", NOW + 60) == []
    assert intervention_state.assigned == controller.intervention_state.assigned
    slurm.excluded = "n9,a1"
    assert len(Controller(slurm, intervention_state=intervention_state).cycle(offering())) == 1


def test_decisions_are_shown_with_their_job_only(tmp_path):
    accounting = Accounting(tmp_path)
    accounting.deliver(item(job_id=7), item(job_id=8))
    accounting.learn(job(7, submit=900.0), job(8, submit=900.0))
    made = [
        Decision(7, 900.4, 950.0, "shape", "least", {"chosen": "gpu:h100:2"}),
        Decision(7, 100.0, 150.0, "shape", "an older job of this number"),
        Decision(9, 900.0, 950.0, "requeue", "another"),
    ]
    with engine.connect(accounting.path) as connection:
        decisions.save(connection, "c1", made)
        records = [row[0] for row in connection.exec_driver_sql("SELECT id FROM records")]
        shown = decisions.of_records(connection, records)
        assert [(one["job_id"], one["why"], one["chosen"]) for one in shown] == [(7, "least", "gpu:h100:2")]
        assert decisions.drop_before(connection, 200.0) == 1


URGENT = {"partition": "gpu", "gpus": 2, "gpu_kind": "h100", "time_limit_s": 600.0, "deadline_s": NOW + 640.0}
GUEST = running(partition="gpu", gpus=8, gpu_kind="h100", start_s=NOW - 50.0, submit_s=NOW - 90.0)


def rescuing(slurm, **more):
    slurm.used, slurm.places = {"a": 0, "h": 8}, "102 h1\n103 h[2-3]\nnonsense\n"
    return Controller(slurm, "aurachronos", **{"preempt": True, **more})


def test_a_job_is_preempted_and_recorded_once():
    slurm = Slurm()
    controller = rescuing(slurm)
    for _ in range(3):
        controller.cycle(URGENT, GUEST)
    assert slurm.requeued == [(102,)]
    (made,) = controller.intervention_state.unsaved
    assert (made.job_id, made.submit, made.kind, made.details["for_job"]) == (102, NOW - 90.0, "requeue", 101)
    controller.now = NOW + 200.0  # another job may be preempted again, but not the same one
    controller.cycle(URGENT | {"deadline_s": NOW + 840.0}, GUEST)
    assert len(slurm.requeued) == 1
    controller.now = NOW + PROTECTED_S + 1
    controller.cycle(URGENT | {"deadline_s": NOW + PROTECTED_S + 640.0}, GUEST)
    assert len(slurm.requeued) == 2


@pytest.mark.slow
def test_the_same_job_is_preempted_ever_less_often(tmp_path):
    slurm = Slurm()
    controller = rescuing(slurm)
    began = []
    for after in range(0, int(8 * PROTECTED_S), 60):
        controller.now = NOW + after
        count = len(slurm.requeued)
        controller.cycle(URGENT | {"deadline_s": NOW + after + 640.0}, GUEST)
        began += [after] if len(slurm.requeued) > count else []
    assert [b - a for a, b in pairwise(began)] == [1800, 3600, 7200]
    again = InterventionState()
    again.load(controller.intervention_state.unsaved)
    assert again.protected_until == controller.intervention_state.protected_until


@pytest.mark.parametrize(
    ("change", "helped"),
    [({"features": "big"}, False), ({"excluded": "h[1-9]"}, False), ({"excluded": "h[2-9]"}, True)],
)
def test_no_job_is_preempted_on_nodes_that_the_urgent_job_excludes(change, helped):
    slurm = Slurm()
    vars(slurm).update(change)
    rescuing(slurm).cycle(URGENT, GUEST)
    assert bool(slurm.requeued) == helped


@pytest.mark.parametrize("state", [None, "CANCELLED"])
def test_no_job_is_preempted_for_a_job_cancelled_since_the_snapshot(state):
    slurm = Slurm()
    slurm.state = state
    controller = rescuing(slurm)
    for _ in range(3):
        controller.cycle(URGENT, GUEST)
    assert slurm.requeued == []
    assert slurm.asked_of("101") == 1


@pytest.mark.parametrize(
    "change", [{"preempt": False}, {"policy": "zeus"}, {"modes": "PreemptMode = REQUEUE"}]
)
def test_no_job_is_preempted_unless_the_site_allows_it(change):
    slurm = Slurm()
    slurm.modes = change.get("modes", slurm.modes)
    controller = rescuing(slurm, **{k: v for k, v in change.items() if k == "preempt"})
    if "policy" in change:
        controller = Controller(slurm, change["policy"], preempt=True)
    controller.cycle(URGENT, GUEST)
    assert slurm.requeued == []


def test_running_jobs_are_queried_only_for_a_deadline_at_risk():
    slurm = Slurm()
    rescuing(slurm).cycle(URGENT | {"deadline_s": NOW + 9e5}, GUEST)
    assert slurm.asked == []


def test_a_job_that_slurm_refuses_to_requeue_is_protected():
    slurm = Slurm()
    controller = rescuing(slurm)
    slurm.outcome = UpdateResult(refused={102: "Requested operation not supported"})
    controller.cycle(URGENT, GUEST)
    controller.now = NOW + 200.0
    controller.cycle(URGENT | {"deadline_s": NOW + 840.0}, GUEST)
    assert slurm.requeued == [(102,)]
    assert controller.intervention_state.unsaved == []
