"""Declare the options and resolve their values, with the origin of each value.

Precedence from low to high: ini, environment (``PYTEST_DDL_*``), command line, marker (see ``items.selection``).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pytest_ddl.hints import FrontEnd
from pytest_ddl.option_values import parse_megabytes, parse_range, parse_seconds, parse_switch

ENV_PREFIX = "PYTEST_DDL_"
KEY_VARIABLES = ("PYTEST_DDL_KEY", "PYTEST_DDL_KEY_FILE")
"""Variables that are no options; see :mod:`pytest_ddl.hosts.trust`."""


@dataclass(frozen=True)
class Option:
    """Option that can be set with ``--ddl-NAME``, ``PYTEST_DDL_NAME`` or the ini value ``ddl_NAME``."""

    name: str
    default: Any
    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    parse: Callable[[str], Any] = str

    @property
    def flag(self) -> str:
        return f"--ddl-{self.name}"

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper().replace("-", "_")

    @property
    def ini(self) -> str:
        return "ddl_" + self.name.replace("-", "_")


@dataclass(frozen=True)
class Setting:
    """Value of an option and its origin: ``default``, ``ini``, ``command line`` or the environment variable's name."""

    value: Any
    origin: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "strategy",
        "all",
        "Strategies to run tests under: comma-separated names or variants such as mirrored[replicas=4],\n"
        "'all' (those that cannot run here are skipped with the reason) or 'available' (those that cannot run here\n"
        "are left out). See --ddl-list",
        "NAMES",
    ),
    Option("require", "", "Strategies that must be able to run here; otherwise pytest stops with an error", "NAMES"),
    Option(
        "device",
        "auto",
        "Kind of device for the replicas; auto uses GPUs if there are any",
        choices=("auto", "cpu", "gpu", "tpu"),
    ),
    Option(
        "gpu-memory",
        0.0,
        "Memory that a process may take of a GPU that it shares. By default, a quarter of what the memory of the GPUs\n"
        "is for each worker of pytest-xdist",
        "MB",
        parse=parse_megabytes,
    ),
    Option("timeout", 120.0, "Deadline of one test on all its ranks, in seconds", "SECONDS", parse=parse_seconds),
    Option(
        "start-timeout",
        120.0,
        "Deadline of the import of TensorFlow, and of the start of the ranks of a cluster after it, in seconds",
        "SECONDS",
        parse=parse_seconds,
    ),
    Option("keras", "keras", "Package that provides tf.keras in the workers", choices=("keras", "tf_keras")),
    Option(
        "launcher",
        "local",
        "Launcher that starts the worker processes: local (this machine), or a transport to several hosts, with its\n"
        "settings in brackets: netns[hosts=2]",
        "NAME",
    ),
    Option(
        "shared-dir",
        "",
        "Folder that all hosts share, for what the ranks record. It is needed for comparisons and measurements on\n"
        "hosts that do not share their folder for temporary files",
        "DIR",
    ),
    Option(
        "hosts", "", "Hosts for transports that need their names, with the number of ranks for each", "NAME:SLOTS,…"
    ),
    Option(
        "sync",
        False,
        "Copy the files of rootdir to each host at the start, for hosts that share no folder with this machine. In a\n"
        "work tree of git, these are the files that git does not ignore",
        is_flag=True,
        parse=parse_switch,
    ),
    Option("sync-limit", 256.0, "Maximum size of the files that --ddl-sync copies", "MB", parse=parse_megabytes),
    Option(
        "network",
        "shared",
        "Network of the worker processes: shared (the network of this machine; other hosts cannot reach\n"
        "TensorFlow's servers) or isolated (a network for the workers only, which can reach no other host)",
        choices=("shared", "isolated"),
    ),
    Option(
        "warm",
        False,
        "Keep a process that has imported TensorFlow for the next runs, and import TensorFlow in the pytest process\n"
        "only when a test file uses it. See pytest-ddl warm",
        is_flag=True,
        parse=parse_switch,
    ),
    Option(
        "gate",
        "",
        "Two versions that tests with the fixture ddl_gate compare; without this option these tests are skipped",
        "BASE..HEAD",
        parse=parse_range,
    ),
    Option(
        "report",
        "",
        "Folder for one HTML page with pictures for each failed comparison, and an index",
        "FOLDER",
    ),
    Option(
        "strict",
        False,
        "Fail on inconclusive verdicts, on named approximations and on known behaviors of TensorFlow and Keras",
        is_flag=True,
        parse=parse_switch,
    ),
    Option(
        "in-process",
        False,
        "Run single-process strategies in the pytest process, for debuggers. Implied by --pdb",
        is_flag=True,
        parse=parse_switch,
    ),
)
"""All options. The table in the documentation is generated from them."""
NAMED = ("strategy", "require", "launcher", "hosts", "sync", "shared-dir")
"""Options that name what must exist, or what must fit together."""


MARKERS = (
    (
        "ddl(*, strategies=None, replicas=None, workers=None, ps=None, timeout=None, isolation='reuse', device=None, "
        "keras=None, arguments={}): settings of a test that asks for a strategy; see pytest --ddl-list"
    ),
    "virtual_gpus(count, memory_mb=1024): number and memory of the virtual GPUs that the fixture virtual_gpus makes",
    "gpu(min=1): the test needs at least that many GPUs; without them it is skipped with the reason",
    "tpu: the test needs a TPU; without one it is skipped with the reason",
)
"""Markers with their signatures, as ``pytest --markers`` shows them."""


@dataclass(frozen=True)
class Settings:
    """Resolved values of all options."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    front_end: FrontEnd = FrontEnd.TEST

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    def origin(self, name: str) -> str:
        return self.settings[name].origin

    def not_default(self) -> list[str]:
        """Return ``name=value (from origin)`` for each value that is not a default."""
        return [
            f"{name}={setting.value} (from {setting.origin})"
            for name, setting in self.settings.items()
            if setting.origin != "default"
        ]

    def error(self, name: str, problem: object) -> pytest.UsageError:
        """Make a one-line usage error about the value of an option."""
        setting = self.settings[name]
        option = self.front_end.option(name)
        return pytest.UsageError(f"{option}={setting.value!r} (from {setting.origin}): {problem}")


UsageError = pytest.UsageError
"""Error for a wrong option, under a name for modules that do not import pytest."""
SETTINGS = pytest.StashKey[Settings]()


def add_options(parser: pytest.Parser) -> None:
    """Declare all options, their ini values, and ``--ddl-list``."""
    group = parser.getgroup("ddl", "distributed training (pytest-ddl)")
    for option in OPTIONS:
        arguments: dict[str, Any] = {"dest": f"ddl_{option.name.replace('-', '_')}", "default": None}
        arguments.update({"action": "store_true"} if option.is_flag else {"metavar": option.metavar or None})
        if option.choices:
            arguments["metavar"] = "|".join(option.choices)
        default = f" (default: {option.default})" if option.default and not option.is_flag else ""
        group.addoption(option.flag, help=option.help + default, **arguments)
        kind: Literal["args", "string"] = "args" if option.metavar == "NAMES" else "string"
        parser.addini(option.ini, f"Like {option.flag}", type=kind, default=None)
    group.addoption(
        "--ddl-list",
        action="store_true",
        help="List all strategies, show whether each can run here and why not, and exit",
    )
    # What ``pytest-ddl check`` collects.
    group.addoption("--ddl-check", metavar="JSON", help=argparse.SUPPRESS)


def explain_missing_xdist(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> None:
    """Let pytest's error about an unknown ``-n`` say what to install. Without an error, nothing is printed."""
    if any(arg.startswith(("-n", "--numprocesses")) for arg in args) and not config.pluginmanager.hasplugin("xdist"):
        parser.extra_info["-n"] = "needs pytest-xdist: pip install pytest-xdist"


def resolve(config: pytest.Config, environ: Mapping[str, str] | None = None) -> Settings:
    """Find the value and origin of every option, and warn about unknown environment variables.

    :raises pytest.UsageError: for an invalid value. The one-line message names option, value, origin and valid values.
    """
    environ = os.environ if environ is None else environ
    resolved = {option.name: _setting(option, *_raw(config, option, environ)) for option in OPTIONS}
    _warn_about_unknown(config, environ)
    return Settings(resolved, front_end_of(config))


def front_end_of(config: pytest.Config) -> FrontEnd:
    """Return how the user has called comparisons: by a command that has started pytest, or in tests."""
    if config.option.ddl_check:
        return FrontEnd.CHECK
    return FrontEnd.TRY if getattr(config.option, "ddl_try", None) else FrontEnd.TEST


def flag_before_parsing(config: pytest.Config, name: str) -> bool:
    """Return whether a flag is set, while pytest has not parsed the command line completely. Ignore wrong values."""
    option = next(option for option in OPTIONS if option.name == name)
    if getattr(config.known_args_namespace, f"ddl_{name.replace('-', '_')}", None):
        return True
    try:
        return parse_switch(os.environ.get(option.env) or str(config.getini(option.ini) or ""))
    except ValueError:
        return False


def launcher_before_configuring(config: pytest.Config) -> str:
    """Return the value of ``--ddl-launcher``, while plugins are not configured yet."""
    value, _origin = _raw(config, next(option for option in OPTIONS if option.name == "launcher"), os.environ)
    return str(value).strip()


def resolve_without_pytest(environ: Mapping[str, str] | None = None) -> Settings:
    """Find the value of every option in a process that does not run pytest.

    A value comes from the environment, or is the default.

    :raises pytest.UsageError: for an invalid value. The one-line message names option, value, origin and valid values.
    """
    environ = os.environ if environ is None else environ
    return Settings(
        {
            option.name: _setting(option, environ[option.env], option.env)
            if option.env in environ
            else Setting(option.default, "default")
            for option in OPTIONS
        }
    )


def _setting(option: Option, value: Any, origin: str) -> Setting:
    if origin == "default" or not isinstance(value, str):
        return Setting(value, origin)
    try:
        parsed = option.parse(value)
    except ValueError as error:
        raise _usage_error(option, value, origin, error) from None
    if option.choices and parsed not in option.choices:
        raise _usage_error(option, value, origin, f"valid: {', '.join(option.choices)}")
    return Setting(parsed, origin)


def _usage_error(option: Option, value: str, origin: str, problem: object) -> pytest.UsageError:
    return pytest.UsageError(f"{option.flag}={value!r} (from {origin}): {problem}")


def _raw(config: pytest.Config, option: Option, environ: Mapping[str, str]) -> tuple[Any, str]:
    given = config.getoption(f"ddl_{option.name.replace('-', '_')}")
    if given is not None:
        return given, "command line"
    if option.env in environ:
        return environ[option.env], option.env
    ini = config.getini(option.ini)
    if ini:
        return (",".join(ini) if isinstance(ini, list) else str(ini)), "ini"
    return option.default, "default"


def _warn_about_unknown(config: pytest.Config, environ: Mapping[str, str]) -> None:
    known = [*(option.env for option in OPTIONS), *KEY_VARIABLES]
    for name in sorted(environ):
        if name.startswith(ENV_PREFIX) and name not in known:
            # Imported only here because every pytest run with this plugin imports this module.
            from difflib import get_close_matches

            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            message = f"environment variable {name} is not known to pytest-ddl and has no effect; {hint}"
            try:
                config.issue_config_time_warning(pytest.PytestConfigWarning(message), stacklevel=2)
            except pytest.PytestConfigWarning as error:  # -W error
                raise pytest.UsageError(str(error)) from None
