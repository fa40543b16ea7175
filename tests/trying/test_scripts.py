"""Scripts that were not written for the plugin: right ones never fail, and broken ones fail with their cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pytest_ddl
from pytest_ddl.comparisons import reports_of
from pytest_ddl.trying.program import TriedScript
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.verdict import UndecidedError, compare_script
from tests.trying import download_scripts, scripts

pytestmark = [pytest.mark.slow, pytest.mark.ddl(strategies=["mirrored"], timeout=300)]


WORKERS = 'workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])\n'
"""Line of a script that reads the variable."""


def tried(path: Path, code: str, compare: pytest_ddl.Equivalence) -> list[str]:
    """Compare a script of two replicas, and return the lines about what was found."""
    path.write_text(code)
    told: list[str] = []
    compare_script(
        reports_of(compare), TriedScript(Script.read(path), replicas=2, steps=2, examples=500), {}, told.append
    )
    return told[-1].splitlines()


def cause_of(path: Path, code: str, compare: pytest_ddl.Equivalence) -> str | None:
    with pytest.raises(pytest_ddl.DivergenceError) as failure:
        tried(path, code, compare)
    return failure.value.report.findings[0].cause


# Whole scripts, each under a strategy in float64 and in its own precision.
@pytest.mark.nightly(each_commit=("mirrored-FIT",))
@pytest.mark.parametrize(
    "name",
    [
        "FIT", "NO_STRATEGY", "LOOP", "FROM_FUNCTION", "TWO_WORKERS", "OWN_ITERATOR", "EAGER", "COORDINATOR_LOOP",
        "OWN_DEFAULT", "RESTORES", "UNEVEN_FROM_FUNCTION", "METRIC_BEFORE_LOSS", "INNER_STEPS", "OF_KAGGLE", "CLEARED",
        "EPOCHS_IN_A_FUNCTION", "COUNTED", "AUGMENTED", "AUGMENTED_BY_LAYERS", "RATE_OF_REPLICAS",
        "SHAPED", "REWRITTEN",
    ],
)  # fmt: skip
def test_a_right_script_passes(name: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    found = tried(tmp_path / "script.py", getattr(scripts, name), ddl_equivalence)
    assert found[-1].split() == ["compared:", "2", "step(s)"]


@pytest.mark.nightly
def test_a_rate_that_grows_without_the_batch_is_undecided(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.RATE_OF_REPLICAS.replace("BATCH = 4 * strategy.num_replicas_in_sync", "BATCH = 8")
    code = code.replace("0.001 if epoch < 1 else top", "top")
    with pytest.raises(UndecidedError, match=r"script\.py:10: .*no batch grows with it"):
        tried(tmp_path / "script.py", code, ddl_equivalence)


@pytest.mark.nightly
def test_steps_before_a_known_end_are_compared_without_random_numbers(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    found = tried(tmp_path / "script.py", scripts.STRINGS_AFTER_DROPOUT, ddl_equivalence)
    assert found[-1].split() == ["compared:", "2", "step(s)"]


def test_a_variable_of_the_script_is_compared(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    code = scripts.COUNTED.replace(", aggregation=tf.VariableAggregation.SUM", "")
    with pytest.raises(pytest_ddl.DivergenceError) as failure:
        tried(tmp_path / "script.py", code, ddl_equivalence)
    finding = failure.value.report.findings[0]
    assert (finding.cause, finding.variable) == ("state-not-aggregated", "seen")


@pytest.mark.nightly
def test_a_whole_batch_for_every_replica_names_train_on_batch(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    with pytest.raises(pytest_ddl.DivergenceError) as failure:
        tried(tmp_path / "script.py", scripts.ON_BATCH, ddl_equivalence)
    assert "Train with model.fit" in str(failure.value.report.findings[0].fix)


@pytest.mark.nightly
def test_a_wrong_loss_is_seen_beside_a_metric(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    code = scripts.METRIC_BEFORE_LOSS.replace('"SUM", parts', '"MEAN", parts')
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "reported-loss-wrong"


def test_a_metric_of_the_scripts_own_loop_is_compared(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    code = scripts.METRIC_BEFORE_LOSS.replace("mean.update_state(losses)", "mean.update_state(loss)")
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "metric-wrong"


@pytest.mark.ddl(strategies=["central_storage"], timeout=300)
def test_metrics_that_keras_sums_again_are_known_in_the_scripts_own_loop(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(scripts.METRIC_BEFORE_LOSS)
    script = TriedScript(Script.read(tmp_path / "script.py"), replicas=2, steps=3, examples=500)
    report = compare_script(reports_of(ddl_equivalence), script, {})
    assert {finding.known for finding in report.known} == {"keras-metrics-central-storage"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "loss",
    [
        "tf.reduce_mean(losses) / strategy.num_replicas_in_sync",
        "tf.reduce_mean(losses) * (1.0 / strategy.num_replicas_in_sync)",
        "tf.reduce_sum(losses) * (1.0 / GLOBAL_BATCH_SIZE)",
    ],
)
def test_every_right_way_to_scale_a_loss_passes(
    loss: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    tried(tmp_path / "script.py", scripts.LOOP.replace(scripts.AVERAGE, loss), ddl_equivalence)


@pytest.mark.nightly
def test_a_wrong_loss_is_seen_in_a_script_whose_batch_is_fixed(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.SHAPED.replace(scripts.AVERAGE, "tf.reduce_mean(losses)")
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "gradient-scaled-by-replica-count"


@pytest.mark.nightly
def test_a_copied_number_of_replicas_passes(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    code = scripts.LOOP.replace("PER_REPLICA =", "REPLICAS = strategy.num_replicas_in_sync\nPER_REPLICA =")
    code = code.replace(scripts.AVERAGE, "tf.reduce_mean(losses) / REPLICAS")
    tried(tmp_path / "script.py", code, ddl_equivalence)


def test_a_loss_that_both_runs_divide_once_more_decides_nothing(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.LOOP.replace("PER_REPLICA =", "REPLICAS = strategy.num_replicas_in_sync\nPER_REPLICA =")
    code = code.replace(scripts.AVERAGE, f"{scripts.AVERAGE} / REPLICAS")
    with pytest.raises(UndecidedError, match=r"script.py:[0-9]+: the number of replicas enters the arithmetic"):
        tried(tmp_path / "script.py", code, ddl_equivalence)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "loss", ["tf.reduce_mean(losses)", "tf.nn.compute_average_loss(losses, global_batch_size=PER_REPLICA)"]
)
def test_a_loss_that_is_not_divided_by_the_replicas_fails(
    loss: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.LOOP.replace(scripts.AVERAGE, loss)
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "gradient-scaled-by-replica-count"


@pytest.mark.nightly
def test_a_dataset_with_batches_of_one_replica_fails_if_the_loss_has_the_global_batch(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.LOOP.replace(".batch(GLOBAL_BATCH_SIZE)", ".batch(PER_REPLICA)")
    assert code != scripts.LOOP
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "gradient-scaled-by-inverse-replica-count"


@pytest.mark.nightly
@pytest.mark.parametrize("divided", ["tf.reduce_sum(losses) / PER_REPLICA", scripts.AVERAGE])
def test_a_sum_that_is_divided_by_the_replicas_gets_advice(
    divided: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    # The first is right, and the second is divided twice. Nothing in their values shows it.
    code = scripts.LOOP.replace(scripts.AVERAGE, f"{divided} / strategy.num_replicas_in_sync")
    with pytest.raises(UndecidedError, match="a loss is scaled by the number of replicas"):
        tried(tmp_path / "script.py", code, ddl_equivalence)


@pytest.mark.nightly
@pytest.mark.ddl(strategies=["multi_worker_mirrored"], timeout=300)
def test_a_right_script_of_two_workers_passes(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    tried(tmp_path / "script.py", scripts.TWO_WORKERS, ddl_equivalence)


@pytest.mark.nightly
@pytest.mark.ddl(strategies=["multi_worker_mirrored"], timeout=300)
def test_a_worker_keeps_its_task_without_tf_config(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    removed = "import os\nos.environ.pop('TF_CONFIG', None)\n"
    found = tried(
        tmp_path / "script.py", removed + scripts.TWO_WORKERS.replace(WORKERS, "workers = 2\n"), ddl_equivalence
    )
    assert found


@pytest.mark.nightly
@pytest.mark.ddl(strategies=["multi_worker_mirrored"], timeout=300)
def test_a_shard_that_both_workers_read_fails(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    shard = "    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)\n"
    assert shard in scripts.TWO_WORKERS
    with pytest.raises(pytest_ddl.DivergenceError) as failure:
        tried(tmp_path / "script.py", scripts.TWO_WORKERS.replace(shard, ""), ddl_equivalence)
    finding = failure.value.report.findings[0]
    assert finding.cause == "examples-duplicated"
    assert [line.partition("script.py:")[2][2:] for line in finding.lines] == [" (the data): def dataset_fn(context):"]


@pytest.mark.nightly
def test_a_batch_of_one_example_is_a_known_limit_of_fit(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(scripts.ONE_EXAMPLE)
    report = compare_script(
        ddl_equivalence, TriedScript(Script.read(tmp_path / "script.py"), replicas=2, steps=2, examples=500), {}
    )
    assert [behavior.id for behavior in report.known_behaviors] == ["keras-fit-unequal-parts"]


def notebook_of(*cells: str) -> str:
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": cell} for cell in cells]})


@pytest.mark.nightly
def test_a_step_of_a_coordinator_that_is_not_divided_by_the_replicas_fails(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.COORDINATOR_LOOP.replace(scripts.AVERAGE, "tf.reduce_mean(losses)")
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "gradient-scaled-by-replica-count"


@pytest.mark.nightly
@pytest.mark.ddl(strategies=["parameter_server"], timeout=300)
def test_a_coordinator_of_parameter_servers_is_not_followed(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    with pytest.raises(UndecidedError, match=r"script.py:5: the loop of a ClusterCoordinator is not followed"):
        tried(tmp_path / "script.py", scripts.COORDINATOR, ddl_equivalence)


def with_a_cell(cell: str) -> str:
    """Return a notebook with a cell between the data and the training of a right script."""
    first, second = scripts.FIT.split("with strategy.scope():", 1)
    return notebook_of(first, cell, "with strategy.scope():" + second)


@pytest.mark.nightly
def test_a_cell_with_training_that_fails_on_one_device_too_is_no_pass(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    reason = r"2 step\(s\) agree, but cell 2 at notebook_notebook.py:13: NameError"
    with pytest.raises(UndecidedError, match=reason):
        tried(tmp_path / "notebook.ipynb", with_a_cell("not_there.fit(train)\n"), ddl_equivalence)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "cell",
    [
        "import not_there\n",
        # Keras makes weights in float64 under the comparison, but the script asks for another type.
        """
tf.saved_model.save(tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)]), 'saved')
tf.saved_model.load('saved').signatures['serving_default'](tf.ones((1, 4)))
VALUE = 1
""",
    ],
    ids=["without training", "precision"],
)
def test_a_cell_that_fails_without_training_or_in_float64_alone_is_a_pass(
    cell: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    found = tried(tmp_path / "notebook.ipynb", with_a_cell(cell), ddl_equivalence)
    assert any(line.startswith("failed:") for line in found) is ("not_there" in cell)


@pytest.mark.nightly
def test_a_cell_that_fails_only_under_the_strategy_fails(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    cells = notebook_of(scripts.FIT, "import not_there\n", "assert not strategy.extended.worker_devices[1:]\n")
    with pytest.raises(pytest_ddl.DivergenceError, match="AssertionError"):
        tried(tmp_path / "notebook.ipynb", cells, ddl_equivalence)


@pytest.mark.nightly
@pytest.mark.ddl(strategies=["multi_worker_mirrored"], timeout=300)
def test_files_of_a_notebook_are_not_a_conflict_of_workers(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    cells = notebook_of("%%writefile written.py\nvalue = 7\n", "import written\n" + scripts.TWO_WORKERS)
    tried(tmp_path / "notebook.ipynb", cells, ddl_equivalence)


@pytest.mark.nightly
def test_a_model_outside_the_scope_is_named_though_no_step_runs(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    code = scripts.LOOP.replace("with strategy.scope():", "if True:", 1).replace(
        "    optimizer = ", "    pass\nwith strategy.scope():\n    optimizer = "
    )
    assert cause_of(tmp_path / "script.py", code, ddl_equivalence) == "variable-outside-scope"


@pytest.mark.nightly
def test_a_notebook_runs_without_its_magics(ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path) -> None:
    first, second = scripts.FIT.split("with strategy.scope():", 1)
    cells = ["!pip install tensorflow\n%matplotlib inline", first, "with strategy.scope():" + second]
    found = tried(tmp_path / "notebook.ipynb", notebook_of(*cells), ddl_equivalence)
    assert found[0] == "left out:     cell 1: !pip install tensorflow; cell 1: %matplotlib inline"


@pytest.mark.nightly(each_commit=("mirrored-download",))
@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (scripts.OWN_LOOP_WITHOUT_STRATEGY, r"(?s)^script.py:10: this loop .*\n +loss = loss / strategy"),
        (
            scripts.OWN_LOOP_WITHOUT_STRATEGY.replace("apply_gradients(zip(", "apply(").replace("s))", "s)"),
            r"(?s)^script.py:10: this loop .*strategy.run\(train_step",
        ),
        (download_scripts.DOWNLOADS, r"^script.py:6: .*urlopen\(https://example.org/a\) is refused"),
        (scripts.ASSIGNED, "without an optimizer of Keras. Apply the gradients with one"),
        ("import tensorflow as tf\nprint(tf.distribute.MirroredStrategy())\n", "no training step was seen"),
        (scripts.COORDINATOR, "no training step was seen"),
        (scripts.VALUES, "script.py:[0-9]+: a training step after values from a function"),
        ("mesh = dtensor.create_mesh([('batch', 8)])\n", "script.py:1: a mesh of DTensor is not a strategy"),
        (scripts.FIT.replace("with strategy.scope():", "if True:"), "fit at script.py.*outside strategy.scope"),
        (
            scripts.OWN_ITERATOR + "model.compile(optimizer, 'mse')\nmodel.fit(x, y)\n",
            "script.py:[0-9]+: this training has not run",
        ),
        (scripts.FIT + "import not_there\n", "the script fails on one device, too: ModuleNotFoundError"),
    ],
    ids=[
        "loop",
        "apply",
        "download",
        "assigned",
        "nothing",
        "coordinator",
        "values",
        "mesh",
        "no scope",
        "unrun",
        "own error",
    ],
)
def test_a_script_that_cannot_be_followed_gets_advice(
    code: str, advice: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    with pytest.raises(UndecidedError, match=advice):
        tried(tmp_path / "script.py", code, ddl_equivalence)


@pytest.mark.nightly
def test_a_model_with_trained_weights_is_compared_without_them(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    """Weights cannot be downloaded here, and their values do not matter for the comparison."""
    found = tried(tmp_path / "script.py", download_scripts.FINE_TUNED, ddl_equivalence)
    assert "data:         keras.applications.MobileNetV2: random weights in place of trained ones" in found
    assert found[-1].split() == ["compared:", "2", "step(s)"]


@pytest.mark.nightly
def test_files_of_tutorials_have_stand_ins_and_own_ones_are_read(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    found = tried(tmp_path / "script.py", download_scripts.TEXT_AND_IMAGES, ddl_equivalence)
    assert "data:         keras.utils.get_file(https://example.org/shakespeare.txt): random content" in "\n".join(found)
    assert found[-1].split() == ["compared:", "2", "step(s)"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["TEXTS", "DRAWN_BATCHES"])
def test_data_that_is_read_or_drawn_is_the_same_in_each_run(
    name: str, ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    found = tried(tmp_path / "script.py", getattr(download_scripts, name), ddl_equivalence)
    assert found[-1].split() == ["compared:", "2", "step(s)"]


@pytest.mark.nightly
def test_an_optimizer_that_keras_cannot_build_under_the_strategy_is_named(
    ddl_equivalence: pytest_ddl.Equivalence, tmp_path: Path
) -> None:
    assert cause_of(tmp_path / "script.py", scripts.NOT_BUILT, ddl_equivalence) == "optimizer-not-built"
