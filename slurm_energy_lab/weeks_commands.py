"""Command `senergy lab weeks`: simulate a small site for some weeks, as input of a study.

The site has a virtual clock, so that weeks take only seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

from slurm_energy.errors import EXIT_OK, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy lab weeks`."""
    parser.description = (
        "Run four emulated nodes for some days on a virtual clock, and write jobs-N.csv and energy-N.csv of "
        "all N days to DIR. The settings come from DIR/energy.toml at each midnight."
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory of the site")
    parser.add_argument("--begin", action="store_true", help="create the site first")
    parser.add_argument("--days", type=int, default=28, metavar="N", help="days to run (default: 28)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="with --begin: seed of jobs and errors (default: 1)"
    )
    parser.add_argument(
        "--first-day", metavar="DATE", help="with --begin: first day, a Monday (default: 2026-09-07)"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="with --begin: CSV with columns length (hours) and cpus, instead of the mix of the thesis",
    )
    parser.add_argument(
        "--study", type=Path, metavar="STUDY", help="run `senergy study deploy STUDY --tick` each midnight"
    )
    parser.add_argument("--placebo", action="store_true", help="settings have no effect")
    parser.add_argument("--starve", metavar="ACCOUNT", help="planted fault: tuned weeks starve this account")


def run(args: argparse.Namespace) -> int:
    """Run `senergy lab weeks`: let the small emulated site run for some days."""
    from slurm_energy_lab.study_weeks.site_directory import SiteDirectory

    if not 1 <= args.days <= 180:
        raise UsageError("--days", f"{args.days} is not from 1 to 180")
    if args.begin:
        try:
            first = date.fromisoformat(args.first_day or "2026-09-07")
        except ValueError:
            raise UsageError(f"--first-day {args.first_day[:40]}", "is not a date", "as 2026-09-07") from None
        site = SiteDirectory.create(args.directory, args.seed or 1, first, args.trace)
    else:
        site = SiteDirectory(args.directory)
        for name in ("seed", "first_day", "trace"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')}", "belongs to --begin", "leave it out")
    site.run(
        args.days,
        _ticks(args.study) if args.study else lambda _: None,
        args.starve,
        has_effect=not args.placebo,
    )
    print(f"{args.directory}: {site.days} days; jobs-{site.days}.csv, energy-{site.days}.csv")
    return EXIT_OK


def _ticks(study: Path) -> Callable[[datetime], None]:
    """Return the function that the emulated cluster calls at each midnight to continue a study.

    The returned function does the work that a systemd timer does on a real cluster. It matters for a
    switchback study, in which a change of the configuration is in force only on randomly drawn days. The
    returned function switches the change on or off for the new day.
    """
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.rollout.deploy_step import Deployment

    def tick(now: datetime) -> None:
        deployment = Deployment(StudyDirectory(study), now.timestamp(), lambda _: [])
        state = deployment.state()
        if state is not None and state.assignment is not None and state.assignment.periods:
            deployment.tick("senergy lab weeks")

    return tick
