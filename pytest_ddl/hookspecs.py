"""Hooks that other plugins implement to add strategies, checks and launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_ddl.cluster.launcher import MakeLauncher
    from pytest_ddl.equivalence.checks.registry import Check
    from pytest_ddl.hosts.transport import MakeTransport
    from pytest_ddl.strategies.registry import StrategyRegistry


@pytest.hookspec()
def pytest_ddl_register_strategies(registry: StrategyRegistry) -> None:
    """Add strategies with ``registry.add(definition)``.

    The hook is called once in each pytest session, before a strategy is selected. Each rank runs its own session and
    calls the hook too. The hook must not import TensorFlow.
    """


@pytest.hookspec()
def pytest_ddl_register_checks(checks: list[Check]) -> None:
    """Append a :class:`pytest_ddl.Check` to those that ``ddl_equivalence`` runs. Each check needs a unique name.

    Its ``role`` says what it judges. For example, if the weights began to differ earlier, a finding of a check of
    ``Role.STATE`` is a consequence of that, and is not reported as a separate cause.

    The hook is called before the first comparison, in the process that compares.
    """


@pytest.hookspec()
def pytest_ddl_register_launchers(launchers: dict[str, MakeLauncher]) -> None:
    """Add launchers by name, for example ``launchers["slurm"] = make``. ``--ddl-launcher`` selects one of them.

    ``make(environ, folder, address)`` starts a launcher and returns it. The launcher has the methods and attributes of
    :class:`~pytest_ddl.cluster.launcher.Launcher`. The function raises
    :class:`~pytest_ddl.cluster.obstacles.LaunchError` if the launcher cannot be started.

    * ``environ``: environment variables for processes that start workers. Each cluster has its own variables for its
      workers.
    * ``folder``: scratch folder of the session on this machine. All processes of pytest-xdist share it. pytest removes
      it at the end. If pytest is killed, the folder stays unless the launcher removes it.
    * ``address``: in a worker of pytest-xdist, the ``address`` of the controller's launcher. It is ``None`` if a new
      launcher must be started: in the controller, if the controller has started none, or if its launcher has ended.

    The hook is called once in each pytest session, also in the ranks.
    """


@pytest.hookspec()
def pytest_ddl_register_transports(transports: dict[str, MakeTransport]) -> None:
    """Add transports to several hosts by name, for example ``transports["lsf"] = Lsf``.

    ``--ddl-launcher=NAME[key=value,…]`` selects one.

    The value is called with :class:`~pytest_ddl.hosts.transport.TransportArguments`. It returns an object with the
    methods of :class:`~pytest_ddl.hosts.transport.Transport`, which knows the hosts and the command that runs a program
    on one. It may raise :class:`~pytest_ddl.hosts.transport.TransportArgumentError` for a wrong value of an option, and
    :class:`~pytest_ddl.hosts.transport.TransportError` if the hosts cannot be used.

    The hook is called once in each pytest session, also in the ranks.
    """
