"""A relay leads connections on as they are, and delays, resets or cuts them when a fault asks for it."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from pytest_ddl.faults.rank import RELAYED, point_log, relay, striking
from pytest_ddl.faults.rank.fault import Fault, FaultError, Point
from pytest_ddl.faults.rank.relay import Relay, of_task, relayed
from pytest_ddl.faults.tasks import Tasks
from pytest_ddl.strategies.registry import StrategyRegistry

FAULT = Fault("net-reset", "worker:1", Point("before", "step", 3))


@pytest.fixture
def held():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def started(held, monkeypatch):
    made = []
    popen = relay.subprocess.Popen

    def start(*arguments, **options):
        process = held.enter_context(popen(*arguments, **options))
        held.callback(process.kill)
        made.append(process)
        return process

    monkeypatch.setattr(relay.subprocess, "Popen", start)
    return made


@pytest.fixture
def echo(held):
    """Address of a server that sends back what it gets."""
    server = held.enter_context(socket.create_server(("127.0.0.1", 0)))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    held.callback(server.shutdown, socket.SHUT_RDWR)
    return f"127.0.0.1:{server.getsockname()[1]}"


def connected(held, address):
    host, port = address.split(":")
    return held.enter_context(socket.create_connection((host, int(port)), timeout=30))


def answered(connection, data=b"x"):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        more = connection.recv(1 << 16)
        if not more:
            raise ConnectionError("closed")
        got += more
    return got


def test_data_arrives_unchanged_and_in_order(started, echo, held):
    address = Relay().listen(echo)
    data = os.urandom(1 << 22)
    first, second = connected(held, address), connected(held, address)
    sent = threading.Thread(target=first.sendall, args=[data])
    sent.start()
    got = b""
    while len(got) < len(data):
        got += first.recv(1 << 16)
    sent.join()
    assert got == data
    assert answered(second) == b"x"


def test_the_end_of_a_connection_arrives(started, echo, held):
    connection = connected(held, Relay().listen(echo))
    assert answered(connection) == b"x"
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(1) == b""


def test_a_delay_holds_for_both_directions(started, echo, held):
    one = Relay()
    connection = connected(held, one.listen(echo))
    answered(connection)
    assert one.delay(0.05) == 1
    since = time.monotonic()
    answered(connection)
    assert time.monotonic() - since >= 0.1


def test_a_reset_is_an_error_and_new_connections_are_possible(started, echo, held):
    one = Relay()
    address = one.listen(echo)
    connections = [connected(held, address) for _ in range(2)]
    for connection in connections:
        answered(connection)
    assert one.reset() == 2
    for connection in connections:
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert answered(connected(held, address)) == b"x"


def test_a_cut_delivers_nothing_until_it_ends(started, echo, held):
    one = Relay()
    address = one.listen(echo)
    connection = connected(held, address)
    answered(connection)
    since = time.monotonic()
    assert one.cut(0.3) == 1
    new = connected(held, address)
    for each in (connection, new):
        each.sendall(b"y")
    # The cut began after `since`, so nothing may arrive before this time.
    while time.monotonic() < since + 0.25:
        assert select.select([connection, new], [], [], 0.05)[0] == [] or time.monotonic() >= since + 0.3
    assert [connection.recv(1), new.recv(1)] == [b"y", b"y"]


def test_a_target_that_does_not_listen_is_an_error_of_the_peer(started, held):
    free = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
    free.close()
    connection = connected(held, Relay().listen(address))
    with pytest.raises(ConnectionError):
        answered(connection)


def test_an_address_in_use_is_refused(started, echo, capfd):
    with pytest.raises(RuntimeError, match="the relay ended in 'listen'; the output of this rank has the reason"):
        Relay().listen(echo, echo)
    assert "Address already in use" in capfd.readouterr().err


def test_a_relay_ends_with_the_process_of_its_task(started, echo, held):
    connection = connected(held, Relay().listen(echo))
    answered(connection)
    (process,) = started
    # The kernel does the same when the process of the task is killed.
    process.stdin.close()
    assert process.wait(30) == 0
    with pytest.raises(ConnectionError):
        answered(connection)


@pytest.mark.parametrize(
    ("own", "wanted", "other"),
    [
        ("worker:1", "worker:1", (True, True)),
        ("worker:0", "worker:1", (False, False)),
        ("worker:0", "worker:0,worker:1", (True, True)),
        ("chief:0", "worker:1", (False, True)),
        ("chief:0", "chief:0", (True, True)),
    ],
)
def test_a_process_uses_relays_for_what_a_fault_may_disturb(started, monkeypatch, own, wanted, other):
    monkeypatch.setattr(relay, "_relays", {})
    monkeypatch.setenv(RELAYED, wanted)
    free = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in free)
    for one in free:
        one.close()
    used = relayed(addresses, ["worker:0", "worker:1"], own, "127.0.0.1:9")
    assert tuple(ours != theirs for ours, theirs in zip(used, addresses, strict=True)) == other
    if own.startswith("worker") and other[0]:
        assert used[int(own[-1])] == "127.0.0.1:9"


def test_a_task_without_a_relay_is_named():
    with pytest.raises(RuntimeError, match="the connections of worker:7 do not go through a relay of this process"):
        of_task("worker:7")


@pytest.mark.parametrize("count", [0, 2])
def test_a_fault_without_a_connection_has_not_struck(tmp_path, monkeypatch, count):
    monkeypatch.setitem(striking.DISTURBANCES, "net-reset", lambda _relay, _seconds: count)
    monkeypatch.setattr(relay, "_relays", {"worker:1": None})
    points = point_log.Points(tmp_path / "log", [FAULT])
    points.begin("step", 3)
    points.close()
    (reached,) = point_log.read(tmp_path / "log")
    assert reached.point == FAULT.point
    assert (reached.struck, reached.connections) == (FAULT if count else None, count)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("mirrored", "the tasks of this strategy have no connections between processes of their own"),
        ("parameter_server", "the servers have processes of their own with [processes=separate]"),
    ],
)
def test_a_strategy_without_a_network_is_refused(strategy, told):
    known = StrategyRegistry()
    tasks = Tasks.of(known.default(strategy), known)
    fault = Fault("net-delay", tasks.ranks[0], Point("before", "step", 3))
    with pytest.raises(FaultError) as caught:
        tasks.refuse([fault])
    with pytest.raises(FaultError):
        tasks.refuse_kind("net-partition")
    assert told in str(caught.value)
    assert not tasks.strike([fault])


def test_signals_of_a_group_end_a_relay(started, echo):
    # The cluster ends the process group of a rank, to which the relay belongs.
    Relay().listen(echo)
    (process,) = started
    assert os.getpgid(process.pid) == os.getpgid(0)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
