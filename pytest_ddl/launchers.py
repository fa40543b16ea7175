"""Choose the launcher that the options name, and the environment of the ranks that it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddl.config import Settings

if TYPE_CHECKING:
    from pytest_ddl.cluster.launcher import Launcher, MakeLauncher
    from pytest_ddl.hosts.project import Project
    from pytest_ddl.hosts.transport import MakeTransport


def chosen_launcher(
    settings: Settings,
    launchers: Mapping[str, MakeLauncher],
    transports: Mapping[str, MakeTransport],
    project: Callable[[], Project],
) -> tuple[str, MakeLauncher]:
    """Return the name of the launcher that ``--ddl-launcher`` names, and the function that starts it.

    :param launchers: those for this machine, by name.
    :param transports: those that reach several hosts, by name.
    :param project: returns what is copied to each host, if the user wants that.
    :raises pytest.UsageError: if there is none of that name, or if another option does not fit it.
    """
    from pytest_ddl.hosts.transports.registry import launcher_over, parse_launcher

    try:
        name, given = parse_launcher(settings["launcher"])
    except ValueError as error:
        raise settings.error("launcher", error) from None
    if name in transports:
        copied = project() if settings["sync"] else None
        limit, warm = settings["start-timeout"], settings["warm"]
        return name, launcher_over(
            name, transports[name], given, settings["hosts"], copied, start_timeout=limit, warm=warm
        )
    if name not in launchers:
        raise settings.error("launcher", f"no such launcher; valid: {', '.join([*launchers, *transports])}")
    if settings["sync"]:
        raise settings.error("sync", f"the launcher {name} runs where the files are; leave it out")
    if given:
        raise settings.error("launcher", f"{name} takes no settings in brackets")
    if settings["hosts"]:
        raise settings.error("hosts", f"the launcher {name} takes no hosts; leave it out, or give --ddl-launcher=ssh")
    return name, launchers[name]


def environ_of_ranks(settings: Settings, temporary: Path) -> dict[str, str]:
    """Return the environment of this process, with changes for ranks.

    TensorFlow logs only errors unless the user has set ``TF_CPP_MIN_LOG_LEVEL``. Calls to a dead task fail at once, as
    TensorFlow's guide to parameter server training requires for every task.

    :param temporary: folder for temporary files of the ranks.
    """
    from pytest_ddl.cluster.obstacles import without_proxy_here

    environ = dict(os.environ)
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    if settings.origin("keras") != "default":
        environ.update(keras_environ(settings["keras"]))
    environ["TMPDIR"] = str(temporary)
    return {**environ, **without_proxy_here(environ)}


def keras_of_ranks(settings: Settings) -> str:
    """Return the package that ``tf.keras`` is in the ranks of a test that names none."""
    if settings.origin("keras") != "default":
        return str(settings["keras"])
    from pytest_ddl.cluster.preload import wants_tf_keras

    return "tf_keras" if wants_tf_keras() else "keras"


def keras_environ(keras: str | None) -> dict[str, str]:
    """Return the environment in which ``tf.keras`` is a package; empty for ``None``."""
    return {} if keras is None else {"TF_USE_LEGACY_KERAS": "1" if keras == "tf_keras" else "0"}


def built_in_launchers(
    settings: Settings, *, shared: bool = False, also: Sequence[str] = ()
) -> dict[str, MakeLauncher]:
    """Return the functions that start the launchers of this package, by name.

    :param shared: ``True`` in a worker of pytest-xdist, whose launchers share their folder with those of other workers.
    :param also: modules that test files name. A zygote imports them, so that not each rank does.
    """

    def local(environ: dict[str, str], folder: Path, address: str | None) -> Launcher:
        from pytest_ddl.cluster.local_launcher import LocalLauncher

        source = None
        if settings["warm"]:
            from pytest_ddl.cluster.warm.servers import WarmZygotes

            source = WarmZygotes()
        isolated = settings["network"] == "isolated"
        return LocalLauncher(
            environ,
            folder,
            address,
            isolated=isolated,
            shared=shared,
            warm=source,
            also=also,
            start_timeout=settings["start-timeout"],
        )

    return {"local": local}
