"""Copy the user's files to the hosts, for ``--ddl-sync``: through the channels of the agents, and only what they lack.

The copy has the same path on all hosts, because what ranks record names files, and is compared between ranks. Ranks get
messages with this path instead of the one here: see :mod:`pytest_ddl.cluster.relocating`.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.relocating import FolderPlaces
from pytest_ddl.cluster.session_folder import PREFIX
from pytest_ddl.hosts import copies, preflight, questions
from pytest_ddl.hosts.link import HostLink
from pytest_ddl.hosts.project import Project

PIECE = 1 << 20
"""Maximum number of bytes of one message."""
WAIT = 60.0
"""Maximum seconds until each host has taken one message. A slow connection needs several of them for a large file."""
_QUESTIONS = copies.__name__


class Copying:
    """Copies of a project on the hosts of one group."""

    def __init__(self, project: Project, links: Sequence[HostLink]) -> None:
        self.project, self._links = project, links
        self.places: FolderPlaces | None = None
        """Where the copies are. ``None`` if all hosts see the folder of the project itself."""
        self._copied: dict[str, str] = {}
        """Digest of each file that all hosts have, by its path inside the folder."""

    def begin(self, imported: Collection[str]) -> None:
        """Copy the project to all hosts, unless they share its folder with this machine.

        :param imported: absolute paths of files that ranks need, also if git ignores them.
        :raises LaunchError: if the project is too large, or a host cannot take it.
        """
        project = self.project
        paths = project.files(imported)
        seen = self._ask("fingerprint", [project.root, paths], "looking at files")
        if set(seen) == {copies.fingerprint(project.root, paths)}:
            return
        session = os.path.join(self._base(), f"{PREFIX}{secrets.token_hex(8)}")
        copy = os.path.join(session, os.path.basename(project.root) or "project")
        inside = project.relative(os.getcwd())
        self._ask("begin", [session, [copy, os.path.join(copy, inside or ".")]], "making a folder")
        places = FolderPlaces(project.aliases, copy, tuple(project.kept))
        self._bring(places, paths)
        for link in self._links:
            link.place(places)
        self.places = places

    def add(self, imported: Collection[str]) -> None:
        """Copy files that were imported after the project was copied.

        :param imported: absolute paths of files in the project.
        :raises LaunchError: if a host cannot take them.
        """
        if self.places is not None:
            self._bring(self.places, sorted(filter(None, map(self.project.settled, imported))))

    def _base(self) -> str:
        """Return a folder for temporary files that all hosts have."""
        found = self._ask("bases", [], "looking for a folder")
        for path in found[0]:
            if all(path in paths for paths in found):
                return str(path)
        lists = "; ".join(
            f"{link.host.name}: {', '.join(paths) or 'none'}" for link, paths in zip(self._links, found, strict=True)
        )
        raise LaunchError(
            f"--ddl-sync: the hosts have no common folder for temporary files ({lists}); make /tmp writable on each"
        )

    def _bring(self, places: FolderPlaces, paths: Sequence[str]) -> None:
        links, files = {}, {}
        for path in paths:
            whole = os.path.join(self.project.root, path)
            target = self._target(whole, path) if os.path.islink(whole) else None
            if target is not None:
                links[path] = target
            elif digest := questions.digest_of(whole):
                files[path] = (digest, stat.S_IMODE(os.stat(whole).st_mode))
        files = {path: found for path, found in files.items() if self._copied.get(path) != found[0]}
        digests = {path: digest for path, (digest, _mode) in files.items()}
        missing = self._ask("lacking", [places.there, self.project.root, digests], "comparing files")
        pieces = [self._pieces(own) for own in missing]
        # All hosts at once, and no more in memory than one message for each.
        for parts in zip_longest(*pieces):
            requests = [
                link.request("ask", f"{_QUESTIONS}:write", [places.there, part])
                for link, part in zip(self._links, parts, strict=True)
                if part
            ]
            takers = [link for link, part in zip(self._links, parts, strict=True) if part]
            for link, request in zip(takers, requests, strict=True):
                link.answer(request, time.monotonic() + WAIT, "taking files for --ddl-sync")
        for link, wrong in zip(
            self._links, self._ask("finish", [places.there, files, links], "finishing the copy"), strict=True
        ):
            if wrong:
                changed = f"{wrong[0]} is not complete in {places.there} on the host {link.host.name}"
                raise LaunchError(f"--ddl-sync: {changed}: it was changed meanwhile, or the disk is full; run again")
        self._copied.update(digests)
        sent = {os.path.join(root, path): digest for root in places.here for path, digest in self._copied.items()}
        for link in self._links:
            # What a rank imports is compared with its copy: the user may edit a file during the run.
            link.sent = sent

    def _target(self, link: str, path: str) -> str | None:
        """Return the target that a symbolic link has on the hosts. ``None`` means to copy the file behind it."""
        whole = os.path.realpath(link)
        inside = self.project.relative(whole)
        if inside is not None:
            return os.path.relpath(inside, os.path.dirname(path))
        # A folder of data outside the project, for example, may be on each host too.
        return None if os.path.isfile(whole) else whole

    def _pieces(self, paths: Sequence[str]) -> Iterator[list[tuple[str, int, bytes]]]:
        """Yield the contents of files in messages of at most :data:`PIECE` bytes."""
        message: list[tuple[str, int, bytes]] = []
        size = 0
        for path in paths:
            with open(os.path.join(self.project.root, path), "rb") as file:
                position = 0
                while True:
                    data = file.read(PIECE - size)
                    if data or not position:
                        message.append((path, position, data))
                    position, size = position + len(data), size + len(data)
                    if size < PIECE:
                        break
                    yield message
                    message, size = [], 0
        if message:
            yield message

    def _ask(self, function: str, arguments: list[Any], what: str) -> list[Any]:
        return preflight.ask(
            self._links,
            f"{_QUESTIONS}:{function}",
            [arguments] * len(self._links),
            f"{what} for --ddl-sync",
            time.monotonic() + WAIT,
        )
