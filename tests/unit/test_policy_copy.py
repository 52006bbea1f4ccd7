"""Tests of the copy of the policy file that hosts without senergyctld keep.

The tests cover the request for the file, the storage of the copy, its age, and files that cannot be trusted.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import fake_controller
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy import config as configuration
from slurm_energy.agent import policy_copy_client
from slurm_energy.agent.policy_copy_client import PolicyCopyClient
from slurm_energy.cli.main import main
from slurm_energy.config import AgentConfig, Config
from slurm_energy.controller.http.authorization import Rights
from slurm_energy.controller.policy_file import PolicyPublication
from slurm_energy.errors import ConfigError, EnergyError, UnavailableError
from slurm_energy.policies.policy_copy import FRESH_S, confirm_copy, read_copy, update_copy
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.protocol.policy_file_requests import (
    MAX_TEXT_BYTES,
    POLICY_FILE_PATH,
    PublishedPolicies,
)

TEXT = "senergy-policies 1\npolicy edp tuned\n"
OTHER = "senergy-policies 1\npolicy night users=alice\n"
NOW = 10_000.0


def update(path: Path, text: str, issued: float, now: float = NOW) -> PublishedPolicies:
    return update_copy(path, lambda: PublishedPolicies(text, issued), lambda: now).policies


def stored(path: Path) -> tuple[str, float, float]:
    copy = read_copy(path)
    assert copy is not None
    return copy.policies.text, copy.policies.issued, copy.fresh_until


def test_a_copy_is_the_text_and_its_times(tmp_path: Path) -> None:
    path = tmp_path / "run" / "policies"
    text = policy_file_text(configuration.parse("[policies.night]\nusers = ['alice']\ncap_watts = 300\n"))
    update(path, text, 5.0)
    assert path.read_text() == f"{text}issued 5.000\nfresh-until {NOW + FRESH_S:.0f}\n"
    assert path.stat().st_mode & 0o777 == 0o644 and path.parent.stat().st_mode & 0o777 == 0o755
    assert stored(path) == (text, 5.0, NOW + FRESH_S)
    update(path, text, 7.0, NOW + 60)  # the controller has restarted
    assert stored(path) == (text, 5.0, NOW + 60 + FRESH_S)


def test_an_older_text_does_not_replace_a_fresh_copy(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    update(path, TEXT, 100.0)
    assert update(path, OTHER, 99.0).text == TEXT
    assert stored(path)[2] == NOW + FRESH_S
    assert update(path, OTHER, 101.0).text == OTHER
    update(path, TEXT, 50.0, NOW + FRESH_S)  # a clock was ahead: the refusal ends with the age of the copy
    assert stored(path) == (TEXT, 50.0, NOW + 2 * FRESH_S)
    update(path, OTHER, 40.0, NOW - 90_000)  # the clock of this host was ahead
    assert stored(path)[0] == OTHER


def test_confirmation_prolongs_the_copy_that_was_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    digest = PublishedPolicies(TEXT, 0.0).digest
    assert not confirm_copy(path, digest, lambda: NOW)
    update(path, TEXT, 100.0)
    assert not confirm_copy(path, PublishedPolicies(OTHER, 0.0).digest, lambda: NOW)
    before = path.stat().st_ino
    assert confirm_copy(path, digest, lambda: NOW + 60)
    assert path.stat().st_ino == before  # rarely written
    assert confirm_copy(path, digest, lambda: NOW + 600)
    assert stored(path) == (TEXT, 100.0, NOW + 600 + FRESH_S)


def test_one_process_at_a_time_updates_a_copy(tmp_path: Path) -> None:
    path, requested, answer = tmp_path / "policies", threading.Event(), threading.Event()

    def slow() -> PublishedPolicies:
        requested.set()
        answer.wait(60)
        return PublishedPolicies(OTHER, 300.0)

    first = threading.Thread(target=update_copy, args=(path, slow, lambda: NOW))
    first.start()
    requested.wait(60)
    second = threading.Thread(target=update, args=(path, TEXT, 400.0))
    second.start()
    answer.set()
    first.join(60)
    second.join(60)
    assert stored(path)[0] == TEXT


def test_files_that_are_no_copy_are_replaced_and_untrusted_directories_refused(tmp_path: Path) -> None:
    path = tmp_path / "policies"
    for content in ("", TEXT, f"{TEXT}issued x\nfresh-until 5\n", "policy a\nissued 1\nfresh-until 2\n"):
        path.write_text(content)
        assert read_copy(path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_copy(path) is None
    path.unlink()
    target = tmp_path / "other"
    target.write_text("mine")
    path.symlink_to(target)
    update(path, TEXT, 1.0)
    assert (target.read_text(), stored(path)[0]) == ("mine", TEXT)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError):
        update(path, OTHER, 2.0)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"text": TEXT},
        {"text": TEXT, "issued": True},
        {"text": TEXT, "issued": -1},
        {"text": TEXT, "issued": 10**400},
        {"text": "policy edp\n", "issued": 1},
        {"text": TEXT[:-1], "issued": 1},
        {"text": f"{TEXT}\x1b\n", "issued": 1},
        {"text": f"{TEXT}\0\n", "issued": 1},
        {"text": TEXT + "#" * MAX_TEXT_BYTES + "\n", "issued": 1},
        {"text": 5, "issued": 1},
    ],
)
def test_other_responses_are_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(UnavailableError):
        PublishedPolicies.from_json(answer)


@given(st.text(max_size=80), st.floats(0, 4e9))
@examples(50)
def test_any_text_is_refused_or_is_copied_as_it_is(text: str, issued: float) -> None:
    try:
        published = PublishedPolicies.from_json({"text": f"senergy-policies 1\n{text}\n", "issued": issued})
    except EnergyError:
        return
    assert len(published.digest) == 16
    assert PublishedPolicies.from_json(json.loads(json.dumps(published.to_json()))) == published


def test_the_time_of_issue_changes_with_the_text() -> None:
    now = [1.0]
    publication = PolicyPublication(lambda: now[0])
    (answer,) = publication.routes.light.values()

    def published() -> PublishedPolicies:
        return PublishedPolicies.from_json(asyncio.run(answer({}, Rights(1000))))  # type: ignore[arg-type]

    publication.publish(TEXT)
    now[0] = 2.0
    publication.publish(TEXT)
    assert published() == PublishedPolicies(TEXT, 1.0)
    publication.publish(OTHER)
    assert published() == PublishedPolicies(OTHER, 2.0)
    assert publication.digest == PublishedPolicies(OTHER, 0.0).digest


def test_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path, config = tmp_path / "run" / "policies", tmp_path / "energy.toml"
    config.write_text(f"[agent]\nsocket = '{tmp_path}/run/agent.sock'\n")
    fake = fake_controller.install(monkeypatch, {POLICY_FILE_PATH: {"text": TEXT, "issued": 5.0}})
    assert main(["policies", "fetch", "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"{path}: 1 policies, used for 15 min unless it is updated\n"
    assert stored(path)[:2] == (TEXT, 5.0)
    other = tmp_path / "other"
    assert main(["policies", "fetch", "-o", str(other), "--json", "--config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["policies"] == ["edp"]
    fake.answers[POLICY_FILE_PATH] = UnavailableError("controller", "gone")
    before = path.read_bytes()
    assert main(["policies", "fetch", "--config", str(config)]) == 4
    assert path.read_bytes() == before
    assert main(["policies", "-o", "x"]) == 2


class TestAgent:
    """The agent keeps the copy of the controller's policy file on its node up to date."""

    @pytest.fixture
    def client(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PolicyCopyClient:
        self.path, self.answers, self.requests = tmp_path / "policies", [TEXT], 0

        async def request(_: Any, __: Any) -> Any:
            self.requests += 1
            answer = self.answers[-1]
            if isinstance(answer, Exception):
                raise answer
            return {"text": answer, "issued": float(len(self.answers))}

        monkeypatch.setattr(policy_copy_client, "request_controller", request)
        return PolicyCopyClient(lambda: Config(agent=AgentConfig(socket=tmp_path / "agent.sock")))

    def test_it_requests_the_file_only_when_it_has_changed(
        self, client: PolicyCopyClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asyncio.run(client.update())
        assert (stored(self.path)[0], self.requests) == (TEXT, 1)
        client.confirm(PublishedPolicies(TEXT, 0.0).digest)
        assert not client._due.is_set()
        asyncio.run(client.update())
        assert self.requests == 1
        self.answers.append(OTHER)
        client.confirm(PublishedPolicies(OTHER, 0.0).digest)
        assert client._due.is_set()
        asyncio.run(client.update())
        assert (stored(self.path)[0], self.requests) == (OTHER, 2)
        now_s = policy_copy_client.time.monotonic() + FRESH_S
        monkeypatch.setattr(policy_copy_client.time, "monotonic", lambda: now_s)
        asyncio.run(client.update())  # no live report has confirmed the copy meanwhile
        assert self.requests == 3

    def test_failures_are_logged_once_and_leave_the_copy(
        self, client: PolicyCopyClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        asyncio.run(client.update())
        before = self.path.read_bytes()
        self.answers.append(UnavailableError("controller", "gone"))  # type: ignore[arg-type]
        for _ in range(3):
            asyncio.run(client.update())
        assert (self.path.read_bytes(), caplog.text.count("gone")) == (before, 1)
