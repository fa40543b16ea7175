"""Port leases: no two holders on a machine, whatever process they are in, and nothing left of a dead one."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from pytest_ddl.cluster import resources
from pytest_ddl.cluster.obstacles import LaunchError
from pytest_ddl.cluster.resources import PortLease

HOLDER = """
import sys
from pytest_ddl.cluster import resources
resources.FIRST_PORT, resources.LAST_PORT = map(int, sys.argv[2:])
lease = resources.PortLease(int(sys.argv[1]))
print(*lease.ports, flush=True)
sys.stdin.read()
"""


# The ranges that these tests fill are below that of clusters, which other tests start at the same time.
def hold(count: int, first: int, last: int) -> Any:
    command = [sys.executable, "-c", HOLDER, str(count), str(first), str(last)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_many_leases_of_several_processes_never_share_a_port() -> None:
    # The range is little larger than what is taken, so that random choices would collide.
    holders = [hold(40, 17_000, 17_200) for _ in range(4)]
    taken = [int(port) for holder in holders for port in holder.stdout.readline().split()]
    for holder in holders:
        holder.communicate(timeout=30)
    assert len(taken) == len(set(taken)) == 160


def test_leases_of_one_process_never_share_a_port() -> None:
    leases = [PortLease(3) for _ in range(50)]
    taken = [port for lease in leases for port in lease.ports]
    for lease in leases:
        lease.release()
    assert len(set(taken)) == 150


def test_a_killed_holder_leaves_its_ports_free() -> None:
    holder = hold(10, 17_200, 17_210)
    assert len(holder.stdout.readline().split()) == 10
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=30)
    again = hold(10, 17_200, 17_210)
    assert len(again.stdout.readline().split()) == 10
    again.communicate(timeout=30)


def test_a_port_that_a_server_listens_on_is_not_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setattr(resources, "FIRST_PORT", port)
        monkeypatch.setattr(resources, "LAST_PORT", port + 1)
        with pytest.raises(LaunchError, match="no 1 free ports"):
            PortLease(1)


def test_a_released_port_can_be_leased_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "FIRST_PORT", 17_300)
    monkeypatch.setattr(resources, "LAST_PORT", 17_302)
    lease = PortLease(2)
    with pytest.raises(LaunchError, match="free ports"):
        PortLease(1)
    lease.release()
    lease.release()
    PortLease(2).release()


def test_a_lease_of_nothing_is_empty() -> None:
    assert PortLease(0).ports == ()


def test_a_lease_finds_the_ports_before_its_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "FIRST_PORT", 17_410)
    monkeypatch.setattr(resources, "LAST_PORT", 17_414)
    leases = [PortLease(2), PortLease(2)]
    assert sorted(port for lease in leases for port in lease.ports) == [17_410, 17_411, 17_412, 17_413]
    for lease in leases:
        lease.release()


def test_seeding_random_does_not_make_two_leases_equal() -> None:
    import random

    random.seed(1)
    first = PortLease(5)
    first.release()
    random.seed(1)
    second = PortLease(5)
    second.release()
    assert first is not second
