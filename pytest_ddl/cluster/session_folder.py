"""Remove the scratch folder of a session, even if the process that made it was killed.

The pytest process that makes the folder holds a lock in it. Under pytest-xdist, each worker may have its own zygote,
with a folder of its own inside. If the controller was killed, the zygotes remove the whole folder. They use this
module, so it imports only the standard library. If the zygotes are on other hosts, a process that runs this file does
the same: ``python session_folder.py FOLDER`` removes the folder at the end of its stdin. If it has read something
there, the session goes on.

If a container or the machine's memory ends pytest and its zygotes at the same moment, nothing is left that could remove
the folder. Processes that a test has started in a new session stay too. The next session ends them, and removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import sys
import tempfile
import time

PREFIX, ZYGOTE_PREFIX = "pytest-ddl-", "zygote-"
"""Start of the name of a session's folder, and of the folder of a zygote inside it."""
_LOCK = "session"
_LAUNCHER = "launcher-"
"""Start of the name of an empty file, whose name has the mark of the processes of one launcher."""


def make(parent: str | None = None, prefix: str = PREFIX, kind: str = "") -> tuple[str, int]:
    """Remove the folders of dead sessions, and make one that this process holds; see :func:`hold`.

    :param parent: folder in which it is made; by default the one for temporary files.
    :param prefix: start of the names of the folders to remove, and of the new one.
    :param kind: further part of the name of the new one.
    :raises OSError: if it cannot be made.
    """
    parent = os.path.abspath(parent or tempfile.gettempdir())
    _remove_dead(parent, prefix)
    folder = tempfile.mkdtemp(prefix=prefix + kind, dir=parent)
    return folder, hold(folder)


def hold(folder: str) -> int:
    """Mark a session's folder as used by this process. Return a file descriptor; closing it removes the mark."""
    path = os.path.join(folder, _LOCK)
    lock, made = tempfile.mkstemp(dir=folder)
    fcntl.flock(lock, fcntl.LOCK_SH)
    os.write(lock, kernel().encode())
    try:
        # It gets its name once it is locked: another session would remove a folder with a lock that nobody holds.
        os.link(made, path)
    except FileExistsError:
        os.close(lock)
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_SH)
    finally:
        os.unlink(made)
    return lock


def mark(folder: str, launcher: str) -> None:
    """Keep the mark of the processes of a launcher, so that the next session ends them if this one is killed."""
    with contextlib.suppress(OSError), open(os.path.join(folder, _LAUNCHER + launcher), "wb"):
        pass


def remove(folder: str) -> None:
    """Remove the folder of a zygote. Also remove the session's folder around it if nobody holds that any more."""
    shutil.rmtree(folder, ignore_errors=True)
    session = os.path.dirname(folder)
    # A zygote that shares the session's folder with nobody has no folder of its own.
    inside = os.path.basename(folder).startswith(ZYGOTE_PREFIX) and os.path.basename(session).startswith(PREFIX)
    if inside and not _is_held(session):
        shutil.rmtree(session, ignore_errors=True)


def _is_held(session: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(os.path.join(session, _LOCK), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return False


def _remove_dead(parent: str, prefix: str) -> None:
    """Remove the folders of sessions of this machine that nobody holds, and end their processes."""
    for path in glob.glob(os.path.join(glob.escape(parent), f"{prefix}*", _LOCK)):
        folder = os.path.dirname(path)
        # An error means that the folder is in use, belongs to another user, or is already gone.
        with contextlib.suppress(OSError), open(path, "rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a disk that hosts share may not be seen by the others.
            if lock.read() != kernel().encode():
                continue
            _end_processes(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _end_processes(folder: str) -> None:
    from pytest_ddl.cluster import strays

    for path in glob.glob(os.path.join(glob.escape(folder), "**", f"{_LAUNCHER}*"), recursive=True):
        strays.end_tagged(os.path.basename(path).removeprefix(_LAUNCHER))


def kernel() -> str:
    """Return an id of the running kernel, whose processes see each other's locks, also those in its containers.

    It is the boot id (``random(4)``), which all emulated hosts and containers of one machine have in common.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


if __name__ == "__main__":
    goes_on = sys.stdin.buffer.read()
    remove(sys.argv[1])
    for _ in range(0 if goes_on else 50):
        # The kernel closes the pipe of a killed process before it releases the lock.
        if not os.path.exists(os.path.dirname(sys.argv[1])):
            break
        time.sleep(0.1)
        remove(sys.argv[1])
