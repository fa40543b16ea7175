"""Remove the scratch folder of a session, even if the process that made it was killed.

The pytest process that makes the folder holds a lock in it. Under pytest-xdist, each worker may have its own zygote,
with a folder of its own inside. If the controller was killed, the zygotes remove the whole folder. They use this
module, so it imports only the standard library. If the zygotes are on other hosts, a process that runs this file does
the same: ``python session_folder.py FOLDER`` removes the folder at the end of its stdin. If it has read something
there, the session goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import time

PREFIX, ZYGOTE_PREFIX = "pytest-ddl-", "zygote-"
"""Start of the name of a session's folder, and of the folder of a zygote inside it."""
_LOCK = "session"


def hold(folder: str) -> int:
    """Mark a session's folder as used by this process. Return a file descriptor; closing it removes the mark."""
    lock = os.open(os.path.join(folder, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lock


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


if __name__ == "__main__":
    goes_on = sys.stdin.buffer.read()
    remove(sys.argv[1])
    for _ in range(0 if goes_on else 50):
        # The kernel closes the pipe of a killed process before it releases the lock.
        if not os.path.exists(os.path.dirname(sys.argv[1])):
            break
        time.sleep(0.1)
        remove(sys.argv[1])
