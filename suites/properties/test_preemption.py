"""Interrupt training by a notice or by the loss of a worker, and resume it: it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_ddl import RankError, current_strategy
from suites import subject
from suites.properties.test_values import distributed, everyone
from suites.properties.variables import local_replicas

LOCAL = ["one_device", "mirrored[replicas=3]"]
WORKERS = "multi_worker_mirrored"
RATE, MOMENTUM, STEPS = 0.125, 0.5, 9


class ExitError(Exception):
    """Error that the exit function raises instead of ending the process."""


class Training:
    """Training by SGD with momentum, whose gradient depends on the weights, the step and the replica."""

    def __init__(self, strategy: Any) -> None:
        import tensorflow as tf

        from suites.subject import keras

        self.strategy = strategy
        with strategy.scope():
            self.weights = subject.variable([1.0, -2.0], "float64")
            self.optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
            self.optimizer.build([self.weights])
        self.checkpoint = tf.train.Checkpoint(weights=subject.value_of(self.weights), optimizer=self.optimizer)
        self._step = tf.function(self._on_all, autograph=False)

    def _on_all(self, parts: Any) -> None:
        import tensorflow as tf

        def replica_function(part: Any) -> None:
            gradient = tf.identity(part) + 0.25 * subject.value_of(self.weights) / self.strategy.num_replicas_in_sync
            self.optimizer.apply_gradients([(gradient, self.weights)])

        self.strategy.run(replica_function, args=(parts,))

    def step(self, number: int) -> None:
        self._step(distributed(self.strategy, lambda replica: contribution(number, replica)))

    def steps(self) -> int:
        """Return the optimizer's count of steps."""
        iterations = subject.value_of(self.optimizer.iterations)
        return int(self.strategy.experimental_local_results(iterations)[0].read_value())

    def check(self, steps: int) -> None:
        """Compare with the formula in NumPy."""
        weights, velocity = np.array([1.0, -2.0]), np.zeros(2)
        for number in range(steps):
            gradient = sum(everyone(self.strategy, lambda replica, number=number: contribution(number, replica)))
            velocity = MOMENTUM * velocity - RATE * (gradient + 0.25 * weights)
            weights = weights + velocity
        assert self.steps() == steps
        # About 10 operations in a step, whose errors the next steps make at most twice as large.
        bound = 10 * 2**steps * np.finfo("float64").eps
        for part in self.strategy.experimental_local_results(subject.value_of(self.weights)):
            np.testing.assert_allclose(part.read_value(), weights, rtol=bound)


def contribution(step: int, replica: int) -> np.ndarray[Any, Any]:
    return np.array([0.5 + step - replica, 2.0 * replica - step]) / 4


def handler_of(training: Training, folder: str, **options: Any) -> Any:
    """Return a handler that treats SIGTERM as the notice, unless the options have a function that watches."""
    import tensorflow as tf

    def leave() -> None:
        raise ExitError

    config = tf.distribute.experimental.TerminationConfig(**{"exit_fn": leave, "grace_period": 0, **options})
    resolver = training.strategy.cluster_resolver
    return tf.distribute.experimental.PreemptionCheckpointHandler(resolver, training.checkpoint, folder, config)


@pytest.fixture
def handled():
    """Put the handler of SIGTERM back after the test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def interrupted(training: Training, handler: Any, notice: int, most: int = STEPS) -> int:
    """Train until the exit, with a notice before this step, and return the number of steps that were made."""
    for number in range(handler.total_run_calls, most):
        if number == notice:
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            handler.run(training.step, number)
        except ExitError:
            return number
    return most


@pytest.mark.ddl(strategies=LOCAL)
@pytest.mark.ddl_item("failure.handler.run", "failure.numerics")
def test_training_that_gets_a_notice_goes_on_where_it_stopped(ddl_strategy, handled, tmp_path):
    """The handler makes one more step after a notice, saves, and exits. A new program continues with the next step."""
    done = 0
    for notice in (2, 6, None):
        training = Training(ddl_strategy)
        handler = handler_of(training, str(tmp_path))
        assert handler.total_run_calls == done
        training.check(done)
        done = interrupted(training, handler, -1 if notice is None else notice)
        assert done == (STEPS if notice is None else notice + 1)
        training.check(done)
        assert len(list(tmp_path.glob("*.index"))) == 1
    assert done == STEPS


@pytest.mark.ddl(strategies=LOCAL)
@pytest.mark.ddl_item("failure.handler.if_preempted")
def test_a_loop_that_asks_for_the_notice_itself(ddl_strategy, handled, tmp_path):
    """One checkpoint is saved, of the step at which the function exits, and nothing without a notice."""
    training = Training(ddl_strategy)
    handler = handler_of(training, str(tmp_path))
    done = 0

    def loop() -> None:
        nonlocal done
        for number in range(STEPS):
            training.step(number)
            done = number + 1
            if number == 3:
                assert not list(tmp_path.glob("*.index"))
                os.kill(os.getpid(), signal.SIGTERM)
            handler.save_checkpoint_if_preempted()

    with pytest.raises(ExitError):
        loop()
    assert done == 5
    again = Training(ddl_strategy)
    handler_of(again, str(tmp_path))
    again.check(done)


@pytest.mark.ddl(strategies=LOCAL)
@pytest.mark.ddl_item("failure.handler.grace", shows="values")
@pytest.mark.parametrize("grace", [3600.0, 1e-9])
def test_training_goes_on_in_the_grace_period(grace, ddl_strategy, handled, tmp_path):
    """A checkpoint is saved at the notice, and a second one at the end of the period, before the exit."""
    training = Training(ddl_strategy)
    saved: list[int] = []
    handler = handler_of(training, str(tmp_path), grace_period=grace, save_fn=lambda: saved.append(training.steps()))
    done = interrupted(training, handler, 2)
    if grace > 1:
        assert (saved, done) == ([3], STEPS)
    else:
        assert saved[0] == 3
        assert len(saved) == 2
        assert saved[1] == done < STEPS
    training.check(done)


@pytest.mark.ddl(strategies=LOCAL)
@pytest.mark.ddl_item("failure.handler.save_fn")
def test_functions_of_the_user_watch_save_and_exit(ddl_strategy, tmp_path):
    """The watching function is called until it says yes; then the saving function once, and the exit once."""
    import threading

    training, notice, calls = Training(ddl_strategy), threading.Event(), []

    def watch() -> bool:
        # A wait in place of the polling of real programs: the test needs no time.
        return notice.wait(60)

    def save(*given: Any, **options: Any) -> None:
        calls.append(("save", given, options, training.steps()))

    def leave() -> None:
        calls.append(("exit", (), {}, training.steps()))
        raise ExitError

    handler = handler_of(training, str(tmp_path), termination_watcher_fn=watch, save_fn=save, exit_fn=leave)
    number = 0

    def loop() -> None:
        nonlocal number
        for number in range(100_000):
            if number == 2:
                notice.set()
            training.step(number)
            handler.save_checkpoint_if_preempted("given", options=None)

    with pytest.raises(ExitError):
        loop()
    assert calls == [("save", ("given",), {"options": None}, number + 1), ("exit", (), {}, number + 1)]
    assert not list(tmp_path.glob("*.index"))


@pytest.mark.ddl(strategies=LOCAL)
@pytest.mark.ddl_item("failure.handler.run", shows="behavior")
def test_a_checkpoint_without_a_folder_is_refused(ddl_strategy):
    import tensorflow as tf

    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="checkpoint_dir"):
        tf.distribute.experimental.PreemptionCheckpointHandler(None, tf.train.Checkpoint(v=tf.Variable(1.0)))


@pytest.mark.ddl(strategies=["one_device", "mirrored", WORKERS])
@pytest.mark.ddl_item("failure.watcher", shows="behavior")
def test_a_watcher_out_of_its_platform(ddl_strategy):
    """The watcher has no message, and does not wait for a worker."""
    import tensorflow as tf

    watcher = tf.distribute.experimental.PreemptionWatcher()
    assert watcher.preemption_message is None
    assert watcher.block_until_worker_exit() is None


def train_with_workers(folder: str, notice: int, who: int) -> tuple[int, int]:
    """Train on all workers; one gets a notice. All of them save the same step, and exit.

    :return: the steps before this training, and those after it.
    """
    strategy = current_strategy()
    before = signal.getsignal(signal.SIGTERM)
    try:
        training = Training(strategy)
        handler = handler_of(training, folder)
        begun = handler.total_run_calls
        training.check(begun)
        rank = local_replicas(strategy)[0]
        done = interrupted(training, handler, notice if rank == who else -1, most=40)
        training.check(done)
        return begun, done
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.ddl(strategies=WORKERS, timeout=100)
@pytest.mark.ddl_item("failure.handler.run", "failure.numerics")
def test_workers_save_the_same_step_and_resume_it(ddl_cluster, tmp_path):
    """A notice of the second worker reaches the first one. After the restart, both have the weights of that step."""
    first = ddl_cluster.run(train_with_workers, str(tmp_path), 3, 1)
    assert len(set(first)) == 1
    begun, saved = first[0]
    assert begun == 0
    assert 4 <= saved < 40
    assert [path.name for path in Path(tmp_path).iterdir() if path.is_dir()] == []
    ddl_cluster.restart("worker:1")
    assert ddl_cluster.run(train_with_workers, str(tmp_path), -1, 1) == [(saved, 40)] * 2


def fail_on_one_worker(folder: str) -> None:
    """Raise on the second worker in its third step, while the first one waits for it in a reduction."""
    import tensorflow as tf

    strategy = current_strategy()
    before = signal.getsignal(signal.SIGTERM)
    try:
        training = Training(strategy)
        handler = handler_of(training, folder)

        def step(number: int) -> None:
            if number == 2 and local_replicas(strategy)[0] == 1:
                raise tf.errors.ResourceExhaustedError(None, None, "only on the second")
            training.step(number)

        for number in range(STEPS):
            handler.run(step, number)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.ddl(strategies=WORKERS, timeout=60)
@pytest.mark.ddl_item("failure.handler.errors", shows="behavior")
def test_an_error_of_one_worker_ends_the_others(ddl_cluster, tmp_path):
    with pytest.raises(RankError, match="only on the second"):
        ddl_cluster.run(fail_on_one_worker, str(tmp_path))


def add_up(size: int) -> list[list[float]]:
    """Return the sum of vectors of the replicas, by a tf.function and eagerly."""
    import tensorflow as tf

    strategy = current_strategy()
    own = distributed(strategy, lambda replica: (replica + 1.0) * np.arange(1.0, size + 1))

    def reduce(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(value))

    calls: list[Callable[..., Any]] = [lambda: strategy.run(reduce, args=(own,))]
    calls.append(tf.function(calls[0], autograph=False))
    return [strategy.experimental_local_results(call())[0].numpy().tolist() for call in calls]


def wanted(size: int, replicas: int) -> list[list[float]]:
    return [[sum(range(1, replicas + 1)) * float(position) for position in range(1, size + 1)]] * 2


@pytest.mark.ddl(strategies=["multi_worker_mirrored[workers=3]"], timeout=100)
@pytest.mark.ddl_item("strategy.mwms.peer_failure", "strategy.mwms.restart", "strategy.mwms.replica_order")
def test_a_worker_that_is_lost(ddl_cluster):
    """The others raise instead of waiting. After the restart, they reduce values of this and of other shapes."""
    for size in (1, 5, 2):
        assert ddl_cluster.run(add_up, size) == [wanted(size, 3)] * 3
    ddl_cluster.kill("worker:1")
    # The message begins with the exception. What follows quotes the source, which may name other ones.
    with pytest.raises(RankError, match=r"^\S*(Unavailable|Aborted|Cancelled|Internal|DeadlineExceeded)Error on"):
        ddl_cluster.run(add_up, 5)
    ddl_cluster.restart("worker:1")
    for size in (5, 3):
        assert ddl_cluster.run(add_up, size) == [wanted(size, 3)] * 3


def order() -> list[int]:
    strategy = current_strategy()
    ids = strategy.gather(distributed(strategy, lambda replica: [replica * 10]), axis=0)
    assert strategy.cluster_resolver.task_id == local_replicas(strategy)[0]
    return [int(one) for one in ids.numpy()]


@pytest.mark.ddl(strategies=["multi_worker_mirrored", "multi_worker_mirrored[workers=3]"])
@pytest.mark.ddl_item("strategy.mwms.replica_order")
def test_replicas_are_in_the_order_of_the_workers(ddl_cluster):
    number = ddl_cluster.num_replicas
    assert ddl_cluster.run(order) == [[10 * replica for replica in range(number)]] * number
