"""Training in threads of the program is part of its run: their ends are waited for, and their exceptions are raised."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from pytest_ddl.training.threads import Threads


class Training:
    """A training that waits for a signal to continue, and perhaps fails then."""

    def __init__(self, threads: Threads, error: BaseException | None = None) -> None:
        self.threads = threads
        self.error = error
        self.began, self.go_on = threading.Event(), threading.Event()
        self.ended = False

    def __call__(self) -> None:
        with self.threads.training():
            self.began.set()
            assert self.go_on.wait(60)
            self.ended = True
            if self.error is not None:
                raise self.error


def start(work: Callable[[], object], daemon: bool = False) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=daemon)
    thread.start()
    return thread


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Keep exceptions of threads from pytest, which warns of them."""
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    return shown


def test_a_thread_that_trains_is_waited_for():
    threads = Threads()
    training = Training(threads)
    with threads.followed():
        start(training)
        assert training.began.wait(60)
        training.go_on.set()
    assert training.ended


def test_a_pool_is_waited_for_until_its_training_ends():
    threads, pool = Threads(), ThreadPoolExecutor(1)
    training = Training(threads)
    with threads.followed():
        pool.submit(training)
        assert training.began.wait(60)
        training.go_on.set()
    assert training.ended
    pool.shutdown()


def test_a_daemon_is_waited_for_only_while_it_trains():
    threads, stop = Threads(), threading.Event()
    training = Training(threads)

    def serve() -> None:
        training()
        stop.wait()

    with threads.followed():
        server = start(serve, daemon=True)
        assert training.began.wait(60)
        training.go_on.set()
    assert training.ended
    assert server.is_alive()
    stop.set()
    server.join()


@pytest.mark.parametrize("daemon", [False, True])
def test_what_ends_a_training_in_a_thread_is_raised_and_shown(quiet: list[object], daemon: bool):
    threads = Threads()
    training = Training(threads, ValueError("in the thread"))

    def train() -> None:
        start(training, daemon)
        assert training.began.wait(60)
        training.go_on.set()

    with pytest.raises(ValueError, match="in the thread"), threads.followed():
        train()
    assert len(quiet) == 1
    assert threading.excepthook == quiet.append


def test_an_exception_of_a_thread_comes_before_what_follows_from_it(quiet: list[object]):
    threads = Threads()
    training = Training(threads, ValueError("first"))
    training.go_on.set()

    def train() -> None:
        start(training).join()
        raise KeyError("the history that the thread did not leave")

    with pytest.raises(ValueError, match="first"), threads.followed():
        train()


def test_threads_that_do_not_train_are_left_alone(quiet: list[object]):
    threads, stop = Threads(), threading.Event()

    def fails() -> None:
        raise ValueError("reads no more data")

    with threads.followed():
        reader = start(stop.wait)
        start(fails).join()
    assert reader.is_alive()
    stop.set()
    reader.join()
    assert len(quiet) == 1


def test_an_exception_that_the_program_catches_is_its_own():
    threads = Threads()
    training = Training(threads, ValueError("caught"))
    training.go_on.set()

    def caught() -> None:
        with pytest.raises(ValueError, match="caught"):
            training()

    with threads.followed():
        start(caught).join()


def test_an_exception_of_the_caller_stays():
    threads = Threads()
    with pytest.raises(KeyError), threads.followed():
        raise KeyError


@pytest.mark.parametrize("shut_down", [True, False])
def test_an_exception_in_a_future_that_is_dropped_is_raised(shut_down: bool):
    threads, pool = Threads(), ThreadPoolExecutor(1)
    training = Training(threads, ValueError("in the pool"))
    training.go_on.set()

    def train() -> None:
        pool.submit(training)
        assert training.began.wait(60)
        if shut_down:
            pool.shutdown()

    own = Future.set_exception
    with pytest.raises(ValueError, match="in the pool"), threads.followed():
        train()
    assert Future.set_exception is own
    pool.shutdown()


@pytest.mark.parametrize("ask", [lambda future: future.exception(), lambda future: future.result()])
def test_an_exception_that_the_program_asks_a_future_for_is_its_own(ask: Callable[[Future[None]], object]):
    threads = Threads()
    training = Training(threads, ValueError("expected"))
    training.go_on.set()
    with ThreadPoolExecutor(1) as pool, threads.followed(), suppress(ValueError):
        ask(pool.submit(training))


def test_an_exception_that_a_task_of_a_pool_catches_is_its_own():
    threads = Threads()
    training = Training(threads, ValueError("caught"))
    training.go_on.set()

    def caught() -> None:
        with suppress(ValueError):
            training()

    with ThreadPoolExecutor(1) as pool, threads.followed():
        pool.submit(caught)


def test_an_exception_of_a_task_that_does_not_train_is_left_in_its_future():
    threads = Threads()
    with ThreadPoolExecutor(1) as pool, threads.followed():
        pool.submit(lambda: {}["no such key"])
