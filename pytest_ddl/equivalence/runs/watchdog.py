"""Detect from the ranks' logs of collectives, long before the deadline, that ranks wait for each other forever."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from pytest_ddl.records import CollectiveRecord
from pytest_ddl.training import collective_log

QUIET = 2.0
"""Seconds without a new collective on any rank before the logs are judged.

By then the logs are a proof, except in one case: a rank draws the numbers of all collectives of a function, and
continues at once if that function skips them in a ``tf.cond``.
"""


class Watchdog:
    """Callable that the cluster calls repeatedly with the ranks that have answered; True if all others wait."""

    def __init__(self, folder: str, attempt: int, num_ranks: int) -> None:
        self._paths = [collective_log.path_of(folder, attempt, rank) for rank in range(num_ranks)]
        self._sizes: list[int] = []
        self._answered = 0
        self._since = time.monotonic()

    def __call__(self, answered: Collection[int]) -> bool:
        sizes = [_size(path) for path in self._paths]
        if sizes != self._sizes or len(answered) != self._answered:
            self._sizes, self._answered, self._since = sizes, len(answered), time.monotonic()
        if time.monotonic() - self._since < QUIET:
            return False
        return all_wait([collective_log.read(path) for path in self._paths], answered)


def all_wait(logs: Sequence[Sequence[CollectiveRecord]], answered: Collection[int]) -> bool:
    """Return whether every rank that has not answered waits for one that has, or for one that waits itself.

    A rank waits for another if it has executed more collectives of a group, because the k-th of one rank meets the k-th
    of the others.
    """
    counts = [Counter(record.group for record in log) for log in logs]
    waiting = set(range(len(logs))) - set(answered)
    if not waiting:
        return False
    # Find the largest set in which each member waits for another member, or for a rank that has answered.
    while True:
        held_up = {
            rank
            for rank in waiting
            if any(
                counts[rank][group] > counts[other][group]
                for other in range(len(logs))
                if other in waiting or other in answered
                for group in counts[rank]
            )
        }
        if held_up == waiting:
            return waiting == set(range(len(logs))) - set(answered)
        waiting = held_up


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
