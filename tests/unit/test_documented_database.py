"""The SQL statements and commands in docs/accounting.md work as documented.

They set up a database server, query a database, and move a database to a server.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest
from stored_schemas import VERSIONS, load_schema

from slurm_energy.accounting.schema import migrations
from slurm_energy.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text()
PASSWORD = "not so secret: %40@/?"
NAMES = {"mariadb": "MariaDB", "postgresql": "PostgreSQL"}


def statements(name):
    """Return the SQL statements with which the documentation creates a database on a kind of server.

    The host and the password in the statements are replaced by those of the test.
    """
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    (own,) = re.findall(rf"-- {NAMES[name]}\n(.*?)(?=-- |\Z)", block, re.DOTALL)
    return own.replace("controller.example.org", "localhost").replace("'...'", f"'{PASSWORD}'")


@pytest.fixture(params=NAMES)
def url(request, database_servers):
    """Create a database with the SQL statements of the documentation; yield its URL without password."""
    server = database_servers.get(request.param)
    server.execute(statements(request.param))
    if request.param == "mariadb":
        yield f"mariadb://senergy@localhost/senergy?unix_socket={server.directory}/mariadb.sock"
        server.execute("DROP DATABASE senergy; DROP USER senergy@localhost")
    else:
        yield f"postgresql://senergy@/senergy?host={server.directory}"
        server.execute("DROP DATABASE senergy WITH (FORCE); DROP ROLE senergy")


@pytest.fixture
def configured(url, tmp_path, monkeypatch):
    password = tmp_path / "password"
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    lines = f'database = "{url}"\ndatabase_password_file = "{password}"\nstate_dir = "{tmp_path}"\n'
    (tmp_path / "energy.toml").write_text(f'[cluster]\nname = "c1"\n[controller]\n{lines}')
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "energy.toml"))
    return url


@pytest.mark.slow
def test_a_site_moves_from_sqlite_to_a_documented_server(configured, tmp_path, capsys, database_servers):
    load_schema(VERSIONS[-1], tmp_path / "senergy.db")
    assert main.main(["db", "backup", str(tmp_path / "b"), "--database", str(tmp_path / "senergy.db")]) == 0
    if configured.startswith("mariadb"):
        (rights,) = re.findall(r"the rights `([A-Z, ]+)` suffice", PAGE.replace("\n", " "))
        database_servers.get("mariadb").execute(
            "REVOKE ALL ON senergy.* FROM senergy@localhost;"
            f" GRANT {rights} ON senergy.* TO senergy@localhost"
        )
    assert main.main(["db", "restore", str(tmp_path / "b")]) == 0
    assert main.main(["db", "check", "--content"]) == 0
    assert main.main(["db", "restore", "--force", str(tmp_path / "b")]) == 0
    assert main.main(["db", "upgrade"]) == 0
    assert main.main(["db", "prune", "traces", "--before", "now"]) == 0
    captured = capsys.readouterr()
    assert "33 records agree with their columns" in captured.out
    assert PASSWORD not in captured.out + captured.err


def test_the_documented_query_works_on_a_copy(tmp_path, capsys):
    path, copy = tmp_path / "senergy.db", tmp_path / "copy.db"
    load_schema(VERSIONS[-1], path)
    migrations.prepare(path)
    assert main.main(["db", "backup", "--copy", str(copy), "--database", str(path)]) == 0
    (query,) = re.findall(r"\n  (SELECT account.*?)\"\n```", PAGE, re.DOTALL)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        if sqlite3.sqlite_version_info < (3, 38):
            pytest.skip("this SQLite has no unixepoch()")
        assert connection.execute(query).fetchall() == []
        everything = connection.execute(query.replace("-1 month", "-1000 months")).fetchall()
    assert sum(count for _, count, _ in everything) == 28
