"""The report of a study as one HTML page, which a browser also prints as PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from slurm_energy.reports.html_document import render
from slurm_energy.study.goals.conclusions import effect_text
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.modelling.replay import replay_title
from slurm_energy.study.report.effect_charts import GROUP_COLORS, days_chart, effects_chart
from slurm_energy.study.report.step_charts import REPLAY_COLORS, power_chart, replay_chart, week_chart

_MAX_HASH = 12


def study_page(report: Mapping[str, Any], now: datetime | None = None) -> str:
    """Return the report as an HTML page.

    Args:
        report: object of `report_document`.
        now: time to print in the footer; None means that no time is printed.
    """
    results = report["results"]
    validation = results.get("validate")
    tables = []
    if report["conclusions"]:
        rows = [[one["text"], one["verdict"], one["figures"]] for one in report["conclusions"]]
        tables.append(_table("Conclusions", ["Statement", "This study", "Figures"], rows))
    if validation is not None:
        tables += _validation_tables(validation, report["days"], report["targets"][0]["kpi"])
    if "baseline" in results:
        tables.append(_baseline_table(results["baseline"], report["targets"][0]["kpi"]))
    if results.get("model", {}).get("errors"):
        tables += _model_tables(results["model"], report["hours"])
    if "choose" in results:
        tables.append(_choice_table(results["choose"]))
    tables.append(_steps_table(report["steps"]))
    context = {
        "title": report["title"],
        "subtitle": f"Energy study {report['id'][:_MAX_HASH]}",
        "verdicts": [] if validation is None else _tiles(validation),
        "tables": tables,
    }
    remarks = [*report["conclusion"], *([] if validation is None else validation["remarks"])]
    return render("study.html.j2", context, remarks, now)


def _table(
    title: str,
    header: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
    numbers: Sequence[int] = (),
    **more: Any,
) -> dict[str, Any]:
    extra = {"svg": "", "legend": [], "lines": []} | more
    return {"title": title, "header": header, "rows": rows, "numbers": numbers, **extra}


def _tiles(validation: Mapping[str, Any]) -> list[dict[str, Any]]:
    tiles = []
    for one in validation["targets"]:
        effect = one["effect"]
        value = "unknown" if effect is None else _change(effect, "change")
        tiles.append(
            {
                "name": f"Target: {KPIS[one['kpi']].title}",
                "value": value,
                "more": f"{one['verdict']}, wanted {one['wanted']:+.1%}",
                "is_bad": one["verdict"] == "opposite effect",
            }
        )
    for one in validation["limits"]:
        account = f" ({one['account']})" if one["account"] else ""
        is_broken = one["verdict"] == "broken"
        more = one["reason"]
        name = f"Limit: {KPIS[one['kpi']].title}{account}"
        tiles.append({"name": name, "value": one["verdict"], "more": more, "is_bad": is_broken})
    return tiles


def _validation_tables(
    validation: Mapping[str, Any], days: Sequence[Mapping[str, Any]], main: str
) -> list[dict[str, Any]]:
    predicted = validation["predicted"] or {}
    rows = []
    for name, effect in validation["effects"].items():
        forecast = predicted.get(name)
        rows.append(
            [
                KPIS[name].title,
                _change(effect, "change"),
                _change(effect, "low"),
                _change(effect, "high"),
                f"{effect['p_value']:.3f}",
                "" if forecast is None else f"{forecast:+.1%}",
                ", ".join(effect["adjusted_for"]),
            ]
        )
    method = next((one["method"].replace("_", " ") for one in validation["effects"].values()), "none")
    washout = f"washout of {validation['washout_hours']:g} h a day"
    lines = [f"Method: {method}, design {validation['design']}, {washout}."]
    if (check := validation["placebo"]) is not None:
        lines.append(
            f"Placebo check: {check['false_effects']} of {check['trials']} imagined deployments in the "
            f"baseline have an effect; median width of their intervals {check['median_width']:.1%}."
        )
    if (lag := validation["carry_over"]) is not None:
        lines.append(f"Effect of the arm of the previous day: {effect_text(lag)}.")
    header = ["KPI", "Effect", "From", "To", "p", "Predicted", "Adjusted for"]
    limits = [_limit_row(one) for one in validation["limits"]]
    kpi = KPIS[main]
    is_relative = any(row["expected"] is not None for row in days)
    title = f"{kpi.title} by day" + (", relative to what its work lets expect" if is_relative else "")
    return [
        _table(
            "Effects",
            header,
            rows,
            (1, 2, 3, 4, 5),
            svg=Markup(effects_chart(validation["effects"])),
            lines=lines,
        ),
        _table(title, svg=Markup(days_chart(days, kpi.title)), legend=list(GROUP_COLORS.items())),
        _table(
            "Limits",
            ["KPI", "Account", "Verdict", "Baseline", "With the change", "Interval", "Permitted", "Why"],
            limits,
            (3, 4, 5, 6),
        ),
    ]


def _limit_row(one: Mapping[str, Any]) -> list[str]:
    bounds = [("at least", one["minimum"]), ("at most", one["maximum"])]
    permitted = ", ".join(f"{word} {value:.4g}" for word, value in bounds if value is not None)
    levels = [one["level_low"], one["level_high"]]
    interval = "" if None in levels else f"{levels[0]:.4g} to {levels[1]:.4g}"
    figures = ["" if one[key] is None else f"{one[key]:.4g}" for key in ("baseline", "level")]
    names = [KPIS[one["kpi"]].title, one["account"] or "all", one["verdict"]]
    return [*names, *figures, interval, permitted, one["reason"]]


def _baseline_table(baseline: Mapping[str, Any], main: str) -> dict[str, Any]:
    rows = []
    for name, kpi in baseline["kpis"].items():
        bounds = [kpi["low"], kpi["high"]]
        interval = "" if None in bounds else f"{bounds[0]:.4g} to {bounds[1]:.4g}"
        mean = "" if kpi["mean"] is None else f"{kpi['mean']:.4g}"
        rows.append([KPIS[name].title, mean, interval, kpi["unit"]])
    period = baseline["period"]
    days = f"{period['begin']} to {period['end']}, {period['used_days']} of {period['days']} days used"
    outages = [f"Not used: {day}: {reason}." for day, reason in period["outages"].items()]
    lines = [f"{days}, {period['jobs']} jobs.", *outages, *baseline["statement"]]
    chart = ""
    if main in baseline["kpis"]:
        chart = Markup(week_chart(main, baseline["kpis"][main]))
        lines.insert(0, f"Bars: {KPIS[main].title} by weekday; lines: mean of a week with its interval.")
    header = ["KPI", "Mean of a day", "Interval", "Unit"]
    return _table("Baseline", header, rows, (1, 2), svg=chart, lines=lines)


def _model_tables(model: Mapping[str, Any], hours: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tables about the accuracy of the twin (simulated site) for the report of a study.

    The tables show the replay error of each key performance indicator, and the power by hour.
    """
    rows = []
    for one in model["errors"]:
        name, unit = replay_title(one["kpi"])
        figures = ["" if one[key] is None else f"{one[key]:.5g}" for key in ("measured", "simulated")]
        error = "" if one["error"] is None else f"{one['error']:+.1%}"
        rows.append([name, *figures, unit, error, "" if one["bound"] is None else f"{one['bound']:.0%}"])
    held_out = model["held_out"]
    title = f"Twin: replay of the held-out days {held_out['begin']} to {held_out['end']}"
    header = ["KPI", "Measured", "Simulated", "Unit", "Error", "Permitted"]
    lines = [*model["notes"], *(f"Accepted in spite of its error: {name}." for name in model["accepted"])]
    chart = Markup(replay_chart(model["errors"]))
    tables = [_table(title, header, rows, (1, 2, 4, 5), svg=chart, lines=lines)]
    if hours:
        legend = list(REPLAY_COLORS.items())
        tables.append(_table("Power on the held-out days", svg=Markup(power_chart(hours)), legend=legend))
    return tables


def _choice_table(choice: Mapping[str, Any]) -> dict[str, Any]:
    rows = [[one["name"], one.get("title", "")] for one in choice.get("alternatives", [])]
    reasons = choice.get("reasons", [])
    lines = [f"Recommended: {choice.get('recommended') or 'none'}.", *map(str, reasons)]
    return _table("Alternatives", ["Name", "What changes"], rows, lines=lines)


def _steps_table(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = []
    for step in steps:
        state = "stale" if step["stale"] else str(step["state"])
        ended = "" if step["ended"] is None else f"{datetime.fromtimestamp(step['ended']):%Y-%m-%d %H:%M}"
        hashes = [f"{name} {value[:_MAX_HASH]}" for name, value in step["outputs"].items()]
        rows.append([step["step"], state, ended, step["release"], step["command"], ", ".join(hashes)])
    header = ["Step", "State", "Ended", "Release", "Command", "SHA-256 of the outputs"]
    return _table("Steps", header, rows, lines=["study.json contains all hashes, of inputs too."])


def _change(effect: Mapping[str, Any], key: str) -> str:
    return f"{effect[key]:+.1%}" if effect["is_relative"] else f"{effect[key]:+.4g}"
