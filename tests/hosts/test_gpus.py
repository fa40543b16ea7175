"""GPUs of hosts: what decides whether a strategy can run, and which GPUs each rank sees.

No machine of these tests needs a GPU: the transport says how many there are, and the replicas are virtual CPUs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.cluster import Cluster
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.protocol import RequestKind
from pytest_ddl.cluster.resources import ResourcesBusyError
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.hosts import questions
from pytest_ddl.hosts.placement import machine_of_hosts
from pytest_ddl.hosts.transport import Host, TransportArguments
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.strategies.multi_worker_mirrored import MultiWorkerMirrored
from pytest_ddl.strategies.registry import StrategyRegistry
from pytest_ddl.strategies.spec import BuildContext
from tests.hosts.conftest import Emulated, emulated_hosts


class OnVirtualCpus(MultiWorkerMirrored):
    """Strategy that is available and placed like multi_worker_mirrored on GPUs, and runs on CPUs."""

    name = "on_virtual_cpus"
    aliases = ()

    def num_replicas(self, spec: Any) -> int:
        return spec.number("workers")

    def build(self, context: BuildContext) -> Any:
        return super().build(
            replace(context, device="cpu", spec=replace(context.spec, shape={**context.spec.shape, "replicas": 1}))
        )


@pytest.mark.parametrize(
    ("value", "expected"), [("0,2", ["0", "2"]), ("", []), ("-1", []), ("GPU-1a, MIG-2b", ["GPU-1a", "MIG-2b"])]
)
def test_the_gpus_of_a_host_are_those_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, value: str, expected: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert questions.gpus() == expected


def test_device_files_are_counted_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia0", "/dev/nvidia1"] if "nvidia" in pattern else [])
    assert questions.gpus() == ["0", "1"]
    monkeypatch.setattr("glob.glob", lambda _pattern: [])
    assert questions.gpus() == []


def test_the_host_with_the_fewest_gpus_decides() -> None:
    class Launcher:
        found: Mapping[str, int]

        def gpus(self) -> Mapping[str, int]:
            return self.found

    one = Launcher()
    one.found = {"a": 4, "b": 2}
    assert machine_of_hosts(lambda: one)[0].gpus == 2
    one.found = {"a": 4, "b": 0}
    machine, problem = machine_of_hosts(lambda: one)
    assert (machine.gpus, problem) == (0, "")
    assert machine.gpu_reason.startswith("the host b has no GPU device")


class WithGpus(Emulated):
    """Emulated hosts of which each says how many GPUs it has."""

    numbers: Sequence[int] = (2, 2)

    def hosts(self) -> list[Host]:
        return [replace(host, gpus=number) for host, number in zip(super().hosts(), self.numbers, strict=True)]


@pytest.fixture
def harness_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Harness]]:
    """Return a function that makes a harness over emulated hosts with these numbers of GPUs."""
    with emulated_hosts(tmp_path):
        pass
    with contextlib.ExitStack() as stack:

        def make(*numbers: int, wrap: Any = None) -> Harness:
            def transport(arguments: TransportArguments) -> WithGpus:
                made = WithGpus(arguments.folder)
                made.numbers = numbers
                made.wrap = wrap or (lambda _host, command: ["env", "CUDA_VISIBLE_DEVICES=a,b,c,d", *command])
                return made

            # What this machine shows must not matter.
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
            settings = resolve_without_pytest({"PYTEST_DDL_LAUNCHER": "stand-in", "PYTEST_DDL_DEVICE": "gpu"})
            registry = StrategyRegistry([OnVirtualCpus()])
            harness = Harness(settings, registry, {}, transports={"stand-in": transport}, folder=tmp_path)
            stack.callback(harness.close)
            return harness

        yield make


def visible(cluster: Cluster) -> list[str]:
    def read() -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "none")

    answers = cluster.ask(RequestKind.CALL, ship.pack(read), deadline=time.monotonic() + 60)
    assert all(answer.ok for answer in answers), answers
    return [ship.unpack(answer.body) for answer in answers]


@pytest.mark.slow
def test_each_rank_gets_gpus_of_its_own_host(harness_with: Callable[..., Harness]) -> None:
    harness = harness_with(4, 2)
    mark = DdlMark()
    parse = harness.registry.parse_variant
    assert harness.machine.gpus == 2
    assert harness.unavailable(parse("multi_worker_mirrored[replicas=2]"), mark) is None
    with harness.cluster(parse("on_virtual_cpus[replicas=2]"), mark) as cluster:
        assert visible(cluster) == ["a,b", "a,b"]
        # What is left for another cluster at the same time.
        left = harness.pool.launcher.ledger.acquire("gpu0", 2, deadline=0.0)
        assert left.numbers == (2, 3)
        left.release()
        with pytest.raises(ResourcesBusyError):
            harness.pool.launcher.ledger.acquire("gpu1", 1, deadline=0.0)
    with harness.cluster(parse("on_virtual_cpus[workers=4]"), mark) as cluster:
        assert visible(cluster) == ["a", "b", "a", "b"]


# The same end in another way.
@pytest.mark.nightly
@pytest.mark.slow
def test_ranks_share_the_gpus_of_a_host_that_has_too_few(harness_with: Callable[..., Harness]) -> None:
    harness = harness_with(-1, 1)
    with harness.cluster(harness.registry.parse_variant("on_virtual_cpus[workers=4]"), DdlMark()) as cluster:
        assert visible(cluster) == ["a", "b", "a", "a"]


@pytest.mark.slow
def test_hosts_without_gpus_make_a_strategy_unavailable(harness_with: Callable[..., Harness]) -> None:
    harness = harness_with(2, 0)
    spec = harness.registry.parse_variant("multi_worker_mirrored[replicas=2]")
    reason = harness.unavailable(spec, DdlMark())
    assert reason is not None
    assert reason.startswith("needs a GPU (device=gpu): the host host1 has no GPU device")
    assert harness.unavailable(spec, DdlMark(device="cpu")) is not None


@pytest.mark.slow
def test_hosts_that_do_not_answer_skip_no_test(harness_with: Callable[..., Harness]) -> None:
    harness = harness_with(-1, -1, wrap=lambda _host, _command: ["sh", "-c", "echo the door is closed >&2; exit 255"])
    assert harness.unavailable(harness.registry.parse_variant("multi_worker_mirrored"), DdlMark()) is None
    assert "the door is closed" in harness._problem_of_hosts
    with (
        pytest.raises((LaunchError, RuntimeError), match="the door is closed"),
        harness.cluster(harness.registry.parse_variant("multi_worker_mirrored"), DdlMark()),
    ):
        pass
