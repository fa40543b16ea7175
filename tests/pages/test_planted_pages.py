"""Pages of real comparisons: a planted bug of each kind is shown with its facts."""

from __future__ import annotations

import os

import pytest

from tests.pages.made import Element, Project

pytestmark = pytest.mark.slow

PROGRAMS = """
    import keras, numpy as np, tensorflow as tf
    import pytest

    def training(scale=False, drift=False, unsharded=False, conditional=False):
        def train(run):
            with run.strategy.scope():
                model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
                optimizer = keras.optimizers.SGD(0.1)
                optimizer.build(model.trainable_variables)
            run.watch(model=model, optimizer=optimizer)
            x = np.random.default_rng(0).normal(size=(96, 3)).astype("float32")

            def dataset(context):
                data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
                if not unsharded:
                    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
                return data.batch(context.get_per_replica_batch_size(run.global_batch_size))

            @tf.function
            def step(iterator):
                def replica(batch):
                    x, y = batch
                    with tf.GradientTape() as tape:
                        error = tf.square(model(x) - y)[:, 0]
                        loss = tf.nn.compute_average_loss(error, global_batch_size=run.global_batch_size)
                        loss = loss * (run.num_replicas if scale else 1)
                    gradients = tape.gradient(loss, model.trainable_variables)
                    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
                    return loss
                return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

            @tf.function
            def norm():
                def replica():
                    norms = [tf.norm(variable) for variable in model.trainable_variables]
                    return tf.distribute.get_replica_context().all_reduce("SUM", tf.stack(norms))
                return run.strategy.run(replica)  # the chief's line

            for number, _ in enumerate(run.steps(step, dataset)):
                if conditional and number == 1 and run.rank == 0:
                    norm()
                if drift and number == 1 and run.rank == 1:
                    kernel = model.layers[0].kernel
                    kernel.assign(kernel + 0.01)
        return train

    @pytest.mark.ddl(strategies="mirrored")
    def test_scaled(ddl_equivalence):
        ddl_equivalence(training(scale=True), global_batch_size=12, steps=4)

    @pytest.mark.ddl(strategies="multi_worker_mirrored")
    @pytest.mark.parametrize("bug", ["drift", "unsharded", "conditional"])
    def test_workers(ddl_equivalence, bug):
        ddl_equivalence(training(**{bug: True}), global_batch_size=12, steps=4)
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, warm_server: object) -> dict[str, Element]:
    """Pages of one run, by the name of the test."""
    project = Project(tmp_path_factory.mktemp("project"), {"test_bugs.py": PROGRAMS})
    # A warm server fits only if the run finds the plugin where the server has found it.
    environ = {"PYTEST_DDL_WARM": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = project.run("--ddl-report=pages", "--ddl-timeout=300", timeout=1500.0, **environ)
    found = [project.page(str(path)) for path in (project.folder / "pages").glob("test-*.html")]
    assert len(found) == 4, done.stdout + done.stderr
    return {page.one("p", kind="test").text.partition("::")[2]: page for page in found}


def test_a_scaled_loss_is_wrong_on_all_replicas_from_the_first_step(pages: dict[str, Element]) -> None:
    page = pages["test_scaled[mirrored]"]
    assert page.one("h1").text.startswith("gradient-scaled-by-replica-count")
    rows = page.one("table", kind="heat").rows()
    assert rows[0] == ["variable", "replica 0", "replica 1"]
    assert all("x 10" in cell for row in rows[1:3] for cell in row[1:])
    assert page.one("table", kind="examples").rows()[1] == ["step 1", "1-6", "7-12"]
    assert page.one("section", kind="absent").one("li", id="collectives")


def test_a_worker_that_drifts_is_the_worst_column(pages: dict[str, Element]) -> None:
    page = pages["test_workers[multi_worker_mirrored-drift]"]
    assert page.one("h1").text.startswith("workers-diverged")
    rows = {row[0]: row[1:] for row in page.one("table", kind="heat").rows()}
    # The change follows the record of step 2. In step 3, its gradient reaches the other worker too.
    first, second = rows["sequential/dense/kernel trainable"]
    assert "x 10" in first
    assert first != second
    assert rows["sequential/dense/bias trainable"][0] == rows["sequential/dense/bias trainable"][1]
    facts = {one.one("dt").text: one.one("dd").text for one in page.one("dl", kind="facts").find("div")}
    assert (facts["step"], facts["worker"], facts["replica"]) == ("3", "1", "1")


def test_an_unsharded_dataset_shows_the_same_examples_on_both_workers(pages: dict[str, Element]) -> None:
    page = pages["test_workers[multi_worker_mirrored-unsharded]"]
    assert page.one("h1").text.startswith("examples-duplicated")
    assert page.one("div", kind="pictures").find("section")[0].attributes["id"] == "examples"
    assert page.one("table", kind="examples").rows()[1][:3] == ["step 1", "1-6", "\N{CLOCKWISE OPEN CIRCLE ARROW} 1-6"]


def test_a_collective_of_one_rank_is_marked_with_its_line(pages: dict[str, Element]) -> None:
    page = pages["test_workers[multi_worker_mirrored-conditional]"]
    assert page.one("h1").text.startswith("rank-conditional-collective")
    timeline = page.one("div", kind="timeline")
    assert len(timeline.find("text", kind="marked")) == 2
    lines = PROGRAMS.lstrip().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "the chief's line" in text)
    said = timeline.one("desc").text
    assert "rank 0 issues all_reduce SUM of 2 float32 'stack:0' at" in said
    assert f"test_bugs.py:{line}" in said
