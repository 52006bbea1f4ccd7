"""slurm.conf is found and parsed by the rules of Slurm."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.slurm import conf_files


@pytest.fixture
def conf(tmp_path):
    return tmp_path / "slurm.conf"


def test_lines_as_slurm_reads_them(conf):
    conf.write_text(
        'A=1 b = "two words" # C=3\n'
        "Prolog=/a/\\\nb  \n"
        "Comment=x\\#y\n"
        "PartitionName=all Nodes=ALL State=UP\n"
        "d=last\nD=really\n"
        "not a pair\n"
    )
    assert conf_files.read_settings(conf) == {
        "a": ["1"],
        "b": ["two words"],
        "prolog": ["/a/b"],
        "comment": ["x#y"],
        "partitionname": ["all Nodes=ALL State=UP"],
        "d": ["last", "really"],
    }


def test_an_included_file_that_cannot_be_read(conf):
    conf.write_text("A=1\nInclude gone.conf\nB=2\n")
    assert conf_files.read_settings(conf) == {"a": ["1"], "b": ["2"]}
    with pytest.raises(FileNotFoundError):
        conf_files.read_settings(conf, strict=True)
    conf.write_text("Include slurm.conf\n")
    with pytest.raises(OSError, match="more than 64 included files"):
        conf_files.read_settings(conf, strict=True)


def test_relative_includes_of_included_files(tmp_path, conf):
    """Names refer to the directory of their file (22.05), or to that of slurm.conf (from 23.02 on)."""
    (tmp_path / "conf.d").mkdir()
    conf.write_text("ClusterName=X\nInclude conf.d/site.conf\nC=3\n")
    (tmp_path / "conf.d/site.conf").write_text("Include a.conf\nInclude conf.d/%c.conf\n")
    (tmp_path / "conf.d/x.conf").write_text("B=2\n")
    for folder in (tmp_path, tmp_path / "conf.d"):
        (folder / "a.conf").write_text("A=1\n")
        settings = conf_files.read_settings(conf, strict=True)
        assert list(settings.items())[1:] == [("a", ["1"]), ("b", ["2"]), ("c", ["3"])]
        (folder / "a.conf").unlink()
    with pytest.raises(FileNotFoundError):
        conf_files.read_settings(conf, strict=True)


@given(st.text(alphabet='Aa=" \\#\n\tinclude%c./', max_size=80) | st.text(max_size=80))
def test_any_text_is_read(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("conf") / "slurm.conf"
    path.write_text(text.encode("utf-8", "replace").decode(), encoding="utf-8")
    conf_files.read_settings(path)


def test_slurm_conf_is_looked_for_as_slurm_does(tmp_path):
    program = tmp_path / "bin/scontrol"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    conf = tmp_path / "etc/slurm.conf"
    conf.parent.mkdir()
    conf.touch()
    assert conf_files.locate_slurm_conf({"PATH": str(program.parent)}) == conf
    assert conf_files.locate_slurm_conf({"PATH": str(program.parent), "SLURM_CONF": "/x"}).as_posix() == "/x"


@pytest.mark.parametrize("name", ["slurm.conf", "included.conf"])
def test_a_fifo_is_not_waited_for(tmp_path, name):
    """If slurm.conf is a FIFO, the reader reports an error at once instead of waiting for data.

    Otherwise the owner of the directory could block each root command that reads slurm.conf.
    """
    (tmp_path / "slurm.conf").write_text("ClusterName=x\nInclude included.conf\n")
    (tmp_path / "included.conf").write_text("SlurmUser=y\n")
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    errors: list[str] = []

    def read():
        try:
            conf_files.read_settings(tmp_path / "slurm.conf", strict=True)
        except OSError as error:
            errors.append(str(error.filename))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)
    assert errors == [str(tmp_path / name)]


def test_a_file_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(conf_files, "_MAX_BYTES", 20)
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n")
    assert conf_files.read_settings(tmp_path / "slurm.conf") == {"clustername": ["x"]}
    (tmp_path / "slurm.conf").write_text("ClusterName=x\n" * 2)
    with pytest.raises(OSError, match="longer"):
        conf_files.read_settings(tmp_path / "slurm.conf")
