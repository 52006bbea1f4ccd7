"""Tests of the configuration file energy.toml.

The tests check the default values, errors with file, line and key, and the documents that are generated from
the schema.
"""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.config import Config, load, parse
from slurm_energy.config.schema_document import example_file, reference_page, toml
from slurm_energy.errors import ConfigError


def test_example_is_valid_and_shows_the_defaults():
    text = example_file()
    assert parse(text) == Config()
    uncommented = "\n".join(
        line.removeprefix("#") if line.startswith("#") and not line.startswith("# ") else line
        for line in text.splitlines()
    )
    assert parse(uncommented).defaults.partition == {"gpu": "edp"}


def test_every_key_has_a_line_in_the_reference():
    page = reference_page()
    for name in ("sampling_hz", "controller_url", "policy_file", "gpu_cap_watts", "package_cap_watts"):
        assert f"`{name}`" in page
    types = [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| `")]
    assert not [text for text in types if "." in text or "int" in text.split(",")[0].split()]


def test_filled_example_reads_back_equal():
    config = parse(
        '[policies.night]\nbase = "cap"\ncap_watts = 300\n[[edp]]\ngpu = "A100"\ngpu_cap_watts = 250\n'
    )
    assert parse(example_file(config)) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[agent]\nsampling_hs = 2\n", ["x.toml:2", "agent.sampling_hs", "did you mean 'sampling_hz'"]),
        ("[agent]\n\nsampling_hz = 100\n", ["x.toml:3", "from 0.1 to 50"]),
        ("[agent]\nsampling_hz = 'fast'\n", ["x.toml:2", "must be a finite number"]),
        ("[agent]\nsampling_hz = true\n", ["must be a finite number"]),
        ("[agent]\nsampling_hz = nan\n", ["x.toml:2", "agent.sampling_hz", "must be a finite number"]),
        (f"[agent]\nsampling_hz = {10**400}\n", ["x.toml:2", "must be a finite number"]),
        ("[bounds]\n\ncap_watts = [100, inf]\n", ["x.toml:3", "bounds.cap_watts", "finite", "inf"]),
        ("[policies.a]\ncap_watts = -inf\n", ["x.toml:2", "policies.a.cap_watts", "finite"]),
        ("[agent]\nidle_watts = {cpu = inf}\n", ["x.toml:2", "agent.idle_watts", "table of finite"]),
        ("[agent]\nsocket = 'relative'\n", ["agent.socket", "absolute path"]),
        ("[bounds]\ncap_watts = [300, 200]\n", ["bounds.cap_watts", "low <= high"]),
        ("[bounds]\ncap_watts = [300]\n", ["list of 2 numbers"]),
        ("[agnet]\n", ["x.toml:1", "agnet", "did you mean 'agent'"]),
        (
            "[priority]\nweights = {edp = nan}\n",
            ["x.toml:2", "priority.weights", "must be a table of finite numbers, not {'edp': nan}"],
        ),
        ("[priority]\nmode='off'\n[priority.weights]\nedp = inf\n", ["x.toml:3", "priority.weights"]),
        ("[priority]\nmode='off'\nweights.edp = inf\n", ["x.toml:3", "priority.weights"]),
        ("[policies.'Bad Name']\nbase='cap'\n", ["policies.Bad Name"]),
        ("[policies.night]\nwatts = 5\n", ["x.toml:2", "policies.night.watts"]),
        ("[edp]\n", ["[[edp]]"]),
        ("[[edp]]\ngpu_cap_watts=inf\n[[edp]]\n", ["x.toml:2: edp.gpu_cap_watts: must be a finite"]),
        ("[[edp]]\ngpu='A'\n[[edp]]\n\ngpu=3\n", ["x.toml:5: edp[2].gpu: must be a string"]),
        ("[[edp]]\ngpu='A'\n[[ edp ]] # b\n\n\ngpus='B'\n", ["x.toml:6: edp[2].gpus: unknown key"]),
        ("[defaults]\nuser = {a = 1}\n", ["table of strings"]),
        ("[controller]\nagent_users = 'root'\n", ["list of strings"]),
        ("= 5", ["not TOML"]),
        ("agent = 5", ["must be a table"]),
    ],
)
def test_errors_name_the_place(text, expected):
    with pytest.raises(ConfigError) as caught:
        parse(text, Path("x.toml"))
    for part in expected:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=80))
def test_any_text_is_a_configuration_or_an_error(text):
    try:
        parse(text)
    except ConfigError:
        return


@given(
    st.text(alphabet=st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]))
)
def test_strings_are_quoted_so_that_they_read_back(text):
    assert parse(f"[[edp]]\nsource = {toml(text)}\n").edp[0].source == text


def test_absent_default_file_gives_defaults_but_a_named_one_must_exist(monkeypatch, tmp_path):
    monkeypatch.setattr("slurm_energy.config.loader.DEFAULT_PATH", tmp_path / "none.toml")
    monkeypatch.delenv("SENERGY_CONFIG", raising=False)
    assert load() == Config()
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "other.toml")
    monkeypatch.setenv("SENERGY_CONFIG", str(tmp_path / "env.toml"))
    with pytest.raises(ConfigError, match=r"env\.toml"):
        load()


def test_daemons_refuse_files_that_others_can_write(tmp_path):
    path = tmp_path / "energy.toml"
    path.write_text("[cluster]\nname = 'a'\n")
    path.chmod(0o644)
    assert load(path, trusted=True).cluster.name == "a"
    path.chmod(0o664)
    with pytest.raises(
        ConfigError, match=r"mode 0664: expected .*no write permission for others: chmod go-w /"
    ):
        load(path, trusted=True)
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="symbolic link"):
        load(link, trusted=True)
    if os.geteuid() == 0:
        path.chmod(0o644)
        os.chown(path, 12345, 0)
        with pytest.raises(ConfigError, match="12345"):
            load(path, trusted=True)
