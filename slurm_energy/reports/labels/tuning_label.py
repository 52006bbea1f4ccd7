"""Sentences in the energy label of a job that explain the settings of the job.

Each sentence states the source of a setting, for example an earlier run, and the expected effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.labels.settings import MergedSetting, merge_settings
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist

OBJECTIVE_NAMES = {
    "edp": "least energy-delay product",
    "ed2p": "least energy times squared time",
    "energy": "least energy",
}
_SOURCES = {
    "pinned": "pinned with 'senergy tune pin'",
    "earlier runs": "measured in earlier runs of this program",
    "this run": "measured in this run",
    "characterisation": "from the site's characterisation of this hardware",
    "oracle": "from known hardware of this kind",
    "site": "named in the site's configuration",
    "published": "from published measurements",
    "physical model": "from a physical model of the live counters",
    "generic prior": "a safe share of the job's own power draw",
}
_FIELDS = {
    "nvml.power_limit": ("gpu_limit_watts", "gpu_cap_watts", "--energy-gpu-cap"),
    "amdsmi.power_limit": ("gpu_limit_watts", "gpu_cap_watts", "--energy-gpu-cap"),
    "intel_gpu.power_limit": ("gpu_limit_watts", "gpu_cap_watts", "--energy-gpu-cap"),
    "nvml.locked_clocks": ("gpu_clock_mhz", "gpu_clock", "--energy-gpu-clock"),
    "nvml.power_profile": ("gpu_power_profile", "power_profile", "--energy-power-profile"),
    "powercap.power_limit": ("package_limit_watts", "cap_watts", "--energy-cap"),
    "hsmp.power_limit": ("package_limit_watts", "cap_watts", "--energy-cap"),
    "cpufreq.frequency": ("cpu_max_mhz", "cpu_freq", "--energy-cpu-freq"),
    "cpufreq.epp": ("cpu_epp", "", ""),
    "cpufreq.governor": ("", "", ""),
    "cpufreq.boost": ("boost", "", ""),
}
"""Field of an operating point, key of the requested flags, and flag, by type of setting."""


def explanations(job: JobUsage) -> list[str]:
    """Return one sentence per setting of a job.

    Further sentences describe the actions of the tuner that the settings do not show.
    """
    sentences = [
        sentence for merged in merge_settings(job.records) if (sentence := _setting_sentence(merged, job))
    ]
    tuned: dict[str, list[str]] = {}
    for record in job.records:
        for sentence in _tuning_sentences(record):
            tuned.setdefault(sentence, []).append(record.node)
    for sentence, nodes in tuned.items():
        where = f"{fold_hostlist(nodes)}: " if len(nodes) < len(job.records) else ""
        sentences.append(where + sentence)
    return sentences


def tuning_outcome(records: Sequence[EnergyRecord]) -> str | None:
    """Return a short remark about the tuning of a job for the header of its energy label.

    Examples are `, tuned` and `, advice only`. The result is None if the job was not tuned.
    """
    tunings = [record.tuning for record in records if record.tuning is not None]
    modes = {tuning["mode"] for tuning in tunings}
    if not modes & {"on", "advise"}:
        return None
    if "on" not in modes:
        return ", advice only"
    if any(tuning.get("chosen") for tuning in tunings):
        return ", tuned"
    return ", in search" if any(map(_was_searching, tunings)) else ", untuned"


def _setting_sentence(merged: MergedSetting, job: JobUsage) -> str | None:
    """Return the sentence of the energy label that states a setting of the job and its origin.

    The result is None if the setting failed, or if it only supplements another setting.
    """
    field, flag_key, flag = _FIELDS.get(merged.setting_type, (None, "", ""))
    if field is None or merged.setting.applied is None:
        return None
    value = f"{merged.name} = {merged.setting.applied}"
    record = next(record for record in job.records if record.node == merged.nodes[0])
    if (why := _tuned_value(record, field)) is not None:
        return f"{value}: {why}."
    if flag_key and record.requested.get(flag_key):
        return f"{value}: requested with {flag}."
    if record.tuning is not None and _was_searching(record.tuning):
        return f"{value}: tried for {_objective(record.tuning)} when the job ended."
    return f"{value}: set by the policy '{record.policy}'."


def _tuned_value(record: EnergyRecord, field: str) -> str | None:
    """Return why tuning chose the value of a knob. None if tuning did not choose the value."""
    tuning = record.tuning
    chosen = None if tuning is None else _point(tuning.get("chosen"))
    if tuning is None or chosen is None or tuning["mode"] != "on":
        return None
    set_fields = chosen.to_json()
    if field not in set_fields and not (field == "boost" and "cpu_max_mhz" in set_fields):
        return None
    return f"chosen for {_objective(tuning)}; {_source(tuning)}{_figures(tuning, chosen)}"


def _tuning_sentences(record: EnergyRecord) -> Iterator[str]:
    """Yield sentences about actions of the tuner that the settings of the job do not show."""
    tuning = record.tuning
    if tuning is None or tuning["mode"] == "off":
        return
    chosen = _point(tuning.get("chosen"))
    if tuning["mode"] == "advise":
        if chosen is not None and chosen != UNTUNED:
            what = f"{chosen} for {_objective(tuning)}{_saving(tuning)}"
            yield f"Tuning would have set {what}; {_source(tuning)}."
        elif chosen is not None:
            yield f"Tuning would have set nothing for {_objective(tuning)}."
        return
    probes = tuning.get("probes") or 0
    if _was_searching(tuning) and chosen in (None, UNTUNED):
        yield (
            f"The job ended during the search for {_objective(tuning)}: {_points(probes)} tried until then."
        )
    elif chosen is None:
        yield f"Not tuned for {_objective(tuning)}: the job ended before a setting was chosen."
    elif chosen == UNTUNED and probes:
        yield (
            f"No setting was kept for {_objective(tuning)}: {_points(probes)} tried, none was better than the"
            " untuned job."
        )
    elif chosen == UNTUNED:
        yield f"No setting was tried for {_objective(tuning)}{_why_untried(tuning)}."
    if tuning.get("exploration") is True:
        yield "This run tried a setting from which later runs of the program learn."


def _was_searching(tuning: Mapping[str, Any]) -> bool:
    """Return whether a job ended before the search for its best setting was complete."""
    return bool(tuning.get("probes")) and tuning.get("phase") in ("reference", "probe")


def _objective(tuning: Mapping[str, Any]) -> str:
    name = OBJECTIVE_NAMES.get(str(tuning["objective"]), str(tuning["objective"]))
    limit = tuning.get("slowdown_limit")
    return name if limit is None else f"{name} at most {100 * limit:g} % slower"


def _why_untried(tuning: Mapping[str, Any]) -> str:
    """Return a text that says why tuning has tried no setting of the job.

    The text is empty if the job has a progress signal.
    """
    if tuning.get("progress") != "none":
        return ""
    if tuning.get("slowdown_limit") is None:
        return ": the job has no progress signal"
    return ": the job has no progress signal, and no power limit is certain enough to keep the slowdown limit"


def _source(tuning: Mapping[str, Any]) -> str:
    source = str(tuning.get("chosen_source") or "unknown source")
    if source == "generic prior" and tuning.get("progress") not in (None, "none"):
        return "the first one to try, from a generic model of the hardware"
    if source == "generic prior" and tuning.get("slowdown_limit") is not None:
        return (
            "no progress signal; of 100 jobs with this draw at most one exceeds the limit by more than a"
            " percentage point"
        )
    return _SOURCES.get(source, source)


def _figures(tuning: Mapping[str, Any], chosen: OperatingPoint) -> str:
    """Describe the effect of the operating point that tuning chose, for the energy label.

    The text contains the number of measurements, and the time and energy relative to the untuned job.
    """
    for item in tuning.get("points", ()):
        if _point(item["point"]) == chosen:
            time, power = item["time_ratio"], item["power_ratio"]
            count = item.get("count") or 0
            measured = f" in {count} window{'' if count == 1 else 's'}" if count else ""
            return f"{measured}: time {_change(time)}, energy {_change(time * power)} against the untuned job"
    return ""


def _saving(tuning: Mapping[str, Any]) -> str:
    saving = tuning.get("estimated_saving")
    return "" if saving is None else f", which saves about {100 * saving:.0f} % energy"


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def _points(count: int) -> str:
    return "1 setting was" if count == 1 else f"{count} settings were"


def _point(data: Any) -> OperatingPoint | None:
    try:
        return OperatingPoint.from_json(data)
    except UsageError:
        return None
