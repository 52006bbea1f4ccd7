"""Sections of a scenario file: keys, defaults, descriptions and bounds. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config.value_checks import between, key, one_of
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.quantities import shown

_RULES = PowerSavingRules()
_positive = between(1e-9, 1e15)
_share = between(0, 1)
_not_negative = between(0, 1e15)
OUTLIERS = ("drop", "clip")
"""Treatment of jobs beyond the bounds on size and time in `[trace]`."""
WORKLOAD_FORMATS = ("swf", "csv", "sacct", "sacct-json", "senergy")


def _format(value: str) -> str | None:
    """Check the format of workload files: return None, or the fault. An empty text is valid."""
    return one_of(*WORKLOAD_FORMATS)(value) if value else None


def _shares(value: dict[str, float]) -> str | None:
    """Check the shares of users: return None, or the fault. Policies divide by the share of a user."""
    wrong = [name for name, share in value.items() if not share > 0]
    return f"'{shown(wrong[0])}' must have a positive share" if wrong else None


@dataclass(frozen=True, slots=True)
class KindSection:
    """Description of the nodes of one kind, from the table `[cluster.NAME]` of a scenario file."""

    nodes: int = key(1, "Number of nodes.", between(1, 10_000_000))
    units: int = key(1, "GPUs or cores of a node that jobs can hold; 1: whole nodes.", between(1, 100_000))
    hardware: str = key("", "Name of the GPU in the oracle; required for workloads of models.")
    idle_watts: float = key(0.0, "Power of an idle node that is on.", _not_negative)
    unit_idle_watts: float = key(
        0.0, "Part of the idle power that counts as power of the job that holds the unit.", _not_negative
    )
    unit_min_watts: float = key(
        0.0, "Lowest power limit of a unit; 0: the units have no power limit.", _not_negative
    )
    off_watts: float = key(0.0, "Power of a node that is off.", _not_negative)
    boot_s: float = key(0.0, "Time to boot.", _not_negative)
    boot_watts: float = key(0.0, "Power while booting.", _not_negative)
    shutdown_s: float = key(0.0, "Time to shut down.", _not_negative)
    shutdown_watts: float = key(0.0, "Power while shutting down.", _not_negative)
    mean_hours_to_failure: float = key(
        0.0, "Mean time to failure of one node; 0: nodes never fail.", _not_negative
    )
    repair_s: float = key(3600.0, "Time from a failure to the end of the repair.", _not_negative)
    memory_gib: float = key(
        0.0, "Memory of a node, for jobs with unit_memory_gib; 0: unlimited.", _not_negative
    )


@dataclass(frozen=True, slots=True)
class WorkloadSection:
    """Section `[workload]` of a scenario: the source of the simulated jobs.

    The source is a file, a set of models from which jobs are drawn at random (`[[model]]`), or both.

    With both, the file states the user, the submission time, the number of GPUs and one run time of each
    job. A model is drawn at random for each job. The model states the other shapes in which the job can
    run (number and kind of GPUs, batch size). The run times of the shapes are scaled so that the job has
    the run time in the file under these conditions: the number of GPUs in the file, the model's fixed
    (rigid) batch size, and the first kind of nodes.
    """

    file: str = key("", "SWF, CSV or sacct output; relative to the scenario's folder.")
    files: list[str] = key([], "Several files instead of one; their jobs are merged.")
    append: bool = key(
        False, "Each further file begins at the last submission of the one before it; else: one clock."
    )
    format: str = key("", "swf, csv, sacct, sacct-json or senergy; empty: by the file's name.", _format)
    columns: dict[str, str] = key({}, "Name of each column in the CSV file, by our name.")
    sacct_units: str = key(
        "nodes", "Unit of job sizes in accounting: nodes, cpus or gpus.", one_of("nodes", "cpus", "gpus")
    )
    watts_per_unit: float = key(0.0, "Power of a job per unit if the file has none.", _not_negative)
    time_scale: float = key(1.0, "Factor for all times of the file.", _positive)
    part_jobs: int = key(
        0, "Jobs of the file in one run; the seed selects the part. 0: all.", between(0, 1e9)
    )
    max_rows: int = key(
        20_000_000, "Maximum number of rows of the files; a row takes about 400 bytes.", between(1, 1e10)
    )
    load: float = key(
        0.0,
        "Offered load to which the times between submissions are scaled; 0: as they are.",
        between(0, 1000),
    )
    arrivals_per_s: float = key(0.005, "Rate of the Poisson process.", _positive)
    hours: float = key(10.0, "Duration for which jobs arrive.", _positive)
    urgent_share: float = key(0.0, "Share of jobs with a deadline.", _share)
    deadline_factor: float = key(
        3.5, "Time from submission to deadline, as a multiple of the shortest run time.", _positive
    )
    users: int = key(1, "Number of users.", between(1, 1_000_000))
    majority_share: float = key(0.0, "Share of jobs of the first user; 0: all users submit equally.", _share)
    rigid: bool = key(False, "Fix each job's number of GPUs and batch size.")
    speedup_per_doubling: float = key(
        0.0,
        "Speed-up per doubling of GPUs, relative to the time on the maximum number of GPUs; 0: the oracle's.",
        between(0, 2),
    )
    communication_power: float = key(
        0.45,
        "Power of a GPU while it communicates, as a share of its power at work; acts only with "
        "speedup_per_doubling.",
        _share,
    )
    prediction_error: float = key(
        0.0, "Error of the oracle: up to +- this share, drawn per job and shape.", _share
    )
    error_is_real: bool = key(True, "Real times and powers carry the error too (thesis).")


@dataclass(frozen=True, slots=True)
class TraceSection:
    """Selection of jobs from workload files, `[trace]`.

    A filter is a list of regular expressions, of which one must match the whole text. An expression that
    starts with `!` excludes the texts that it matches.
    """

    users: list[str] = key([], "Users.")
    accounts: list[str] = key([], "Accounts.")
    partitions: list[str] = key([], "Partitions, or queues in SWF.")
    qos: list[str] = key([], "QOS.")
    states: list[str] = key([], "States such as COMPLETED.")
    names: list[str] = key([], "Names of jobs.")
    begin: str = key("", "First time of submission: a date, or a time since the first one such as 12h.")
    end: str = key("", "End of the submissions, in the same form.")
    min_units: int = key(0, "Smallest size; 0: any.", between(0, 1e9))
    max_units: int = key(0, "Largest size; 0: any.", between(0, 1e9))
    min_time_s: float = key(0.0, "Shortest run time; 0: any.", _not_negative)
    max_time_s: float = key(0.0, "Longest run time; 0: any.", _not_negative)
    outliers: str = key(
        "drop", "drop: jobs beyond these bounds are left out; clip: they get the bound as value."
    )
    sample: float = key(1.0, "Share of the jobs, drawn at random.", between(1e-9, 1))
    sample_seed: int = key(0, "Together with the seed of the run, determines the sample.", between(0, 2**31))
    max_jobs: int = key(0, "Number of jobs, the first ones by submission; 0: all.", between(0, 1e9))


@dataclass(frozen=True, slots=True)
class ModelSection:
    """Section `[[model]]` of a scenario file: a model that jobs of the simulation train."""

    name: str = key("", "Name for people.")
    profile: str = key("", "Workload profile of the oracle.")
    precision: str = key("fp32", "fp32, tf32, bf16 or fp16.")
    samples: float = key(50_000.0, "Samples of an epoch.", _positive)
    epochs: float = key(1.0, "Number of epochs.", _positive)
    gpus: list[int] = key([1], "Numbers of GPUs on which it can run.")
    batches: list[int] = key([32], "Batch sizes per GPU.")
    caps_watts: list[float] = key([], "Power caps per GPU under which it can also run.")
    weight: float = key(1.0, "Frequency relative to the other models.", _positive)
    rigid_gpus: int = key(1, "GPUs of the rigid shape.")
    rigid_batch: int = key(32, "Batch size of the rigid shape.")
    rigid_hardware: str = key("", "Kind of nodes of the rigid shape; empty: any.")


@dataclass(frozen=True, slots=True)
class ScheduleSection:
    """Scheduling of the jobs, `[schedule]`."""

    policies: list[str] = key(["fcfs"], "Names of policies to compare.")
    discipline: str = key("easy", "strict, easy, conservative or packing.")
    interval_s: float = key(
        0.0, "Time between two scheduling passes; 0: a pass at each event.", _not_negative
    )
    horizon_hours: float = key(0.0, "End of the simulation; 0: when all jobs are done.", _not_negative)
    seeds: int = key(1, "Number of runs with different random numbers.", between(1, 100_000))
    age_weight: float = key(0.01, "W_age of the policies, per second.", _not_negative)
    wait_bound_hours: float = key(24.0, "Jobs that waited longer go first.", _positive)
    half_life_hours: float = key(0.0, "Half life of usage for fair shares; 0: no decay.", _not_negative)
    preemption: bool = key(True, "Allow policies to preempt jobs.")
    kill_at_limit: bool = key(
        False, "A job ends at its time limit with the outcome timeout; otherwise only backfill uses limits."
    )
    checkpoint_s: float = key(-1.0, "Interval of checkpoints; -1: an interrupted job loses all its work.")
    restart_s: float = key(0.0, "Extra time of a start after an interruption.", _not_negative)
    margin_s: float = key(60.0, "A job with less slack than this is at risk.", _not_negative)
    weights: dict[str, float] = key({}, "Weights of the terms of blend, multifactor, kairos and metis.")
    shares: dict[str, float] = key(
        {}, "Shares of users, by name; a user without an entry has the share 1.", _shares
    )


@dataclass(frozen=True, slots=True)
class PowerSection:
    """Section `[power]` of a scenario: power budget, power states of nodes, and prices of energy."""

    budget_watts: float = key(0.0, "Power budget; 0: none.", _not_negative)
    budget_file: str = key("", "CSV with columns time_s, watts: a budget that varies.")
    hard_budget: bool = key(
        False, "The budget holds under every policy, not only under those that keep it themselves."
    )
    distribution: str = key("least-edp", "Policy that distributes the budget among running jobs.")
    control_period_s: float = key(
        0.0, "Time until decided power limits are in force; 0: at once.", _not_negative
    )
    floor_percent: float = key(
        0.0, "Share of the range of a unit's power limit that running jobs keep.", between(0, 100)
    )
    slowdown_percent: float = key(
        -1.0, "Slowdown of a job that the budget causes only if it must; -1: none.", between(-1, 1e6)
    )
    announced: bool = key(True, "Steps of the budget are known ahead.")
    interrupt: bool = key(True, "Interrupt jobs where lower power limits do not suffice.")
    idle_off_s: float = key(-1.0, "Idle time after which a node is switched off; -1: never.")
    power_saving: str = key(
        "idle_off", "idle_off: nodes are switched off after idle_off_s; forecast: see [power_saving]."
    )
    price_file: str = key("", "CSV with columns time_s, price (per MWh).")
    carbon_file: str = key("", "CSV with columns time_s, gco2_per_kwh.")


@dataclass(frozen=True, slots=True)
class PowerSavingSection:
    """Section `[power_saving]` of a scenario: parameters of powering idle nodes down.

    They apply with `power.power_saving = "forecast"`. They have the same meaning as in energy.toml.
    """

    risk: float = key(
        _RULES.risk,
        "Maximum probability that a node that is powered down is needed before this pays.",
        _share,
    )
    wake_probability: float = key(
        _RULES.wake_probability,
        "Probability of being needed within its boot time from which on a node is powered up ahead.",
        _share,
    )
    min_saving: float = key(
        _RULES.min_saving,
        "Minimum expected saving, as a multiple of the energy of shutdown and boot.",
        _not_negative,
    )
    min_idle_s: float = key(
        _RULES.min_idle_s, "Minimum idle time before a node is powered down.", _not_negative
    )
    min_on_s: float = key(_RULES.min_on_s, "Minimum time between power-up and power-down.", _not_negative)
    cycle_s: float = key(_RULES.cycle_s, "Time between two decisions.", _positive)
    max_down: int = key(
        _RULES.max_down, "Maximum number of nodes powered down in one cycle.", between(1, 1e9)
    )
    max_up: int = key(
        _RULES.max_up, "Maximum number of nodes powered up ahead in one cycle.", between(1, 1e9)
    )
    reserve_nodes: int = key(0, "Idle nodes of each kind that stay on.", between(0, 1e9))
    reserve_percent: float = key(0.0, "Idle nodes that stay on, in percent of each kind.", between(0, 100))

    def rules(self) -> PowerSavingRules:
        """Return the parameters of the rule that decides which nodes are powered down or up."""
        return PowerSavingRules(
            *(self.risk, self.wake_probability, self.min_saving, self.min_idle_s, self.min_on_s),
            *(self.cycle_s, self.max_down, self.max_up),
        )
