"""Tests of the trainer that runs training steps as task graphs on StarPU.

The results equal those of numpy, in whatever way a batch is split into tasks. The same split gives the same
results again. A missing requirement causes an error of one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

import taskgraph_cases  # noqa: E402

from slurm_energy.errors import UsageError  # noqa: E402
from slurm_energy.training import taskgraph as tg  # noqa: E402
from slurm_energy.training.taskgraph.granularity import BatchSplit, GranularityTuner  # noqa: E402
from slurm_energy.training.taskgraph.native_library import missing_requirement  # noqa: E402
from slurm_energy.training.taskgraph.stages import plan_stages  # noqa: E402

CASES = taskgraph_cases.CASES
SPLITS = taskgraph_cases.SPLITS
DIGITS_10 = 1e-10
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Results of all test cases with StarPU task graphs, computed in another process.

    StarPU's threads must not run in the process of the tests.
    """
    if missing := missing_requirement():
        pytest.skip(missing)
    path = tmp_path_factory.mktemp("taskgraph") / "results.npz"
    program = Path(taskgraph_cases.__file__)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "STARPU_HOME": str(path.parent)}
    subprocess.run([sys.executable, str(program), str(path)], check=True, timeout=240, env=environment)
    return np.load(path)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_equal_numpy(results, name, split):
    for key, wanted in taskgraph_cases.reference(CASES[name]).items():
        computed = results[f"{name}|{split}|{key}"]
        assert computed.shape == np.shape(wanted)
        np.testing.assert_allclose(computed, wanted, rtol=DIGITS_10, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_updates_descend_along_the_gradient(results, name):
    case = CASES[name]
    first, model = taskgraph_cases.reference(case), case.model()
    model.load_state(
        {key: values - taskgraph_cases.RATE * first[key] for key, values in model.parameters().items()}
    )
    moved = taskgraph_cases.Case(case.shape, case.layers, case.batch)
    object.__setattr__(moved, "model", lambda: model)
    second = taskgraph_cases.reference(moved)
    for split in SPLITS:
        np.testing.assert_allclose(
            results[f"{name}|{split}|losses"], [first["loss"], second["loss"]], rtol=DIGITS_10
        )
        for key, values in model.parameters().items():
            wanted = values - taskgraph_cases.RATE * second[key]
            np.testing.assert_allclose(
                results[f"{name}|{split}|new {key}"], wanted, rtol=DIGITS_10, atol=1e-12
            )


def test_results_of_one_split_do_not_depend_on_the_number_of_workers(results):
    keys = [key for key in results.files if "|other workers|" in key]
    assert keys
    for key in keys:
        assert np.array_equal(results[key], results[key.replace("other workers", "many")]), key


def test_part_of_a_batch_is_predicted_as_the_whole(results):
    for name in CASES:
        part, new = results[f"{name}|many|part"], results[f"{name}|groups|part"]
        np.testing.assert_allclose(part, new, rtol=DIGITS_10, atol=1e-12)
        assert part.shape == (1, results[f"{name}|many|logits"].shape[1])


def test_divergence_is_visible(results):
    assert np.isnan(results["nan loss"]).all()


def test_adaptive_training_is_training(results):
    losses = results["adaptive losses"]
    assert losses.shape == (100,)
    assert losses[-1] < losses[0]
    assert results["adaptive chunks"] >= 1


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((tg.Conv2d(1, 4, 3), tg.Flatten(), tg.Linear(4, 2)), "its input has 3 channels: needs 1 channels"),
        ((tg.Flatten(), tg.Linear(10, 2)), "its input has 192 features: needs 10"),
        ((tg.Linear(10, 2),), "put Flatten before it"),
        ((tg.MaxPool2d(9), tg.Flatten(), tg.Linear(1, 2)), "smaller than the window"),
        ((tg.Conv2d(3, 2, 9), tg.Flatten(), tg.Linear(1, 2)), "smaller than the kernel"),
        ((tg.Conv2d(3, 2, 3),), "does not end in one value per class"),
        ((tg.Flatten(), tg.Conv2d(3, 2, 3)), "its input has a vector"),
    ],
)
def test_layers_that_do_not_fit_are_one_line(layers, text):
    with pytest.raises(UsageError) as error:
        plan_stages(layers, (3, 8, 8))
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [{"dtype": "float16"}, {"batch_size": 0}, {"workers": 0}, {"granularity": 0}, {"granularity": (1, 2, 3)}],
)
def test_invalid_arguments_name_themselves(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        tg.Trainer(tg.Sequential(tg.Flatten(), tg.Linear(3, 2)), **arguments)


def test_state_has_the_keys_and_shapes_of_pytorch():
    model = tg.Sequential(tg.Conv2d(3, 4, (5, 2)), tg.Flatten(), tg.Linear(4, 2, bias=False))
    assert {key: values.shape for key, values in model.parameters().items()} == {
        "0.weight": (4, 3, 5, 2),
        "0.bias": (4,),
        "2.weight": (2, 4),
    }
    with pytest.raises(UsageError, match=r"2\.weight"):
        model.load_state({"0.weight": np.zeros((4, 3, 5, 2)), "0.bias": np.zeros(4)})
    with pytest.raises(UsageError, match="needs"):
        model.load_state(model.parameters() | {"0.bias": np.zeros(3)})


def tuned(batch_task_s: float, walls: dict[int, float], workers: int = 2) -> BatchSplit:
    tuner = GranularityTuner(workers, 32, overhead_s=1e-6)
    for _ in range(40):
        if tuner.choice is not None:
            return tuner.choice
        split, batches = tuner.next_trial()
        tuner.record(
            walls[split.chunks] * batches, split.chunks * 1e-9, batch_task_s * batches, split.chunks, batches
        )
    raise AssertionError("no choice after 40 trials")


def test_tasks_last_twenty_times_their_overhead():
    walls = {1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0}
    assert tuned(1e-3, walls) == BatchSplit(8)
    assert tuned(8 * 20e-6 * 0.99, walls) == BatchSplit(4)
    assert tuned(2 * 20e-6 * 0.99, walls) == BatchSplit(1)


def test_split_within_the_tolerance_that_needs_less_processor_time():
    assert tuned(1e-3, {1: 1.04, 2: 1.0, 4: 1.2, 8: 1.3}) == BatchSplit(1)
    assert tuned(1e-3, {1: 1.06, 2: 1.0, 4: 1.2, 8: 1.3}) == BatchSplit(2)


def test_features_are_split_if_the_batch_has_fewer_samples_than_workers():
    tuner = GranularityTuner(4, 1, overhead_s=1e-6)
    splits = set()
    while tuner.choice is None:
        split, batches = tuner.next_trial()
        splits.add(split)
        tuner.record((0.5 if split.groups == 4 else 1.0) * batches, 1.0, 1.0 * batches, 1, batches)
    assert tuner.choice == BatchSplit(1, 4)
    assert splits == {BatchSplit(1), BatchSplit(1, 4)}


SHARED = """
import sys
import numpy as np
import taskgraph_cases
from slurm_energy.training import taskgraph as tg
case = taskgraph_cases.CASES["two convolutions"]
images, labels = taskgraph_cases.Case(case.shape, case.layers, 11).samples()
model = case.model()
trainer = tg.Trainer(model, 0.01, 4, "float64", 1, 2, distributed=len(sys.argv) > 2)
losses = trainer.fit(images, labels, epochs=2, shuffle_seed=1)
logits = trainer.predict(images)
np.savez(sys.argv[1] + str(trainer.rank()[0]), losses=losses, logits=logits, **model.parameters())
"""


@pytest.mark.soak
def test_processes_share_batches_without_changing_the_result(tmp_path):
    if missing := missing_requirement(distributed=True) or (
        not shutil.which("mpirun") and "mpirun: not found"
    ):
        pytest.skip(str(missing))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}", "STARPU_HOME": str(tmp_path)}
    one = [sys.executable, "-c", SHARED, str(tmp_path / "one")]
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        "3",
        *one[:-1],
        str(tmp_path / "of"),
        "x",
    ]
    for line in (one, command):
        subprocess.run(line, check=True, timeout=240, env=environment)
    alone, first = np.load(tmp_path / "one0.npz"), np.load(tmp_path / "of0.npz")
    for rank in range(3):
        shared = np.load(tmp_path / f"of{rank}.npz")
        for key in alone.files:
            assert np.array_equal(shared[key], first[key]), key
            np.testing.assert_allclose(shared[key], alone[key], rtol=DIGITS_10, atol=1e-12, err_msg=key)


def test_missing_numpy_is_one_line():
    code = "import sys; sys.modules['numpy'] = None\nimport slurm_energy.training.taskgraph"
    assert "the task-graph trainer: numpy is not installed: " in run_python(code).splitlines()[-1]


def test_missing_compiler_is_one_line(tmp_path):
    code = "from slurm_energy.training.taskgraph.native_library import load_library; load_library()"
    output = run_python(code, PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    last = output.splitlines()[-1]
    assert "the task-graph trainer: gcc is not installed: apt-get install gcc" in last


def test_a_cache_that_other_users_can_write_is_refused(tmp_path):
    folder = tmp_path / "slurm-energy"
    folder.mkdir()
    folder.chmod(0o777)
    code = "from slurm_energy.training.taskgraph.native_library import load_library; load_library()"
    last = run_python(code, XDG_CACHE_HOME=str(tmp_path)).splitlines()[-1]
    assert f"{folder}: other users can write there: chmod go-w {folder}" in last
    assert not list(folder.iterdir())
