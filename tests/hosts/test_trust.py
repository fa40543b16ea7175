"""Attacks on the port at which tasks dial in: none gets past the handshake, and none keeps a real task waiting."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_ddl.hosts import bridge, rendezvous, trust
from pytest_ddl.hosts.frames import receive_message
from pytest_ddl.hosts.rendezvous import Rendezvous
from pytest_ddl.hosts.trust import Claim, HandshakeError, KeyProblemError, Purpose, RefusedError
from tests.polling import wait_until

KEY = bytes(range(100, 132))
WRONG = bytes(range(32))
CHALLENGE, ANSWER = 48, 145
"""Sizes of the first two frames."""
TASK = Claim(Purpose.CONTROL, "worker:1")


@dataclass
class Door:
    """A controller that listens, and what it has reported."""

    port: int
    controller: Rendezvous
    notes: list[str] = field(default_factory=list)

    def connect(self, port: int = 0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.port), 10.0)

    def dial(self, claim: Claim = TASK, key: bytes = KEY, port: int = 0) -> socket.socket:
        """Connect as a task does."""
        connection = self.connect(port)
        try:
            trust.prove(connection, key, claim)
        except BaseException:
            connection.close()
            raise
        return connection

    def refuses(self, reason: str) -> None:
        wait_until(lambda: any(reason in note for note in self.notes), f"{reason!r} is not in {self.notes}", 10.0)

    def admits(self) -> None:
        """The real task connects at once, and gets the status at the end."""
        started = time.monotonic()
        with self.dial() as connection:
            assert time.monotonic() - started < trust.HANDSHAKE_WAIT / 2
            threading.Thread(target=self.controller.tell_status, args=(7,), daemon=True).start()
            assert receive_message(connection) == {"status": 7}


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    notes: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    made = Rendezvous(KEY, ["worker:1", "worker:2"], listener, str(tmp_path / "tasks"), 0.0, notes.append)
    yield Door(port, made, notes)
    made.close()
    shown = "\n".join(notes)
    assert KEY.hex() not in shown
    assert repr(KEY) not in shown


def rest(connection: socket.socket) -> bytes:
    """Return what arrives until the other side closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            found += part
    return found


class Tap:
    """A machine between a task and the controller that records what both send."""

    def __init__(self, port: int) -> None:
        self.sent, self.received = bytearray(), bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._target = port
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        task = self._listener.accept()[0]
        controller = socket.create_connection(("127.0.0.1", self._target))
        other = threading.Thread(target=self._copy, args=(task, controller, self.sent), daemon=True)
        other.start()
        self._copy(controller, task, self.received)
        other.join()
        for one in (task, controller, self._listener):
            one.close()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, into: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                into += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_a_task_with_the_key_gets_the_status(door: Door) -> None:
    door.admits()
    assert door.notes == []


def test_a_wrong_key_is_refused(door: Door) -> None:
    with pytest.raises(RefusedError, match="give all tasks the same key"):
        door.dial(key=WRONG)
    door.refuses("it does not know the key")
    door.admits()


def test_no_key_is_refused(door: Door) -> None:
    with door.connect() as connection:
        connection.sendall(bytes(ANSWER))
        assert len(rest(connection)) == CHALLENGE
    door.refuses("it does not know the key")
    door.admits()


def test_a_recorded_handshake_is_of_no_use_later(door: Door) -> None:
    tap = Tap(door.port)
    door.dial(port=tap.port).close()
    assert len(tap.sent) == ANSWER
    wait_until(lambda: not door.controller._controls, "the first connection does not end")
    with door.connect() as connection:
        connection.sendall(tap.sent)
        assert len(rest(connection)) == CHALLENGE
    door.refuses("it does not know the key")
    door.admits()


def test_a_recorded_controller_is_of_no_use_later(door: Door) -> None:
    tap = Tap(door.port)
    door.dial(port=tap.port).close()
    challenge, verdict = bytes(tap.received[:CHALLENGE]), bytes(tap.received[CHALLENGE:])
    fake = impostor(lambda _answer: verdict, challenge)
    with fake as port, pytest.raises(RefusedError, match="it does not know the key"):
        door.dial(port=port)


@contextlib.contextmanager
def impostor(verdict: Callable[[bytes], bytes], challenge: bytes = b"") -> Iterator[int]:
    """Listen like a controller that does not know the key, and yield the port.

    :param verdict: function that makes the last frame from the task's answer.
    """

    def serve() -> None:
        with listener.accept()[0] as connection:
            connection.sendall(challenge or trust.VERSION + bytes(32))
            connection.sendall(verdict(connection.recv(ANSWER, socket.MSG_WAITALL)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10.0)


def test_a_task_believes_no_controller_that_sends_its_own_proof_back(door: Door) -> None:
    with impostor(lambda answer: b"w" + answer[-32:]) as port, pytest.raises(RefusedError, match="not know the key"):
        door.dial(port=port)


def test_a_controller_believes_no_task_that_sends_a_controllers_proof_back(door: Door) -> None:
    # The attacker lets a real task prove itself on one connection, and uses the controller's proof on another.
    with door.dial(Claim(Purpose.CONTROL, "worker:2")), door.connect() as first, door.connect() as second:
        challenge = first.recv(CHALLENGE, socket.MSG_WAITALL)
        second.recv(CHALLENGE, socket.MSG_WAITALL)
        proof = trust._mac(KEY, trust._CONTROLLER, challenge + TASK.fields() + challenge[16:])
        second.sendall(TASK.fields() + challenge[16:] + proof)
        first.sendall(TASK.fields() + challenge[16:] + proof)
        assert rest(first) == rest(second) == b""
    door.refuses("it does not know the key")
    door.admits()


def test_each_field_is_proven(door: Door) -> None:
    # A machine in between that changes the purpose, the ticket or the name.
    for place in (0, 5, 17 + len("worker:")):
        with door.connect() as connection:
            challenge = connection.recv(CHALLENGE, socket.MSG_WAITALL)
            said = challenge + TASK.fields() + bytes(range(32))
            answer = bytearray(said[CHALLENGE:] + trust._mac(KEY, trust._TASK, said))
            answer[place] ^= 3
            connection.sendall(answer)
            assert rest(connection) == b""
    wait_until(lambda: len(door.notes) == 3, seconds=10.0)
    door.admits()


def test_a_changed_verdict_is_noticed(door: Door) -> None:
    connection = door.connect()
    listener = socket.create_server(("127.0.0.1", 0))

    def meddle() -> None:
        with listener.accept()[0] as task, connection:
            task.sendall(connection.recv(CHALLENGE, socket.MSG_WAITALL))
            connection.sendall(task.recv(ANSWER, socket.MSG_WAITALL))
            verdict = connection.recv(33, socket.MSG_WAITALL)
            task.sendall(b"t" + verdict[1:])

    with listener:
        threading.Thread(target=meddle, daemon=True).start()
        with pytest.raises(RefusedError, match="not know the key"):
            door.dial(port=listener.getsockname()[1])


class Bomb:
    """Object whose pickle makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_nothing_is_deserialized_before_the_handshake(door: Door, tmp_path: Path) -> None:
    for data in (
        pickle.dumps(Bomb(tmp_path / "made")),
        json.dumps({"run": "00" * 16, "program": ["mkdir", str(tmp_path / "made")]}).encode(),
    ):
        for whole in (data, data.ljust(ANSWER, b"\0"), len(data).to_bytes(4, "big") + data):
            with door.connect() as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(whole)
                    connection.shutdown(socket.SHUT_WR)
                assert len(rest(connection)) in (0, CHALLENGE)
    door.admits()
    assert not (tmp_path / "made").exists()


def send_again_and_again(connection: socket.socket, data: bytes, times: int, pause: float = 0.0) -> None:
    with connection:
        for _ in range(times):
            connection.sendall(data)
            threading.Event().wait(pause)


def test_an_oversized_frame_is_not_read(door: Door) -> None:
    # The controller closes the connection after 145 bytes, and the kernel's buffers take some more.
    with pytest.raises(ConnectionError):
        send_again_and_again(door.connect(), bytes(1 << 20), 1000)
    door.refuses("it does not know the key")
    door.admits()


def test_slow_clients_keep_nobody_waiting(door: Door) -> None:
    with contextlib.ExitStack() as open_ones:
        slow = [open_ones.enter_context(door.connect()) for _ in range(2 * rendezvous.MAX_STRANGERS)]
        for connection in slow[-3:]:
            connection.sendall(b"x")
        door.admits()
        # The limit has closed the oldest of them, long before their time is over.
        started = time.monotonic()
        assert len(rest(slow[0])) in (0, CHALLENGE)
        assert time.monotonic() - started < trust.HANDSHAKE_WAIT / 2
        assert len(door.notes) <= rendezvous.MAX_NOTES + 1


def test_a_slow_client_is_closed_however_often_it_sends_a_byte(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "HANDSHAKE_WAIT", 0.5)
    with pytest.raises(ConnectionError):
        send_again_and_again(door.connect(), b"x", ANSWER - 1, pause=0.05)
    door.refuses("no handshake within")


def test_a_second_process_cannot_be_a_task_that_is_connected(door: Door) -> None:
    with door.dial() as first:
        with pytest.raises(RefusedError, match="already connected as worker:1"):
            door.dial()
        door.refuses("worker:1 is already connected")
        threading.Thread(target=door.controller.tell_status, args=(3,), daemon=True).start()
        assert receive_message(first) == {"status": 3}
    wait_until(lambda: not door.controller._controls, seconds=10.0)
    door.admits()


@pytest.mark.parametrize("name", ["worker:9", "", "x" * 64, "worker:0"])
def test_a_task_of_another_job_is_refused(door: Door, name: str) -> None:
    with pytest.raises(RefusedError, match="TF_CONFIG there differs"):
        door.dial(Claim(Purpose.CONTROL, name))
    door.refuses("is not a task of this run")


def test_a_ticket_that_nobody_gave_is_refused(door: Door) -> None:
    with door.dial(), pytest.raises(RefusedError):
        door.dial(Claim(Purpose.PROGRAM, "worker:1", bytes(16)))
    door.refuses("ticket that was not given")


def test_a_ticket_is_for_one_connection_of_one_task(door: Door, tmp_path: Path) -> None:
    with (
        door.dial() as control,
        door.dial(Claim(Purpose.CONTROL, "worker:2")),
        bridge.ask(str(tmp_path / "tasks"), "worker:1", ["cat"]) as local,
    ):
        order = receive_message(control)
        assert order is not None
        ticket = bytes.fromhex(order["run"])
        with pytest.raises(RefusedError):
            door.dial(Claim(Purpose.PROGRAM, "worker:2", ticket))
        with door.dial(Claim(Purpose.PROGRAM, "worker:1", ticket)):
            _data, numbers, _flags, _address = socket.recv_fds(local, 1, 1)
            os.close(numbers[0])
            with pytest.raises(RefusedError):
                door.dial(Claim(Purpose.PROGRAM, "worker:1", ticket))


def test_an_evaluator_waits_for_the_status_only(door: Door) -> None:
    with door.dial(Claim(Purpose.CONTROL, "evaluator:0")) as connection:
        threading.Thread(target=door.controller.tell_status, args=(1,), daemon=True).start()
        assert receive_message(connection) == {"status": 1}


def test_another_service_is_no_controller() -> None:
    with (
        impostor(lambda _answer: b"", b"HTTP/1.1 400 Bad Request".ljust(CHALLENGE)) as port,
        socket.create_connection(("127.0.0.1", port), 10.0) as connection,
        pytest.raises(RefusedError, match="not the controller"),
    ):
        trust.prove(connection, KEY, TASK)


def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "HANDSHAKE_WAIT", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_connection(silent.getsockname()) as connection,
        pytest.raises(HandshakeError, match="no handshake within"),
    ):
        trust.prove(connection, KEY, TASK)


# ----- the key -----


def key_file(path: Path, data: bytes, mode: int = 0o600) -> dict[str, str]:
    path.write_bytes(data)
    path.chmod(mode)
    return {trust.KEY_FILE_VARIABLE: str(path)}


def test_a_key_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    assert trust.read_key({trust.KEY_VARIABLE: KEY.hex()}) == KEY
    assert trust.read_key(key_file(tmp_path / "raw", KEY)) == KEY
    assert trust.read_key(key_file(tmp_path / "text", KEY.hex().encode() + b"\n", 0o400)) == KEY
    assert repr(trust.read_key({trust.KEY_VARIABLE: KEY.hex()})) == "<key>"


@pytest.mark.parametrize("text", [KEY.hex()[:-2], KEY.hex() + "00", "g" * 64, "é" * 64])
def test_a_wrong_key_in_the_environment_is_not_shown(text: str) -> None:
    with pytest.raises(KeyProblemError, match="PYTEST_DDL_KEY has not 64 hexadecimal digits") as raised:
        trust.read_key({trust.KEY_VARIABLE: text})
    assert text not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_that_is_no_random_number_is_refused() -> None:
    with pytest.raises(KeyProblemError, match="can be guessed; make one with `openssl rand -hex 32`"):
        trust.read_key({trust.KEY_VARIABLE: "00" * 32})


def test_a_missing_key_says_how_to_make_one() -> None:
    with pytest.raises(KeyProblemError, match=r"not set.*openssl rand -hex 32"):
        trust.read_key({})
    with pytest.raises(KeyProblemError, match="both set"):
        trust.read_key({trust.KEY_VARIABLE: KEY.hex(), trust.KEY_FILE_VARIABLE: "key"})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o666, 0o604])
def test_a_key_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    with pytest.raises(KeyProblemError) as raised:
        trust.read_key(key_file(path, KEY, mode))
    assert f"(mode {mode:04o}); run `chmod 600 {path}`" in str(raised.value)


def test_a_key_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyProblemError, match="cannot be read \\(No such file"):
        trust.read_key({trust.KEY_FILE_VARIABLE: str(tmp_path / "none")})
    with pytest.raises(KeyProblemError, match="and not 32 bytes"):
        trust.read_key(key_file(tmp_path / "key", b"secret"))
