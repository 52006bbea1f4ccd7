"""Rules of the diagnosis about the data pipeline of a training.

The rules find waits for I/O, waits for the CPUs of the loader, and long copies to the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeGuard

from slurm_energy.diagnosis.cpu_waits import other_load, served_share
from slurm_energy.diagnosis.finding import FindingEvidence, FindingKind, JobFinding
from slurm_energy.diagnosis.job_view import JobView, RankView
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.series_means import mean_of
from slurm_energy.diagnosis.steps import Hint

_CAUSES = {
    FindingKind.DATA_STALL_IO: "storage is too slow",
    FindingKind.DATA_STALL_CPU: "the CPUs of the loader are too slow",
    FindingKind.DATA_STALL: "the data pipeline is too slow",
}
LOADER_STARTS: Final = "loader_starts"
"""Name of a fact in a finding: the time that the loader's processes take to start in each epoch."""
_READS = ("block_read_bytes_per_s", "network_receive_bytes_per_s", "infiniband_receive_bytes_per_s")
_SERIAL_LOADER_CORES = (0.75, 1.7)
"""Range of the CPU use per GPU, in cores, of a program in which a single process loads the data."""
_MIN_EXPLAINED = 0.5
"""Minimum wait of the loader for CPUs, as a fraction of the wait for data, if other work is the cause."""
_EVEN_USE = 1.25
"""Maximum ratio of the 90th percentile to the mean of the use of a GPU, if the use is even over time."""


def data_stalls(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that training steps wait for data.

    The finding is derived from the times of the steps. If the job reports no steps, it is derived from
    signals.

    Two waits do not count as a stall. The first is the start of the loader's processes, which delays the
    first batch of an epoch; if it happens in several epochs, it is a separate finding. The second is the
    time to receive batches that are ready.
    """
    share, seconds = view.category_share("data"), view.category_seconds("data")
    if share is None or seconds is None:
        if not view.ranks:
            yield from _stalls_without_steps(view)
        return
    if share < view.threshold("data_share") or message_seconds(view) is not None:
        return
    starts = loader_starts(view)
    step_s = mean_of([rank.times.step_s for rank in view.ranks]) or 0.0
    turns = view.programs_in_turn
    steady_s = max(0.0, seconds / turns - starts.seconds - reception_seconds(view))
    share = 100 * steady_s / max(step_s - starts.seconds, steady_s, 1e-9)
    if share >= view.threshold("data_share"):
        yield from _steady_stall(view, share, turns * steady_s)
    elif 100 * starts.avoidable_s >= view.threshold("data_share") * step_s:
        yield _starting_stall(view, starts, 100 * starts.avoidable_s / step_s)


def _steady_stall(view: JobView, share: float, seconds: float) -> Iterator[JobFinding]:
    kind, evidence, confidence = _classified(view)
    if kind is not FindingKind.DATA_STALL_IO and _keeps_up_alone(view):
        return
    text = f"Steps waited for data for {share:.0f} % of their time."
    first = view.fact("data", share, text, "data_share")
    title = f"Steps wait for data {share:.0f} % of the time: {_CAUSES[kind]}"
    yield view.finding(kind, title, [first, *evidence], seconds, confidence)


def _starting_stall(view: JobView, starts: LoaderStarts, share: float) -> JobFinding:
    text = (
        f"The first batches of {starts.epochs} epochs took {starts.seconds:.3g} s; other batches are in time."
    )
    title = f"The loader starts {starts.epochs} times, which takes {share:.0f} % of the time of the steps"
    fact = view.fact(LOADER_STARTS, share, text, "data_share")
    lost_s = starts.avoidable_s * view.programs_in_turn
    return view.finding(FindingKind.DATA_STALL, title, [fact], lost_s, 0.9)


class LoaderStarts(NamedTuple):
    """Waits for the first batches of epochs, as means over the ranks.

    Attributes:
        epochs: number of epochs of a rank.
        seconds: total wait for the first batches of all epochs.
    """

    epochs: int
    seconds: float

    @property
    def avoidable_s(self) -> float:
        """Seconds of waiting for data loaders that start their processes again in each epoch.

        The wait in the first epoch is not included, because it cannot be avoided.
        """
        return self.seconds * (1 - 1 / self.epochs) if self.epochs else 0.0


def loader_starts(view: JobView) -> LoaderStarts:
    """Return how often a data loader has started its processes, and how long this delayed the job.

    The delay is in seconds. Both values are 0 if a rank (process of the training) does not report its waits.
    """
    counts = [rank.steps.hints.get("loader_starts") for rank in view.ranks]
    waits = [rank.steps.hints.get("loader_start_s") for rank in view.ranks]
    known = [float(one) for one in waits if isinstance(one, int | float) and not isinstance(one, bool)]
    epochs = [count for count in counts if is_count(count)]
    if not epochs or not len(epochs) == len(known) == len(counts):
        return LoaderStarts(0, 0.0)
    return LoaderStarts(max(epochs), max(0.0, mean_of(known) or 0.0))


def reception_seconds(view: JobView) -> float:
    """Return the time that steps spend on receiving batches that are already loaded.

    The result is the total time in seconds of one rank, averaged over the ranks. It is 0 if a rank does not
    report how long it takes to receive a batch.
    """
    times = [rank.steps.hints.get("ready_batch_s") for rank in view.ranks]
    known = [float(time) for time in times if isinstance(time, int | float) and not isinstance(time, bool)]
    if not known or len(known) < len(times):
        return 0.0
    counts = [rank.step_count for rank in view.ranks]
    return max(0.0, mean_of([time * count for time, count in zip(known, counts, strict=True)]) or 0.0)


def message_seconds(view: JobView) -> float | None:
    """Return the seconds per rank for which training steps wait for messages of loader processes.

    Return None if something else slows the steps down.

    A loader process sends each batch as one message. A message of one sample takes about as long as a
    message of a hundred samples. Messages therefore dominate the waits of a training with batches of a few
    samples. The CPU time of the loader process does not reveal this, because both the messages and the
    preparation of samples cost CPU time.
    """
    batch, workers, wait_s = view.hint("batch_size"), view.hint("num_workers"), view.mean_phase_s("data")
    if batch is None or not workers or wait_s is None or batch > view.threshold("small_batch_samples"):
        return None
    if 1000 * wait_s * served_share(view) > view.threshold("worker_message"):
        return None
    if (view.category_share("data") or 0.0) < view.threshold("data_share"):
        return None
    kind, _, _ = _classified(view)
    return None if kind is FindingKind.DATA_STALL_IO else view.category_seconds("data")


def _classified(view: JobView) -> tuple[FindingKind, list[FindingEvidence], float]:
    """Return why a job waits for data, as a kind of finding.

    The evidence for this kind and the confidence are returned as well.
    """
    io, use, running = view.mean("io_pressure_percent"), _loader_use(view), _loader_use(view, waits=False)
    if io is not None and io >= view.threshold("io_pressure"):
        return FindingKind.DATA_STALL_IO, [_io_fact(view, io)], 0.95
    if use is None or running is None:
        return FindingKind.DATA_STALL, [], 0.7
    limit = view.threshold("loader_busy")
    if running.maximum < limit and io is None:
        # Before the waits for CPUs: where other work takes these, a loader waits for storage and for them.
        name, rate = _read_rate(view)
        if rate >= view.threshold("data_rate") * 1e6:
            text = f"Most of the time a node read at least {rate / 1e6:.3g} MB/s."
            facts = [_use_fact(view, running.maximum), view.fact(name, rate, text, "data_rate")]
            return FindingKind.DATA_STALL_IO, facts, 0.6
    fact = _use_fact(view, use.maximum)
    if use.minimum >= limit:
        return FindingKind.DATA_STALL_CPU, [fact], 0.9
    if use.maximum >= limit and io is not None:  # unless the computation itself has several threads
        return FindingKind.DATA_STALL_CPU, [fact], 0.6
    return FindingKind.DATA_STALL, [fact], 0.7


def _use_fact(view: JobView, use: float) -> FindingEvidence:
    text = f"The loader's processes used {use:.0f} % of the CPU time that they could use."
    return view.fact("cpu_busy_cores", use, text, "loader_busy")


def _read_rate(view: JobView) -> tuple[str, float]:
    """Return the read signal with the highest median rate, and this rate in bytes per second.

    The median is used because a loader that waits for storage reads all the time, whereas other traffic on
    the network comes in bursts.
    """
    rates = {name: view.median(name) or 0.0 for name in _READS}
    name = max(_READS, key=lambda one: rates[one])
    return name, rates[name]


class _LoaderUse(NamedTuple):
    """Range of the CPU use of the processes that load training data.

    The CPU use of these processes is the CPU use of the job minus that of the computation. It is in
    percent of the CPU time that is available to these processes. If the number of computing threads is
    unknown, two assumptions about the computation give the two bounds.

    Attributes:
        minimum: use if the computation takes all CPUs of the job.
        maximum: use if the computation takes one CPU per rank.
    """

    minimum: float
    maximum: float


def _loader_use(view: JobView, *, waits: bool = True) -> _LoaderUse | None:
    """Return the CPU use of the processes that load training data; None if unknown.

    In each rank, either loader workers or the process of the rank itself loads the data. The rest of the
    job's CPU use belongs to the computation.

    Args:
        view: facts about the job.
        waits: whether the time in which tasks wait for CPUs counts as CPU use.
    """
    nodes = view.observation.nodes
    uses = [use for node in nodes if (use := _node_loader_use(view, node, waits=waits)) is not None]
    if not uses:
        return None
    return _LoaderUse(*(sum(values) / len(uses) for values in zip(*uses, strict=True)))


def _node_loader_use(view: JobView, node: NodeObservation, *, waits: bool) -> _LoaderUse | None:
    ranks = [rank for rank in view.ranks if rank.steps.node == node.node]
    busy = view.node_series(node, "cpu_busy_cores")
    cores = view.window_mean(busy) if busy else None
    if not ranks or cores is None:
        return None
    waiting = view.node_series(node, "cpu_waiting_tasks") if waits else None
    cores += (view.window_mean(waiting) or 0.0) if waiting else 0.0
    allocated = view.node_series(node, "cpu_allocated_cores")
    limit = view.window_mean(allocated) if allocated else None
    computing = mean_of([1 - (rank.times.share("data") or 0.0) for rank in ranks]) or 0.0
    hints = [rank.steps.hints.get("num_workers") for rank in ranks]
    workers = sum(hint for hint in hints if isinstance(hint, int) and not isinstance(hint, bool))
    threads = [count / view.programs_in_turn for count in _computing_threads(view, ranks, limit)]
    loaders = (workers or (1 - computing) * len(ranks)) / view.programs_in_turn
    maximum, minimum = (
        _share(cores - computing * count, loaders, limit, computing * count) for count in threads
    )
    return _LoaderUse(min(minimum, maximum), maximum)


def _keeps_up_alone(view: JobView) -> bool:
    """Return whether the data loader of a job would be fast enough without other work on the nodes.

    The loader is slow only because other work takes CPUs. Two conditions must hold:

    - A worker of the loader runs for a shorter time per batch than a thread of the computation.
    - The waits of the loader's processes for CPUs explain a notable part of the waits for data.

    A worker that waits for something else, such as storage in the network, would not be fast enough even on
    a node without other work.
    """
    window, ready, running = view.active_window, _loader_use(view), _loader_use(view, waits=False)
    if ready is None or running is None:
        return False
    if ready.maximum - running.maximum < _MIN_EXPLAINED * (view.category_share("data") or 0.0):
        return False
    for node in view.observation.nodes:
        ranks = [rank for rank in view.ranks if rank.steps.node == node.node]
        busy = view.node_series(node, "cpu_busy_cores")
        hints = [
            (rank.steps.hints.get("num_workers"), rank.steps.hints.get("compute_threads")) for rank in ranks
        ]
        if view.gpus or window is None or busy is None or not hints:
            return False
        workers, threads = (sum(hint for pair in hints if is_count(hint := pair[index])) for index in (0, 1))
        load = other_load(view, node.node, window)
        cores, computing = view.window_mean(busy), _computing_cores(ranks, window[1] - window[0])
        if not workers or not threads or cores is None or computing is None:
            return False
        if load is None or load < view.threshold("other_load"):
            return False
        if (cores - computing) / workers >= computing / threads:
            return False
    return True


def _computing_cores(ranks: Sequence[RankView], seconds: float) -> float | None:
    """Return the mean number of CPUs that the rank processes used, without their worker processes.

    Return None if a rank does not report its CPU time.
    """
    times = [rank.steps.hints.get("process_cpu_s") for rank in ranks]
    known = [float(time) for time in times if isinstance(time, int | float) and not isinstance(time, bool)]
    return sum(known) / seconds if len(known) == len(times) and seconds > 0 else None


def _computing_threads(view: JobView, ranks: Sequence[RankView], limit: float | None) -> tuple[float, float]:
    """Return the minimum and maximum number of threads that the ranks use for the computation.

    A rank that computes on a GPU has one thread. A rank that computes on CPUs has the number that it reports,
    else at most one per CPU.
    """
    known = [hint for rank in ranks if is_count(hint := rank.steps.hints.get("compute_threads"))]
    one_each = float(len(ranks))
    if view.gpus or limit is None:
        return one_each, one_each
    if len(known) == len(ranks):
        return (min(float(sum(known)), max(limit, 1.0)),) * 2
    return one_each, max(limit, 1.0)


def is_count(hint: Hint | None) -> TypeGuard[int]:
    """Return whether a hint (a setting that a program has reported) is a positive whole number."""
    return isinstance(hint, int) and not isinstance(hint, bool) and hint > 0


def _share(used: float, wanted: float, limit: float | None, computing: float) -> float:
    """Return the CPU use of the data loader in percent of the CPUs that the loader could use.

    The loader could use as many CPUs as its processes can keep busy. If the computation of the job leaves
    fewer CPUs, the loader could use only the remaining CPUs.
    """
    available = wanted if limit is None else min(wanted, max(limit - computing, 0.1))
    return max(0.0, min(100.0, 100 * used / max(available, 0.01)))


def _io_fact(view: JobView, pressure: float) -> FindingEvidence:
    text = f"Tasks waited for I/O for {pressure:.0f} % of the time."
    return view.fact("io_pressure_percent", pressure, text, "io_pressure")


def _stalls_without_steps(view: JobView) -> Iterator[JobFinding]:
    busy, use = view.gpu_busy, view.cpu_use
    if (
        busy is None
        or busy >= view.threshold("gpu_stalled")
        or view.active_s < view.threshold("minimum_time")
    ):
        return
    gap = view.fact(
        "gpu_busy_percent", busy, f"The GPUs were busy for {busy:.0f} % of the time.", "gpu_stalled"
    )
    lost = (1 - busy / 100) * view.active_s
    io = view.mean("io_pressure_percent")
    if io is not None and io >= view.threshold("io_pressure"):
        title = f"GPUs are busy {busy:.0f} % of the time while tasks wait for storage"
        yield view.finding(FindingKind.DATA_STALL_IO, title, [_io_fact(view, io), gap], lost, 0.75)
    elif use is not None and use >= view.threshold("cpu_saturated"):
        fact = view.fact("cpu_busy_cores", use, f"The job used {use:.0f} % of its CPUs.", "cpu_saturated")
        title = f"GPUs are busy {busy:.0f} % of the time while all CPUs of the job are busy"
        yield view.finding(FindingKind.DATA_STALL_CPU, title, [fact, gap], lost, 0.6)
    elif _is_serial_loader(view, busy):
        cores = _busy_cores(view) or 0.0
        text = f"One CPU per GPU is busy: {cores:.1f} cores for {len(view.busy_gpus)} GPUs."
        title = f"GPUs are busy {busy:.0f} % of the time and wait for one process each"
        fact = view.fact("cpu_busy_cores", cores, text)
        yield view.finding(FindingKind.DATA_STALL_CPU, title, [fact, gap], lost, 0.5)


def _busy_cores(view: JobView) -> float | None:
    """Return the CPUs in use, summed over all nodes. Return None if the use of any node is unknown."""
    means = [view.window_mean(series) for series in view.observation.series("cpu_busy_cores")]
    known = [mean for mean in means if mean is not None]
    return sum(known) if known and len(known) == len(view.observation.nodes) else None


def _is_serial_loader(view: JobView, busy: float) -> bool:
    """Return whether each GPU seems to wait for a single process that prepares its data.

    The use of a GPU that waits for a serial loader is low and even, and the memory of the GPU contains a
    batch of useful size. Programs with bursts of work or with small batches do not have these properties.
    """
    cores, gpus = _busy_cores(view), len(view.busy_gpus)
    memory = mean_of([share for gpu in view.busy_gpus if (share := gpu.memory_share()) is not None])
    highs = [high for gpu in view.busy_gpus if (high := gpu.high("gpu_busy_percent")) is not None]
    if cores is None or memory is None or not highs:
        return False
    low, high = _SERIAL_LOADER_CORES
    is_even = max(highs) < _EVEN_USE * busy
    return low <= cores / gpus <= high and is_even and memory >= view.threshold("small_batch_memory")


def copies(view: JobView) -> Iterator[JobFinding]:
    """Yield the finding that copies between host and GPU take a notable share of the job's time."""
    share, seconds = view.category_share("copy"), view.category_seconds("copy")
    rate = view.gpu_mean("pcie_receive_bytes_per_s")
    if share is not None and seconds is not None:
        if share >= view.threshold("copy_share"):
            facts = [view.fact("copy", share, f"Copies took {share:.0f} % of the step time.", "copy_share")]
            facts += [] if rate is None else [_rate_fact(view, rate)]
            title = f"Copies to the GPU take {share:.0f} % of the step time"
            yield view.finding(FindingKind.HOST_TO_DEVICE_COPY, title, facts, seconds, 0.9)
        return
    busy = view.gpu_busy
    if rate is None or busy is None or view.ranks or busy >= view.threshold("gpu_stalled"):
        return
    if rate >= view.threshold("copy_pcie") * 1e9:
        title = f"GPUs are busy {busy:.0f} % of the time while {rate / 1e9:.1f} GB/s are copied to each"
        lost = (1 - busy / 100) * view.active_s
        yield view.finding(FindingKind.HOST_TO_DEVICE_COPY, title, [_rate_fact(view, rate)], lost, 0.6)


def _rate_fact(view: JobView, rate: float) -> FindingEvidence:
    text = f"Each GPU received {rate / 1e9:.1f} GB/s over PCIe on average."
    return view.fact("pcie_receive_bytes_per_s", rate, text)
