"""Decide by key and loaded files whether a new import would give the same as a warm server has imported."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest_ddl
from pytest_ddl.cluster.warm.server import SOFT_LIMITS
from pytest_ddl.strategies.machine import GPU_GROWTH

_FREE = frozenset(
    (
        *("PWD", "OLDPWD", "SHLVL", "_", "HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "COLUMNS", "LINES", "PS1"),
        *("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLORTERM", "DISPLAY", "WINDOWID", "TMUX", "TMUX_PANE"),
        *("PYTHONPATH", "LS_COLORS", "LESSOPEN", "LESSCLOSE", "EDITOR", "PAGER", "VISUAL", "MAIL", "HOSTNAME"),
        *("INVOCATION_ID", "PY_COLORS"),
        # Read when a device is made. A run sets it for itself, and pytest-ddl warm does not.
        GPU_GROWTH,
    )
)
_FREE_PREFIXES = ("PYTEST_", "SSH_", "XDG_", "GITHUB_", "RUNNER_", "VSCODE_", "_PYTEST_DDL_", "DBUS_", "COV_CORE_")
"""Environment variables that importing TensorFlow and Keras does not read. All others are part of the key. A zygote
gets the environment of its run in any case."""
_SET_BY_IMPORT = frozenset((("ENABLE_RUNTIME_UPTIME_TELEMETRY", "1"), ("HDF5_PLUGIN_PATH", "disable")))
"""Variables that TensorFlow sets when it is imported. A server fits a run whose pytest process has imported it, too."""
_CAP_SYS_ADMIN = 21
"""Bit of the right to join a network namespace, as in capabilities(7)."""


@dataclass(frozen=True)
class Server:
    """Warm server as its manifest describes it."""

    key: str
    pid: int
    error: str
    idle: float
    """Seconds without a run after which it ends."""
    files: Mapping[str, list[int]]
    """Files that it has loaded, each with its ctime in nanoseconds and its size in bytes."""
    modules: tuple[str, ...]
    """Names of the top-level modules that it has imported or has looked for."""
    path: str
    """Its environment variable ``PYTHONPATH``."""
    started: float = 0.0
    """Time at which it was ready, in seconds since 1970."""
    python: str = ""
    """Its interpreter, with the version."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages that it has imported."""

    def misfit(self, environ: Mapping[str, str]) -> str | None:
        """Return why an import in this environment could give other modules than this server has, or ``None``."""
        changed = self._changed()
        if changed is not None:
            return f"{changed} was changed"
        path = environ.get("PYTHONPATH", "")
        if path == self.path:
            return None
        own, given = ([entry for entry in one.split(os.pathsep) if entry] for one in (self.path, path))
        # Folders between those of the server matter only if they have a module of the same name.
        if [entry for entry in given if entry in own] == own:
            given = [entry for entry in given if entry not in own]
        elif any(file.startswith(os.path.join(os.path.abspath(entry), "")) for entry in own for file in self.files):
            return f"PYTHONPATH is not {self.path}"
        for folder in given:
            shadowed = {name.partition(".")[0] for name in _names(folder)}.intersection(self.modules)
            if shadowed:
                return f"{folder} in PYTHONPATH has a module {min(shadowed)}"
        return None

    def _changed(self) -> str | None:
        """Return a file that was changed since the server has loaded it, or ``None``."""
        for path, (ctime, size) in self.files.items():
            try:
                status = os.stat(path)
            except OSError:
                return path
            if (status.st_ctime_ns, status.st_size) != (ctime, size):
                return path
        return None


def key_of(environ: Mapping[str, str]) -> str:
    """Return the key of the server that fits a process with this environment.

    It covers the interpreter, the names of the installed packages, their ``.pth`` files, the environment, the
    configuration of Keras, and the limits and namespaces of this process. For ``PYTHONPATH``, see
    :meth:`Server.misfit`.
    """
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    keras = Path(environ.get("KERAS_HOME") or Path(environ.get("HOME", "~"), ".keras").expanduser(), "keras.json")
    facts = [
        (sys.executable, sys.version, sys.prefix, os.path.abspath(pytest_ddl.__file__)),
        sorted((folder, _names(folder), _path_files(folder)) for folder in folders if os.path.isdir(folder)),
        sorted(item for item in environ.items() if not _is_free(item[0]) and item not in _SET_BY_IMPORT),
        keras.read_text(errors="replace") if keras.is_file() else "",
        (os.getuid(), os.getgid(), os.getpriority(os.PRIO_PROCESS, 0)),
        [resource.getrlimit(number)[1] for number in SOFT_LIMITS],
        [_link(f"/proc/self/ns/{name}") for name in ("cgroup", "ipc", "mnt", "pid", "user", "uts")],
        # No import uses the network, and a zygote that may do so joins that of its run.
        _may_join_networks() or _link("/proc/self/ns/net"),
        _text("/proc/self/cgroup"),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:20]


def _may_join_networks() -> bool:
    """Return whether this process is an administrator, as ``setns`` demands. Root in a container often is none."""
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", _text("/proc/self/status"), re.MULTILINE)
    return held is not None and bool(int(held[1], 16) >> _CAP_SYS_ADMIN & 1)


def _is_free(name: str) -> bool:
    return name in _FREE or name.startswith(_FREE_PREFIXES) or name.lower().endswith("_proxy")


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name != "__pycache__")
    return []


def _path_files(folder: str) -> list[str]:
    """Return the contents of the ``.pth`` files in a folder. Python runs them when it starts."""
    return [_text(path) for path in sorted(map(str, Path(folder).glob("*.pth")))]


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""
