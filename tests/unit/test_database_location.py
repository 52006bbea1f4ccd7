"""Tests of the setting that names the database: a path or a URL.

The tests also check that no printed text, copy or document contains the password of a URL.
"""

from __future__ import annotations

import dataclasses
import json
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from slurm_energy import config as configuration
from slurm_energy.accounting.engine import Database
from slurm_energy.cli.main import main as senergy
from slurm_energy.config import schema_document
from slurm_energy.config.database_location import parse_database
from slurm_energy.config.database_password import configured_database
from slurm_energy.controller import main as controller_main
from slurm_energy.errors import ConfigError, UnavailableError
from slurm_energy.validation import check_file

SECRET = "s3cr3t-Hunter2"
URL = f"mariadb://senergy:{SECRET}@db.example.org/senergy?ssl_ca=/etc/ssl/ca.pem"


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "backend", "url"),
        [
            ("/var/lib/a b.db", "sqlite", "sqlite:////var/lib/a b.db"),
            ("sqlite:////var/lib/a%20b.db", "sqlite", "sqlite:////var/lib/a b.db"),
            ("mysql+pymysql://u:p@h/d", "mariadb", "mariadb://u@h/d"),
            ("mariadb://u@h:3307/d", "mariadb", "mariadb://u@h:3307/d"),
            ("postgres://u:p@[::1]:5433/d", "postgresql", "postgresql://u@[::1]:5433/d"),
            (
                "postgresql:///d?host=/run/postgresql",
                "postgresql",
                "postgresql:///d?host=/run/postgresql",
            ),
        ],
    )
    def test_kinds(self, text, backend, url):
        location = parse_database(text)
        assert (location.backend, location.url) == (backend, url)
        assert str(location) == (str(location.path) if backend == "sqlite" else url)

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("a.db", "absolute path"),
            ("sqlite:///a.db", "absolute path"),
            ("sqlite:////a.db?mode=ro", "no parameters"),
            ("oracle://h/d", "begin with"),
            ("mariadb://u:p@h", "name of the database"),
            ("mariadb://u:p@h/a/b", "name of the database"),
            ("mariadb://u:p@h:99999/d", "valid host and port"),
            ("mariadb://u:p@h/d?local_infile=1", "'local_infile'; allowed: ssl_ca"),
            ("mariadb://u:p@h/d?password=x", "'password'"),
            ("postgresql://u:p@h/d?options=-c%20x", "'options'"),
            ("postgresql://u:p#x@h/d", "%23"),
        ],
    )
    def test_faults(self, text, fault):
        with pytest.raises(ValueError, match=fault):
            parse_database(text)

    def test_parameters_of_tls_reach_the_driver(self):
        query = {"ssl_ca": "/ca.pem", "ssl_cert": "/c.pem", "ssl_key": "/k.pem"}
        database = Database(make_url("mariadb://u@h/d").set(query=query).render_as_string(False))
        _, arguments = database.engine.dialect.create_connect_args(database.engine.url)
        assert arguments["ssl"] == {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"}
        query = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "sslcert": "/c.pem", "sslkey": "/k.pem"}
        database = Database(make_url("postgresql://u@h/d").set(query=query).render_as_string(False))
        _, arguments = database.engine.dialect.create_connect_args(database.engine.url)
        assert query.items() <= arguments.items()

    @pytest.mark.parametrize(
        ("text", "host", "verified"),
        [
            ("/a.db", None, False),
            ("mariadb://u@localhost/d", None, False),
            ("mariadb://u@h/d?unix_socket=/run/s", None, False),
            ("mariadb://u@h/d", "h", False),
            ("mariadb://u@h/d?ssl_ca=/ca", "h", True),
            ("postgresql://u@h/d?sslmode=require", "h", False),
            ("postgresql://u@h/d?sslmode=verify-full", "h", True),
            ("postgresql://u@/d?host=other", "other", False),
            ("postgresql://u@/d?host=/run/postgresql", None, False),
        ],
    )
    def test_servers_elsewhere(self, text, host, verified):
        location = parse_database(text)
        assert location.host == host
        assert host is None or location.is_verified is verified


class TestSecrecy:
    @given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=6, max_size=20))
    def test_no_text_has_the_password(self, password):
        password = f"<{password}>"
        url = make_url("postgresql://u@h/d").set(password=password).render_as_string(False)
        location = parse_database(url)
        assert location.password == password
        database = Database(location)
        texts = [str(location), repr(location), database.name, repr(database.engine)]
        assert not any(password in text or "%3C" in text for text in texts)

    def test_copies_and_documents_have_no_password(self, tmp_path, capsys):
        path = tmp_path / "energy.toml"
        path.write_text(f'[controller]\ndatabase = "{URL}"\n')
        config = configuration.load(path)
        assert config.controller.database.password == SECRET
        texts = [repr(config), json.dumps(dataclasses.asdict(config), default=str)]
        texts += [schema_document.example_file(config), json.dumps(schema_document.plain_values(config))]
        for arguments in (["show"], ["show", "--json"], ["check"]):
            senergy(["config", *arguments, str(path)])
            texts += capsys.readouterr()
        assert not any(SECRET in text for text in texts)
        assert "mariadb://senergy@db.example.org/senergy" in texts[-4]

    @pytest.mark.parametrize(
        "url",
        [
            URL + "&x=1",
            URL.replace("mariadb", "oracle"),
            URL + "#",
            "mariadb://u:" + SECRET,
            f"u:{SECRET}@h/d",
        ],
    )
    def test_messages_about_wrong_urls_have_no_password(self, tmp_path, capsys, url):
        path = tmp_path / "energy.toml"
        path.write_text(f'[controller]\ndatabase = "{url}"\n')
        assert senergy(["config", "check", str(path)]) == 3
        assert controller_main.main(["--config", str(path), "--check"]) == 3
        out, err = capsys.readouterr()
        assert "controller.database" in out and "controller.database" in err
        assert SECRET not in out + err

    def test_an_unreachable_server_is_named_without_the_password(self, tmp_path, capsys):
        path = tmp_path / "energy.toml"
        path.write_text(
            f'[controller]\ndatabase = "mariadb://u:{SECRET}@127.0.0.1:1/d"\nstate_dir = "{tmp_path}"\n'
            f'policy_file = "{tmp_path}/policies"\n'
        )
        path.chmod(0o600)
        assert controller_main.main(["--config", str(path), "--check"]) == 4
        err = capsys.readouterr().err
        assert "database mariadb://u@127.0.0.1:1/d: " in err and "refused" in err
        assert SECRET not in err and "Traceback" not in err

    def test_tracebacks_have_no_password(self):
        database = Database(f"postgresql://u:{SECRET}@127.0.0.1:1/d")
        with pytest.raises(Exception, match="refused") as error, database.connect():
            pass
        lines = traceback.TracebackException.from_exception(error.value).format()
        assert SECRET not in "".join(lines)


class TestPasswordFile:
    @pytest.fixture
    def check(self, tmp_path):
        def check(mode=0o600, text=SECRET, url="mariadb://u@localhost/d", name="password"):
            file = tmp_path / "password"
            file.write_text(text)
            file.chmod(mode)
            path = tmp_path / "energy.toml"
            path.write_text(
                f'[controller]\ndatabase = "{url}"\nstate_dir = "{tmp_path}"\n'
                f'policy_file = "{tmp_path}/policies"\ndatabase_password_file = "{tmp_path}/{name}"\n'
            )
            return path

        return check

    @staticmethod
    def findings(path):
        found = check_file(path).findings
        return [
            (f.severity, f.key, f.why) for f in found if "database" in f.key and "not checked" not in str(f)
        ]

    @pytest.mark.parametrize("text", [SECRET, SECRET + "\n", SECRET + "\r\n"])
    def test_its_line_is_the_password(self, check, text):
        path = check(text=text)
        assert configured_database(configuration.load(path).controller).password == SECRET
        assert self.findings(path) == []

    @pytest.mark.parametrize("text", ["", "\n", "two\nlines\n", "x" * 2000, "\0"])
    def test_other_contents_are_refused(self, check, text):
        with pytest.raises(ConfigError, match="is not one line with a password"):
            configured_database(configuration.load(check(text=text)).controller)

    def test_others_must_not_read_it(self, check):
        path = check(mode=0o640)
        with pytest.raises(ConfigError, match="no read permission for others"):
            configured_database(configuration.load(path).controller)
        ((severity, key, why),) = self.findings(path)
        assert (severity, key) == ("error", "controller.database_password_file")
        assert "mode 0640" in why

    def test_it_must_exist(self, check):
        path = check(name="nothing")
        with pytest.raises(ConfigError, match="No such file"):
            configured_database(configuration.load(path).controller)
        assert [(f[0], "does not exist" in f[2]) for f in self.findings(path)] == [("error", True)]

    def test_two_passwords(self, check):
        path = check(url=f"mariadb://u:{SECRET}@localhost/d")
        assert [(f[0], "password too" in f[2]) for f in self.findings(path)] == [("error", True)]

    def test_it_has_no_effect_with_a_file(self, check, tmp_path):
        path = check(url=tmp_path / "a.db")
        assert [(f[0], "no effect" in f[2]) for f in self.findings(path)] == [("warning", True)]

    def test_a_password_that_others_can_read(self, tmp_path):
        path = tmp_path / "energy.toml"
        path.write_text(f'[controller]\ndatabase = "{URL}"\nstate_dir = "{tmp_path}"\n')
        path.chmod(0o644)
        ((_, key, why),) = self.findings(path)
        assert key == "controller.database" and "others than its owner can read" in why
        path.chmod(0o600)
        assert self.findings(path) == []

    def test_a_server_elsewhere_without_tls(self, tmp_path):
        path = tmp_path / "energy.toml"
        path.write_text(f'[controller]\ndatabase = "postgresql://u@h/d"\nstate_dir = "{tmp_path}"\n')
        ((severity, _, why),) = self.findings(path)
        assert severity == "warning" and "TLS does not authenticate the server h" in why


def test_other_files_of_the_controller_are_beside_a_sqlite_file_or_in_the_state_directory():
    def folder(text):
        return configuration.parse(f"[controller]\n{text}").controller.state_folder

    assert folder('database = "/srv/x/a.db"') == Path("/srv/x")
    assert folder('database = "mariadb://u@h/d"') == Path("/var/lib/senergyctld")
    assert folder('database = "mariadb://u@h/d"\nstate_dir = "/srv/y"') == Path("/srv/y")


def test_an_unreadable_certificate_is_explained(tmp_path):
    database = Database(f"mariadb://u:secret@127.0.0.1:1/db?ssl_ca={tmp_path}/none")
    with pytest.raises(UnavailableError, match="No such file") as raised, database.connect():
        pass
    assert "secret" not in str(raised.value)
