"""`senergy db`: check, back up, restore, recover, upgrade, prune and export senergyctld's database."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from slurm_energy.cli import connection

PRUNABLE: Final = ("traces", "observations", "records", "periods", "decisions", "budgets")
"""The keys of `retention.CATEGORIES`, which is not imported for --help: SQLAlchemy is slow to import."""
EXPORTABLE: Final = ("records", "jobs", "periods", "budgets")
"""The keys of `export.EXPORTS`."""
FORMATS: Final = ("csv", "jsonl", "parquet")

HELP = "check, back up, restore, upgrade, prune and export the database of senergyctld"

EPILOG = """\
Run it on the host of senergyctld as root or as the user of senergyctld. It opens the database itself:
controller.database, or the one named by --database. check, backup, prune and export may run while
senergyctld runs. restore and upgrade need it stopped, and end with exit code 7 if it runs. A backup restores
into any kind of database, so that it also moves a site from SQLite to a server.

examples:
  senergy db check                              pages, references, tables; number of rows
  senergy db check --content                    also compare each record with its columns
  senergy db check --backup /backup/energy.gz   read a backup as restore does, change nothing
  senergy db backup /backup/energy.gz           portable backup of the whole database
  senergy db backup --copy /backup/energy.db    copy of a SQLite file, for queries with sqlite3
  senergy db restore /backup/energy.gz          into an empty database
  senergy db restore /backup/energy.gz --database postgresql://senergy@db1/senergy
  senergy db restore --force /backup/energy.gz   replace the contents of the database
  senergy db recover damaged.db recovered.db    readable rows of a damaged SQLite file
  senergy db upgrade --backup /backup/old.gz    to the schema of this release, after a backup
  senergy db prune traces --before now-90days --dry-run     count what would be deleted
  senergy db prune records traces --before 2025-01-01 --cluster old
  senergy db export records --since 2026-11-01 -o november.csv
  senergy db export periods --format parquet -o periods.parquet

exit codes: 0 ok, 1 damaged, not empty or not written, 2 bad usage, 3 configuration, 4 database unavailable,
5 no permission, 6 no such backup, 7 senergyctld is running
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy db`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="check|backup|restore|recover|upgrade|prune|export"
    )
    check = actions.add_parser("check", help="check the integrity of the database, or of a backup")
    check.add_argument("--content", action="store_true", help="compare each record with its columns, too")
    check.add_argument("--backup", metavar="FILE", type=Path, help="check this backup instead")
    backup = actions.add_parser("backup", help="write the whole database to a file")
    backup.add_argument("file", metavar="FILE", type=Path, help="file to write")
    backup.add_argument("--copy", action="store_true", help="copy of a SQLite file, not a portable backup")
    backup.add_argument("--force", action="store_true", help="replace an existing file")
    restore = actions.add_parser("restore", help="replace the contents of the database with a backup")
    restore.add_argument("file", metavar="FILE", type=Path, help="portable backup or copy of a SQLite file")
    restore.add_argument("--force", action="store_true", help="also if the database is not empty")
    recover = actions.add_parser(
        "recover", help="write the readable rows of a damaged SQLite file to a new one"
    )
    recover.add_argument("damaged", metavar="DAMAGED", type=Path, help="the damaged file; it is not changed")
    recover.add_argument("new", metavar="NEW", type=Path, help="file to write")
    recover.add_argument("--json", action="store_true", help="print the result as JSON")
    upgrade = actions.add_parser("upgrade", help="bring the tables to the schema of this release")
    upgrade.add_argument("--backup", metavar="FILE", type=Path, help="write a portable backup first")
    upgrade.add_argument("--dry-run", action="store_true", help="print the schemas, change nothing")
    _configure_prune(actions.add_parser("prune", help="delete old rows"))
    _configure_export(actions.add_parser("export", help="write a table as CSV, JSON lines or Parquet"))
    for action in (check, backup, restore, upgrade, actions.choices["prune"], actions.choices["export"]):
        action.add_argument("--json", action="store_true", help="print the result as JSON")
        action.add_argument(
            "--database", metavar="PATH|URL", help="this database instead of controller.database"
        )
        connection.add_config_option(action)


def _configure_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "categories", nargs="+", choices=PRUNABLE, metavar="CATEGORY", help=", ".join(PRUNABLE)
    )
    parser.add_argument("--before", metavar="TIME", required=True, help="delete what ended before this time")
    parser.add_argument("--cluster", metavar="NAME", help="of this cluster only (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="count the rows, delete nothing")


def _configure_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", choices=EXPORTABLE, metavar="TABLE", help=", ".join(EXPORTABLE))
    parser.add_argument("--format", choices=FORMATS, help="default: by the name of the file, else csv")
    parser.add_argument("-o", "--out", metavar="FILE", type=Path, help="file to write (default: print)")
    parser.add_argument("--since", metavar="TIME", help="rows of this time or later")
    parser.add_argument("--until", metavar="TIME", help="rows of before this time")
    parser.add_argument("--cluster", metavar="NAME", help="of this cluster only (default: all)")
    parser.add_argument(
        "--columns", action="store_true", help="list the columns of the table and their units"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(args: argparse.Namespace) -> int:
    """Run the action that the user named and return the exit code."""
    if args.action in ("check", "upgrade"):
        from slurm_energy.cli import db_check

        return db_check.run(args)
    if args.action in ("backup", "restore"):
        from slurm_energy.cli import db_backup

        return db_backup.run(args)
    if args.action == "recover":
        from slurm_energy.cli import db_recovery

        return db_recovery.run(args)
    if args.action == "prune":
        from slurm_energy.cli import db_prune

        return db_prune.run(args)
    from slurm_energy.cli import db_export

    return db_export.run(args)
