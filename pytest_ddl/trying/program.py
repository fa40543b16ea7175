"""Training function that runs an unmodified script in a rank."""

from __future__ import annotations

import argparse
import multiprocessing.util
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pytest_ddl.run_facts import FailedCell
from pytest_ddl.training import environment
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying import downloads, drawing, execution, shell, strategies, synthetic
from pytest_ddl.trying.calls import Calls
from pytest_ddl.trying.found import EnoughSteps, Found, NotSeenError, told_at_exit
from pytest_ddl.trying.legacy import refusal
from pytest_ddl.trying.objects import Objects
from pytest_ddl.trying.remainder import active_lines
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.steps import Steps, is_end_of_data, no_strategy_advice
from pytest_ddl.trying.strategies import Meaning


@dataclass(frozen=True)
class TriedScript:
    """Training function ``train(run)`` that runs a script."""

    source: Script
    arguments: tuple[str, ...] = ()
    """Command line arguments of the script."""
    replicas: int = 1
    """Number of replicas of the compared strategy, which the script reads in the reference run."""
    steps: int = 4
    """Maximum number of batches of each loop and epoch."""
    epochs: int = 1
    examples: int | None = None
    """Number of training examples of synthetic datasets; ``None`` for the default."""
    data: tuple[str, ...] = ()
    """Absolute paths that appear in the working directory of the script."""
    meaning: Meaning = Meaning.BATCHES
    """Meaning of the number of replicas in the script."""
    keras: str = ""
    """Flavor of Keras, and why it was chosen; empty for the one of the options."""
    whole: bool = False
    """True to leave the datasets of its own loops as long as they are, because a step reads a whole epoch."""
    failing: tuple[FailedCell, ...] | None = None
    """Cells of a notebook that may fail; ``None`` for all."""
    renews_deadline: bool = False
    """True if each run of a comparison has the whole time. A comparison reads it."""

    def __call__(self, run: Any) -> None:
        """Run the script. What was found in it becomes a fact of the record, also if it raises."""
        refused = refusal(self.source.code)
        if refused is not None:
            raise NotSeenError(f"{Path(self.source.file).name}:{refused[0]}: {refused[1]}")
        found = Found()
        told = self.replicas if run.is_reference else 1
        objects = Objects(run, found)
        limit = self.steps * self.epochs
        steps = Steps(run, objects, found, limit, "" if self.source.mentions_strategy else self.source.code)
        joined = told if self.meaning is Meaning.NOTHING else 1
        calls = Calls(run, objects, steps, found, self.steps, self.epochs, told, joined, whole=self.whole)
        if self.keras:
            found.add("keras", self.keras)
        for line in self.source.left_out:
            found.add("left out", line)
        try:
            with ExitStack() as stack:
                put = stack.enter_context(Replacements())
                self._replace(put, stack, run, found, objects, calls, told)
                if not self.source.mentions_strategy:
                    found.add("strategies", "none in the script: it runs in strategy.scope()")
                    stack.enter_context(run.strategy.scope())
                stack.enter_context(execution.in_place(run, self.source, self.arguments, self.data))
                try:
                    execution.execute(self.source, run.tmp_path, found, self.failing, run._settings.precision)
                except EnoughSteps:
                    pass
                except Exception as error:
                    # The script has the steps that it was given batches for, and asks for one more.
                    if not (found.cut and steps.has_steps and is_end_of_data(error)):
                        raise
                    steps.tell_end(active_lines(error.__traceback__))
                except SystemExit as ended:
                    trained = steps.has_steps or run.completed_steps
                    if ended.code not in (None, 0) and run.is_reference and not trained:
                        raise NotSeenError(told_at_exit(ended)) from None
                    if ended.code not in (None, 0):
                        raise
                steps.flush()
        finally:
            run._listener.add_facts({"script": found.record()})

    def _replace(
        self, put: Replacements, stack: ExitStack, run: Any, found: Found, objects: Objects, calls: Calls, told: int
    ) -> None:
        import tensorflow as tf

        def replaced(text: str) -> None:
            found.add("data", text)

        def keras_loaded(keras: Any) -> None:
            objects.install(put, keras)
            strategies.keep_scope(put, keras, found)
            calls.install_keras(put, keras)
            synthetic.install(put, keras, self.examples, self.source.code, replaced)
            downloads.install_cache(put, keras, run.rank_path, replaced)
            if not self.source.mentions_strategy:
                _refuse_own_updates(put, keras, self.source.code)

        strategies.install(put, run.strategy, found)
        objects.variables.install(put, stack)
        if told > 1:
            strategies.tell_replicas(put, run.strategy, told, self.meaning, found)
            _count_whole_batches(put, told)
        downloads.install(put, run.rank_path, replaced)
        put.put(argparse.ArgumentParser, "exit", exit_with_its_reason)
        # Its folder belongs to the process, which runs the script several times.
        put.put(multiprocessing.util, "get_temp_dir", lambda: str(run.rank_path))
        stack.enter_context(synthetic.tensorflow_datasets(self.examples, replaced))
        stack.enter_context(synthetic.port_picker())
        if self.source.is_notebook:
            stack.enter_context(shell.ipython())
        tf.keras.__name__  # noqa: B018 - the first use imports the module, which is then in the list below
        for keras in environment.keras_modules():
            keras_loaded(keras)
        drawing.install(put, environment.keras_modules()[0], run.seed)
        stack.enter_context(environment.on_import("tf_keras", keras_loaded))
        calls.steps.install(put)
        calls.install_datasets(put)
        stack.enter_context(strategies.cluster_of_one_worker(self.source.code))


def exit_with_its_reason(self: argparse.ArgumentParser, status: int = 0, message: str | None = None) -> NoReturn:
    """End as ``exit`` of argparse does, whose message goes to an output that nobody reads."""
    raise SystemExit(status) from (ValueError(message.strip()) if message else None)


def _count_whole_batches(put: Replacements, told: int) -> None:
    """Let the reference divide by its whole batch if the script divides by another number of whole batches.

    One device consumes the batches of all replicas. If a script divides by the batch of one replica, or consumes such a
    batch and divides by the global batch, one device would divide wrongly too. Then both runs would agree.
    """
    import tensorflow as tf

    original = tf.nn.compute_average_loss
    largest = [0]

    def largest_so_far(rows: Any) -> Any:
        largest[0] = max(largest[0], int(rows))  # the last batch of an epoch may be smaller
        return np.int32(largest[0])

    def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
        if type(global_batch_size) is int:
            rows = tf.shape(per_example_loss)[0]
            whole = global_batch_size * told
            batch = tf.numpy_function(largest_so_far, [rows], tf.int32)
            batch.set_shape([])
            given = tf.where(tf.equal(rows, whole), whole, global_batch_size)
            global_batch_size = tf.where(tf.equal(batch * told, global_batch_size), batch, given)
        return original(per_example_loss, sample_weight, global_batch_size)

    put.put(tf.nn, "compute_average_loss", tf.autograph.experimental.do_not_convert(compute_average_loss))


def _refuse_own_updates(put: Replacements, keras: Any, code: str) -> None:
    """Refuse updates outside ``fit`` in a script without a strategy, before they fail without an explanation."""
    import tensorflow as tf

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def update(self: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
                raise NotSeenError(no_strategy_advice(code))
            return original(self, *args, **kwargs)

        return update

    for name in ("apply_gradients", "apply"):  # tf_keras has only the first
        original = getattr(keras.optimizers.Optimizer, name, None)
        if original is not None:
            put.put(keras.optimizers.Optimizer, name, refusing(original))
