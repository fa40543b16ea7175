"""Training function that runs an unmodified script in a rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_ddl.training import environment
from pytest_ddl.training.replacing import Replacements
from pytest_ddl.trying import strategies, synthetic
from pytest_ddl.trying.calls import Calls
from pytest_ddl.trying.found import FACT, EnoughSteps, Found
from pytest_ddl.trying.objects import Objects
from pytest_ddl.trying.source import Source
from pytest_ddl.trying.steps import Steps, no_strategy_advice
from pytest_ddl.trying.strategies import Meaning


@dataclass(frozen=True)
class TriedScript:
    """Training function ``train(run)`` that runs a script."""

    source: Source
    arguments: tuple[str, ...] = ()
    """Command line arguments of the script."""
    replicas: int = 1
    """Number of replicas of the compared strategy, which the reference tells the script."""
    steps: int = 4
    """Maximum number of batches of each loop and epoch."""
    epochs: int = 1
    examples: int | None = None
    """Number of training examples of synthetic datasets; ``None`` for the default."""
    data: tuple[str, ...] = ()
    """Absolute paths that appear in the working directory of the script."""
    meaning: Meaning = Meaning.BATCHES
    """What the number of replicas means in the script."""

    def __call__(self, run: Any) -> None:
        """Run the script. What was found in it becomes a fact of the record, also if it raises."""
        found = Found()
        told = self.replicas if run.is_reference else 1
        objects = Objects(run, found)
        limit = self.steps * self.epochs
        steps = Steps(run, objects, found, limit, not self.source.mentions_strategy)
        joined = told if self.meaning is Meaning.NOTHING else 1
        calls = Calls(run, objects, steps, found, self.steps, self.epochs, told, joined)
        for line in self.source.left_out:
            found.add("left out", line)
        try:
            with ExitStack() as stack:
                put = stack.enter_context(Replacements())
                self._replace(put, stack, run, found, objects, calls, told)
                if not self.source.mentions_strategy:
                    found.add("strategies", "none in the script: it runs in strategy.scope()")
                    stack.enter_context(run.strategy.scope())
                stack.enter_context(_place(run, self.source, self.arguments, self.data))
                try:
                    _execute(self.source, run.tmp_path)
                except EnoughSteps:
                    pass
                except SystemExit as ended:
                    if ended.code not in (None, 0):
                        raise
                steps.flush()
        finally:
            run._listener.fact(FACT, found.as_fact())

    def _replace(
        self, put: Replacements, stack: ExitStack, run: Any, found: Found, objects: Objects, calls: Calls, told: int
    ) -> None:
        def replaced(text: str) -> None:
            found.add("data", text)

        def keras_loaded(keras: Any) -> None:
            objects.install(put, keras)
            calls.install_keras(put, keras)
            synthetic.install(put, keras, self.examples, replaced)

        strategies.install(put, run.strategy, found)
        if told > 1:
            strategies.tell_replicas(put, run.strategy, told, self.meaning, found)
            _count_whole_batches(put, told)
        synthetic.install_network(put)
        stack.enter_context(synthetic.tensorflow_datasets(self.examples, replaced))
        for keras in environment.keras_modules():
            keras_loaded(keras)
        stack.enter_context(environment.on_import("tf_keras", keras_loaded))
        if not self.source.mentions_strategy:
            _refuse_own_updates(put)
        calls.steps.install(put)
        calls.install_datasets(put)
        stack.enter_context(strategies.cluster_of_one_worker(self.source.code))


def _count_whole_batches(put: Replacements, told: int) -> None:
    """Let the reference divide by its whole batch if the script divides by the batch of one replica.

    One device consumes the batches of all replicas. A script that divides by the batch of a replica would divide it
    wrongly too, and both runs would agree.
    """
    import tensorflow as tf

    original = tf.nn.compute_average_loss

    def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
        if type(global_batch_size) is int:
            rows = tf.shape(per_example_loss)[0]
            whole = global_batch_size * told
            global_batch_size = tf.where(tf.equal(rows, whole), whole, global_batch_size)
        return original(per_example_loss, sample_weight, global_batch_size)

    put.put(tf.nn, "compute_average_loss", tf.autograph.experimental.do_not_convert(compute_average_loss))


def _refuse_own_updates(put: Replacements) -> None:
    """Refuse updates outside ``fit`` in a script without a strategy, before they fail without an explanation."""
    import keras
    import tensorflow as tf

    from pytest_ddl.trying.found import NotSeenError

    original = keras.optimizers.Optimizer.apply_gradients

    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.distribute.has_strategy() and tf.distribute.in_cross_replica_context():
            raise NotSeenError(no_strategy_advice())
        return original(self, *args, **kwargs)

    put.put(keras.optimizers.Optimizer, "apply_gradients", apply_gradients)


@contextmanager
def _place(run: Any, source: Source, arguments: tuple[str, ...], data: tuple[str, ...]) -> Iterator[None]:
    """Set working directory, ``sys.path``, ``sys.argv`` and ``__main__`` for a script, and restore them afterwards."""
    folder, argv, path, main = Path.cwd(), sys.argv, list(sys.path), sys.modules.get("__main__")
    for item in data:
        target = run.tmp_path / Path(item).name
        if not target.is_symlink():
            with suppress(FileExistsError):  # another rank made it
                target.symlink_to(item)
    os.chdir(run.tmp_path)
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "Agg"
    sys.argv = [source.file, *arguments]
    sys.path[:0] = [str(Path(source.file).parent), str(run.tmp_path)]  # a notebook may write modules
    try:
        with _flags_kept():
            yield
    finally:
        os.chdir(folder)
        sys.argv, sys.path[:] = argv, path
        if main is not None:
            sys.modules["__main__"] = main
        if backend is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def _flags_kept() -> Iterator[None]:
    """Remove the flags that a script defines with absl, because it defines them again in the next run."""
    flags = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    before = set(flags) if flags is not None else set()
    try:
        yield
    finally:
        for name in set(flags or ()) - before:
            delattr(flags, name)


def _execute(source: Source, folder: Path) -> None:
    """Run the code as ``__main__``. The code of a notebook gets a file, because AutoGraph reads the lines again."""
    file = source.file
    if not file.endswith(".py"):
        written = folder / f"{Path(file).stem}_notebook.py"
        written.write_text(source.code, encoding="utf-8")
        file = str(written)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=file, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    exec(compile(source.code, file, "exec", dont_inherit=True), module.__dict__)
