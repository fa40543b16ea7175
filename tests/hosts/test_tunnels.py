"""Ranks on other hosts connect to Unix sockets of the controller."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.cluster import doors
from pytest_ddl.hosts.tunnels import Tunnels
from tests.polling import wait_until


class Server:
    """Socket of the controller."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(self.address)
        self.socket.listen()
        self.socket.settimeout(30)

    def accept(self) -> socket.socket:
        connection, _address = self.socket.accept()
        connection.settimeout(30)
        return connection


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    with contextlib.closing(made.socket):
        yield made


@pytest.fixture
def reach(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], socket.socket]]:
    """Return a function that connects as a rank does on a host that does not have the socket's file."""
    folder = tmp_path / "doors"
    monkeypatch.setenv(doors.DOORS, str(folder))
    elsewhere = str(tmp_path / "elsewhere" / "server")
    sides: dict[str, Tunnels] = {}

    def to_controller(name: str, number: int, value: Any) -> None:
        side = sides["controller"]
        if name == "tunnel":
            assert value == elsewhere
            side.open(number, server.address)
        else:
            side.through(number, value)

    sides["agent"] = Tunnels(to_controller)
    sides["controller"] = Tunnels(lambda _name, *values: sides["agent"].through(*values))
    sides["agent"].offer(folder, elsewhere)
    yield lambda: doors.connect(elsewhere)
    for side in sides.values():
        side.close()


def test_bytes_travel_both_ways(server: Server, reach: Callable[[], socket.socket]) -> None:
    with reach() as rank, server.accept() as there:
        rank.settimeout(30)
        blob = bytes(range(256)) * 2000
        sending = threading.Thread(target=rank.sendall, args=[blob])
        sending.start()
        found = b""
        while len(found) < len(blob):
            found += there.recv(1 << 16)
        sending.join()
        assert found == blob
        there.sendall(b"an order")
        assert rank.recv(100) == b"an order"


def test_several_tunnels_are_kept_apart(server: Server, reach: Callable[[], socket.socket]) -> None:
    with reach() as first, server.accept() as there_first, reach() as second, server.accept() as there_second:
        for end, text in ((first, b"first"), (second, b"second")):
            end.sendall(text)
        assert (there_first.recv(100), there_second.recv(100)) == (b"first", b"second")


@pytest.mark.parametrize("from_rank", [True, False])
def test_the_end_of_one_side_ends_the_other(
    server: Server, reach: Callable[[], socket.socket], from_rank: bool
) -> None:
    with reach() as rank, server.accept() as there:
        rank.settimeout(30)
        closed, other = (rank, there) if from_rank else (there, rank)
        closed.close()
        assert other.recv(100) == b""


def test_a_socket_that_has_gone_ends_the_connection(server: Server, reach: Callable[[], socket.socket]) -> None:
    server.socket.close()
    with reach() as rank:
        rank.settimeout(30)
        assert rank.recv(100) == b""


def test_a_rank_on_the_same_machine_connects_directly(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(doors.DOORS, raising=False)
    with doors.connect(server.address) as rank, server.accept() as there:
        rank.sendall(b"x")
        assert there.recv(1) == b"x"


def test_a_socket_that_nobody_offers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(doors.DOORS, str(tmp_path))
    with pytest.raises(FileNotFoundError):
        doors.connect(str(tmp_path / "nobody"))


def test_no_thread_is_left(server: Server, reach: Callable[[], socket.socket]) -> None:
    before = {thread for thread in threading.enumerate() if thread.name != "ddl-door"}
    with reach() as rank, server.accept() as there:
        # A tunnel connects before its threads start. They run once a byte has passed.
        rank.sendall(b"x")
        assert there.recv(1) == b"x"
        assert any(thread.name == "ddl-tunnel" for thread in threading.enumerate())
    wait_until(lambda: {thread for thread in threading.enumerate() if thread.name != "ddl-door"} <= before, seconds=30)
