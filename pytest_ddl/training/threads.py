"""Wait for threads of the program that train, and raise what ended one of them or what a future holds unread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import thread as pools
from contextlib import contextmanager
from functools import wraps
from typing import Any

_GRACE = 5.0
"""Maximum seconds to wait for the end of a daemon thread or of a task of a pool after an exception.

The program may have caught it."""


class Threads:
    """Threads other than the one that calls the training function, in which the program trains."""

    def __init__(self) -> None:
        self._caller = threading.current_thread()
        self._training: Counter[threading.Thread] = Counter()
        """Thread -> number of calls that train in it now."""
        self._raised: set[threading.Thread] = set()
        """Threads in which a call that trains has raised an exception."""
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._on_the_way: dict[threading.Thread, BaseException] = {}
        """Thread -> the exception of a call that trains. If no code catches it in a pool, a future will hold it."""
        self._unread: dict[Future[Any], BaseException] = {}
        """Future of a pool -> the exception of a call that trains, which nobody has asked it for."""

    @contextmanager
    def training(self) -> Iterator[None]:
        """Mark a call that trains in this thread."""
        thread = threading.current_thread()
        self._count(thread, 1)
        try:
            yield
        except BaseException as error:
            self._raised.add(thread)
            self._on_the_way[thread] = error
            raise
        finally:
            self._count(thread, -1)

    def _count(self, thread: threading.Thread, number: int) -> None:
        with self._changed:
            self._training[thread] += number
            self._changed.notify_all()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """At the end, wait for the threads that train, as Python does at the end of a script.

        :raises BaseException: what no code of the program caught in one of them. Python only prints it, so that a
            training that broke off would look like one that ended.
        """
        hook = threading.excepthook

        def keep(raised: Any) -> None:
            if raised.thread in self._training and self._error is None:
                self._error = raised.exc_value
            hook(raised)

        threading.excepthook = keep
        try:
            with self._futures():
                yield
                self._wait()
        except Exception:
            if self._error is None:
                raise
        finally:
            threading.excepthook = hook
        error = next(iter(self._unread.values()), None) if self._error is None else self._error
        if error is not None:
            raise error

    @contextmanager
    def _futures(self) -> Iterator[None]:
        """Keep the exceptions of calls that train until the program asks the futures that hold them.

        A pool prints nothing of an exception whose future the program drops.
        """
        own = {name: getattr(Future, name) for name in ("set_exception", "set_result", "result", "exception")}

        def arrived(future: Future[Any], error: BaseException | None) -> None:
            with self._changed:
                if self._on_the_way.pop(threading.current_thread(), None) is not None and error is not None:
                    self._unread[future] = error
                self._changed.notify_all()

        def read(ask: Callable[..., Any]) -> Any:
            @wraps(ask)
            def ask_and_forget(future: Future[Any], timeout: float | None = None) -> Any:
                try:
                    return ask(future, timeout)
                finally:
                    if future.done():
                        self._unread.pop(future, None)

            return ask_and_forget

        def holding(future: Future[Any], error: BaseException | None) -> None:
            arrived(future, error)
            own["set_exception"](future, error)

        def ending(future: Future[Any], value: Any) -> None:
            arrived(future, None)
            own["set_result"](future, value)

        asking = {name: read(own[name]) for name in ("result", "exception")}
        for name, changed in {"set_exception": holding, "set_result": ending, **asking}.items():
            setattr(Future, name, changed)
        try:
            yield
        finally:
            for name, original in own.items():
                setattr(Future, name, original)

    def _wait(self) -> None:
        while others := [thread for thread in list(self._training) if self._trains(thread)]:
            if _may_never_end(others[0]):
                with self._changed:
                    self._changed.wait_for(lambda: not self._trains(others[0]))
            else:
                others[0].join()
        for thread in self._raised:
            if thread.daemon and thread is not self._caller:
                thread.join(_GRACE)
        with self._changed:
            self._changed.wait_for(lambda: not self._on_the_way.keys() & {*pools._threads_queues}, _GRACE)

    def _trains(self, thread: threading.Thread) -> bool:
        """Return whether a thread may still train. One that may never end is only waited for while it does."""
        if thread is self._caller or not thread.is_alive():
            return False
        return not _may_never_end(thread) or self._training[thread] > 0


def _may_never_end(thread: threading.Thread) -> bool:
    """Return whether a thread may wait for further work: a daemon, or one of a ``ThreadPoolExecutor``.

    The latter is known by ``_threads_queues`` (Python 3.2 to 3.14).
    """
    return thread.daemon or thread in pools._threads_queues
