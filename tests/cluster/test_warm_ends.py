"""Check when warm servers end, and that they leave no file behind, however they end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from pytest_ddl.cluster.file_lock import locked
from pytest_ddl.cluster.warm import servers as warm
from pytest_ddl.cluster.warm.fitting import key_of
from tests.polling import runs, wait_until

pytestmark = pytest.mark.slow


def test_a_suspended_process_that_holds_the_lock_does_not_stop_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warm.stop() == 0
    monkeypatch.setattr(warm, "_LOCK_TIMEOUT", 0.1)
    with locked(home / "lock", 10) as free:
        assert free
        with pytest.raises(warm.WarmError, match=r"another process keeps .*/lock; `fuser` shows which"):
            warm.stop()
        # The end of a run goes on without a server for the next one.
        warm.leave("key", os.environ)
    assert warm.stop() == 0


def test_server_ends_when_idle(home: Path, light: Path) -> None:
    key = key_of(os.environ)
    warm.start(key, os.environ, idle_minutes=0.05)
    pid = warm.wait_until_ready(key).pid
    wait_until(lambda: not runs(pid), "the server does not end")
    assert [path.name for path in home.iterdir()] == ["lock"]


def test_server_that_is_told_to_end_leaves_nothing(home: Path, light: Path) -> None:
    warm.start(key_of(os.environ), os.environ)
    pid = warm.wait_until_ready(key_of(os.environ)).pid
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not runs(pid), "the server does not end")
    assert [path.name for path in home.iterdir()] == ["lock"]


def test_server_that_is_told_to_end_while_it_imports_leaves_nothing(home: Path, light: Path, tmp_path: Path) -> None:
    began = tmp_path / "began"
    code = f"import os, threading\nopen({str(began)!r}, 'w').write(str(os.getpid()))\nthreading.Event().wait()"
    (light / "tensorflow.py").write_text(code)
    warm.start(key_of(os.environ), os.environ)
    wait_until(lambda: began.exists() and began.read_text() != "", "the import does not begin")
    pid = int(began.read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not runs(pid), "the server does not end")
    assert [path.name for path in home.iterdir()] == ["lock"]


def test_files_of_a_killed_server_are_removed_by_the_next(home: Path, light: Path) -> None:
    killed = key_of({**os.environ, "OMP_NUM_THREADS": "3"})
    warm.start(killed, os.environ)
    os.kill(warm.wait_until_ready(killed).pid, signal.SIGKILL)
    wait_until(lambda: warm.servers() == [], "the server does not end")
    key = key_of(os.environ)
    assert key != killed
    warm.start(key, os.environ)
    warm.wait_until_ready(key)
    assert {path.stem for path in home.iterdir()} == {"lock", key}


def test_server_that_was_used_longest_ago_ends(home: Path) -> None:
    home.mkdir(mode=0o700)
    stopped: list[str] = []

    def pretend(name: str, used: float) -> threading.Thread:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(home / f"{name}.socket"))
        listener.listen()
        (home / f"{name}.json").write_text('{"pid": 1, "error": "", "idle": 1, "files": {}, "modules": [], "path": ""}')
        os.utime(home / f"{name}.json", (used, used))

        def serve() -> None:
            with listener:
                while True:
                    connection, _address = listener.accept()
                    with connection:
                        if connection.recv(100):
                            stopped.append(name)
                            return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return thread

    for name, used in (("new", 3000.0), ("old", 1000.0), ("middle", 2000.0)):
        pretend(name, used)
    assert [server.key for server in warm.servers()] == ["old", "middle", "new"]
    warm.start("another", os.environ)
    assert stopped == ["old"]
