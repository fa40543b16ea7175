"""Keep a copy of the user's files on a host, for ``--ddl-sync``. The functions run in the agent.

The copy is in a folder of the session, which is removed when the agent ends, however that happens. Hosts may share the
disk with this folder; then several agents write the same bytes to the same files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from pytest_ddl.cluster import session_folder
from pytest_ddl.hosts import questions

_holding: list[tuple[int, subprocess.Popen[bytes]]] = []
"""Locks of the session's folder, and the processes that remove it if this one is killed."""


def bases() -> list[str]:
    """Return the folders for temporary files in which this process may write."""
    folders = dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"])
    return [path for path in folders if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)]


def fingerprint(root: str, paths: Sequence[str]) -> str:
    """Return a text that is equal on two hosts if both see one and the same folder, as on a disk that they share.

    It is made of the inode number, the size and the time of each file, which a copy does not have.

    :param paths: files in the folder.
    """
    digest = hashlib.sha256()
    for path in (root, *(os.path.join(root, path) for path in paths)):
        try:
            seen = os.lstat(path)
        except OSError:
            return ""
        digest.update(f"{path} {seen.st_ino} {seen.st_size} {seen.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def begin(session: str, folders: Sequence[str]) -> None:
    """Make the folder of the session, and folders inside it.

    :raises OSError: if it cannot be made.
    """
    os.makedirs(session, mode=0o700, exist_ok=True)
    lock = session_folder.hold(session)
    own = tempfile.mkdtemp(prefix=session_folder.ZYGOTE_PREFIX, dir=session)
    sweeper = subprocess.Popen(
        [sys.executable, "-I", "-S", session_folder.__file__, own], stdin=subprocess.PIPE, start_new_session=True
    )
    _holding.append((lock, sweeper))
    for folder in folders:
        os.makedirs(folder, exist_ok=True)


def lacking(copy: str, root: str, digests: Mapping[str, str]) -> list[str]:
    """Return the files of these that must be sent. Take what this host has already at the same path.

    :param root: folder of the project on the controller's machine. An older copy may be there.
    :param digests: digest of each file by its path inside the folder.
    :raises OSError: if a file cannot be written.
    """
    missing = []
    for path, digest in digests.items():
        target, here = os.path.join(copy, path), os.path.join(root, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if questions.digest_of(target) == digest:
            continue
        if questions.digest_of(here) == digest:
            shutil.copyfile(here, target)
        else:
            if os.path.lexists(target):
                os.unlink(target)
            missing.append(path)
    return missing


def write(copy: str, pieces: Sequence[tuple[str, int, bytes]]) -> None:
    """Write pieces of files.

    :param pieces: path inside the folder, position in the file, and content.
    :raises OSError: if a file cannot be written.
    """
    for path, position, data in pieces:
        file = os.open(os.path.join(copy, path), os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(file, view, position)
                position, view = position + written, view[written:]
        finally:
            os.close(file)


def finish(copy: str, files: Mapping[str, tuple[str, int]], links: Mapping[str, str]) -> list[str]:
    """Set the modes of the files, and make the symbolic links. Return the files that are not complete.

    :param files: digest and mode of each file.
    :param links: target of each symbolic link.
    :raises OSError: if a link cannot be made.
    """
    for path, target in links.items():
        link = os.path.join(copy, path)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(target, link)
    for path, (_digest, mode) in files.items():
        os.chmod(os.path.join(copy, path), mode)
    return [path for path, (digest, _mode) in files.items() if questions.digest_of(os.path.join(copy, path)) != digest]


def close() -> None:
    """Remove the folder of the session, if no other agent holds it. A second call does nothing."""
    while _holding:
        lock, sweeper = _holding.pop()
        os.close(lock)
        # It removes the folders. The text says that it need not wait for the end of others.
        sweeper.communicate(b"the agent ends")
