"""Lease fresh processes of a variant for one measurement, call functions on all ranks, and return their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.launching.answers import BenchError, all_of

if TYPE_CHECKING:
    from pytest_ddl.cluster.cluster import Cluster
    from pytest_ddl.harness import Harness
    from pytest_ddl.strategies.spec import StrategySpec


class Ranks:
    """All ranks of a cluster that is used for one measurement."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.number = cluster.num_ranks
        self.num_replicas = cluster.num_replicas

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        deadline: float,
        doing: str,
        patience: Callable[[Any], float | None] | None = None,
        refusal: Callable[[Any], str] = lambda _result: "",
    ) -> list[Any]:
        """Call a function on all ranks and return the results in the order of the ranks.

        :param deadline: in seconds of :func:`time.monotonic`.
        :param doing: text for the error if a rank failed, for example ``while it was measured``.
        :param patience: function of the first result; how many more seconds the other ranks get, ``None`` for all.
        :param refusal: returns why a result is invalid, because its rank ended too early; empty if it is valid.
        :raises BenchError: if a rank failed or its result is invalid.
        """
        from pytest_ddl.cluster import ship
        from pytest_ddl.cluster.protocol import RequestKind

        wait = None if patience is None else lambda body: patience(ship.unpack(body))
        job = ship.pack(function, arguments)
        answers = self._cluster.ask(RequestKind.CALL, job, deadline=deadline, patience=wait)
        return all_of(answers, doing, refusal)


@contextmanager
def fresh_ranks(
    harness: Harness,
    spec: StrategySpec,
    device: str = "cpu",
    *,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, Callable[[], Mapping[str, Any]]] | None = None,
) -> Iterator[Ranks]:
    """Lease new processes, which nobody uses afterwards: what a measurement leaves in them would change the next one.

    :param environ: additional environment variables of the processes.
    :param arguments: functions that make arguments of the strategy's constructor, as for the ``ddl`` marker.
    :raises BenchError: if the variant cannot run on this machine.
    """
    from pytest_ddl.items.selection import DdlMark

    mark = DdlMark(device=device, isolation="fresh", arguments=dict(arguments or {}))
    if reason := harness.unavailable(spec, mark):
        raise BenchError(f"{spec} cannot run here: {reason}")
    with harness.cluster(spec, mark, fresh=True, environ=environ, exclusive=True) as cluster:
        cluster.retired = cluster.retired or "it was measured in"
        yield Ranks(cluster)
