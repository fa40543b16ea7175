"""Run jobs in copies of this process, so that none changes it."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

Job = tuple[Any, Callable[[], Any]]
"""A key, and what a copy of this process runs. Its result is pickled."""


def results(jobs: Iterable[Job], processes: int, seconds: int) -> Iterator[tuple[Any, Any]]:
    """Yield the key and the result of each job when it ends.

    The result is ``None`` if a copy dies, or needs more CPU seconds than allowed, or ten times as long.
    """
    waiting = iter(jobs)
    running: dict[int, tuple[Any, Path, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while True:
            while len(running) < processes and (job := next(waiting, None)) is not None:
                number += 1
                file = Path(folder, str(number))
                running[_start(job[1], file, seconds)] = (job[0], file, time.monotonic() + 10 * seconds)
            if not running:
                return
            time.sleep(0.02)
            for pid, (key, file, deadline) in [*running.items()]:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del running[pid]
                    yield key, pickle.loads(file.read_bytes()) if file.is_file() else None
                elif time.monotonic() > deadline:
                    os.killpg(pid, signal.SIGKILL)


def _start(work: Callable[[], Any], file: Path, seconds: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status, shown = 1, 2
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        shown = os.dup(2)
        sink = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):
            os.dup2(sink, stream)
        found = work()
        draft = file.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(found))
        draft.rename(file)
        status = 0
    except Exception:
        os.write(shown, traceback.format_exc().encode())
    finally:
        os._exit(status)
