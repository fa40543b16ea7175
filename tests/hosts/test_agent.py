"""An agent that cannot start all workers of a request keeps none of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.hosts.agent import Agent


class Worker:
    """Process that stands in for a worker, with a channel of its own."""

    def __init__(self) -> None:
        self.pid = 1
        self.signals: list[int] = []
        self.is_closed = False
        self._ends = os.pipe()

    def fileno(self) -> int:
        return self._ends[0]

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def close(self) -> None:
        self.is_closed = True
        for end in self._ends:
            os.close(end)


class Launcher:
    """Launcher that starts as many groups of workers as there are places."""

    ended = ""

    def __init__(self, places: int) -> None:
        self.started: list[Worker] = []
        self.groups: list[tuple[list[int], str]] = []
        self._places = places

    def launch(self, _lease: Any, group: Sequence[int], environ: Mapping[str, str]) -> list[Worker]:
        if not self._places:
            raise LaunchError("a worker cannot be forked: Resource temporarily unavailable")
        self._places -= 1
        self.groups.append((list(group), environ.get("OWN", "")))
        made = [Worker() for _ in group]
        self.started += made
        return made

    def close(self) -> None:
        pass


class Channel:
    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def send(self, message: tuple[Any, ...]) -> None:
        self.sent.append(message)


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent(Channel())
    yield made
    made._close()
    # The end of its process closes these.
    for end in (made._selector, made._wake, made._waker):
        end.close()


def with_places(agent: Agent, places: int) -> Launcher:
    launcher = Launcher(places)
    agent._launcher = launcher  # type: ignore[assignment]
    return launcher


def test_a_worker_that_was_started_before_one_that_was_not_can_be_dropped(agent: Agent) -> None:
    launcher = with_places(agent, 1)
    agent._on_launch(7, [1, 2], {}, {1: {"OWN": "a"}, 2: {"OWN": "b"}})
    assert agent._channel.sent == [("refused", 7, "a worker cannot be forked: Resource temporarily unavailable")]
    (worker,) = launcher.started
    for number in (1, 2):  # as the controller does
        agent._on_drop(number)
    assert worker.signals == [signal.SIGKILL]
    assert worker.is_closed


def test_workers_without_variables_of_their_own_are_forked_together(agent: Agent) -> None:
    launcher = with_places(agent, 9)
    agent._on_launch(7, [1, 2], {}, {})
    agent._on_launch(8, [3, 4], {}, {3: {"OWN": "a"}, 4: {"OWN": "b"}})
    assert launcher.groups == [([1, 2], ""), ([3], "a"), ([4], "b")]
    assert [message[:2] for message in agent._channel.sent] == [("done", 7), ("done", 8)]
