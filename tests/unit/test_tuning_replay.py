"""Tests of benchmarks/tuning.py, which replays measured data of GPUs.

The data of the tests contain GPUs, power limits and networks that do not occur in the benchmark's own
data.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

np = pytest.importorskip("numpy")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")


@pytest.fixture(scope="module")
def replay() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import random_gpus  # noqa: F401
        import tuning
    finally:
        sys.path.remove(str(BENCHMARKS))
    yield tuning
    for name in ("tuning", "tuning_strategies", "power_limit_runs", "claims", "random_gpus"):
        sys.modules.pop(name, None)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Create measurements of a GPU with power limits from 115 to 370 W, and return their folder.

    One of the two measured jobs responds to the limits. The other one draws only 60 W, so that no limit
    affects it.
    """
    rows = []
    for limit in (115, 160, 205, 250, 295, 340, 370):
        clock = min(1.0, ((limit - 60) / 270) ** (1 / 3))
        rows.append(("imagenet", "vit", 64, "adamw", limit, 100 / clock, min(limit, 330)))
        rows.append(("text", "tiny", 1, "sgd", limit, 10 + limit % 3 / 10, 60))
    with (tmp_path / "summary_power_gpu x.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return tmp_path


def test_unknown_gpu_is_tuned_and_a_job_below_its_limits_is_flat(replay: Any, study: Path) -> None:
    jobs = {job.network: job for job in replay.load(study)}
    vit, tiny = jobs["imagenet/vit"], jobs["text/tiny"]
    assert (vit.gpu, vit.limits[-1], vit.responds) == ("gpu x", 370.0, True)
    assert set(tiny.time) == {1.0}
    assert not tiny.responds
    settings = replay.Settings(300, 5, 1, 2, 1, 0.0, False)
    result = replay.evaluate(vit, 205.0, settings, 0)
    assert result.edp[replay.SEARCH][0] < 1.05
    assert result.edp[replay.SEARCH][0] < result.edp[replay.UNTUNED][0]
    held, whole_run, saved, possible = result.slowdowns[0.05][0]
    assert max(held, whole_run) <= 0.06
    assert 0.5 * possible < saved
    flat = replay.evaluate(tiny, 205.0, settings, 1)
    assert flat.edp[replay.SEARCH][0] == pytest.approx(1.0, abs=0.01)
    claims = replay._claims([result, flat])
    assert all(claim["claim"].endswith("gpu_x") for claim in claims)


def test_gpus_beyond_the_range_are_noisy_and_follow_physics(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs on GPUs with randomly drawn, extreme properties have plausible noise and physics.

    The noise of repeated measurements at one power limit is that of single steps. A power limit far above
    the power of the job hardly changes the mean time.
    """
    argv = ["random_gpus.py", str(tmp_path), "--seed", "5", "--cards", "4", "--jobs", "3", "--beyond"]
    monkeypatch.setattr(sys, "argv", argv)
    sys.modules["random_gpus"].main()  # type: ignore[attr-defined]
    jobs = replay.load(tmp_path)
    assert len(jobs) == 12
    assert all(0.015 < job.time_cv < 0.12 for job in jobs)
    assert len({len(job.limits) for job in jobs}) > 1
    idle = [
        time
        for job in jobs
        for limit, time in zip(job.limits, job.time, strict=True)
        if limit > 3 * job.watts[-1]
    ]
    assert all(time < 1.06 for time in idle)


def test_random_gpus_are_readable_plausible_and_the_same_for_a_seed(
    replay: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for name in ("one", "other"):
        folder = str(tmp_path / name)
        monkeypatch.setattr(
            sys, "argv", ["random_gpus.py", folder, "--seed", "5", "--cards", "2", "--jobs", "3"]
        )
        sys.modules["random_gpus"].main()  # type: ignore[attr-defined]
        texts.append([path.read_text() for path in sorted((tmp_path / name).iterdir())])
    jobs = replay.load(tmp_path / "one")
    assert texts[0] == texts[1] and len(jobs) == 6
    assert all(job.edp.min() > 0.5 and job.time[0] >= 1.0 for job in jobs)


@given(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=20))
@examples(50)
def test_monotone_curve_rises_and_keeps_the_mean(replay: Any, values: list[float]) -> None:
    monotone = sys.modules["power_limit_runs"].monotone  # type: ignore[attr-defined]
    fitted, deviation = monotone(np.array(values))
    assert np.all(np.diff(fitted) >= -1e-12)
    assert fitted.mean() == pytest.approx(np.mean(values), abs=1e-9)
    assert deviation >= 0.0
    rising = np.sort(values)
    assert np.allclose(monotone(rising)[0], rising)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset,network\na,b\n", "line 1: no column average_power"),
        ("", "line 1: no column average_power"),
        (",".join(COLUMNS) + "\na,b,1,c,100,x,5\n", "line 2: not a number"),
        (",".join(COLUMNS) + "\na,b,1,c,100,nan,5\n", "line 2: not above 0"),
        (",".join(COLUMNS) + "\na,b,1,c,100\n", "line 2: not a number"),
        (",".join(COLUMNS) + "\na,b,1,c,100,1,5,9\n", "line 2: has more fields than the header"),
    ],
)
def test_bad_data_is_named_with_its_line(replay: Any, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "summary_power_y.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        replay.load(tmp_path)


def test_unreadable_data_is_named(replay: Any, tmp_path: Path) -> None:
    path = tmp_path / "summary_power_y.csv"
    path.mkdir()
    with pytest.raises(ValueError, match=r"summary_power_y.csv: Is a directory"):
        replay.load(tmp_path)
    path.rmdir()
    path.write_bytes(",".join(COLUMNS).encode() + b"\nna\xefve,b,1,c,100,10,50\n")
    with pytest.raises(ValueError, match=r"summary_power_y.csv: not UTF-8"):
        replay.load(tmp_path)


def test_byte_order_mark_spaces_repeated_limits_and_more_columns_are_accepted(
    replay: Any, tmp_path: Path
) -> None:
    lines = [", ".join((*COLUMNS, "note"))]
    lines += [f"a, b, 1, c, {limit}, {1000 / limit}, {limit / 2}" for limit in (100, 200, 200, 300)]
    (tmp_path / "summary_power_y.csv").write_text("\n\r\n".join(lines), encoding="utf-8-sig")
    (tmp_path / "summary_power_z.csv").write_text(",".join(COLUMNS) + "\na,b,1,c,100,10,50\n")
    (job,) = replay.load(tmp_path)
    assert (job.gpu, job.network, job.limits) == ("y", "a/b", (100.0, 200.0, 300.0))
    assert job.time == pytest.approx((3.0, 1.5, 1.0))


@given(st.binary(max_size=60))
@examples(50)
def test_any_file_is_read_or_refused_in_one_line(replay: Any, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "summary_power_y.csv").write_bytes(",".join(COLUMNS).encode() + b"\n" + data)
        try:
            replay.load(Path(folder))
        except ValueError as error:
            assert "summary_power_y.csv" in str(error) and "\n" not in str(error)
