"""A gateway over a command: it starts, or says what came instead, without waiting."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import execnet
import pytest

from pytest_ddl.hosts.execnet_adapter import BOOTSTRAP_LINE, NotStartedError, open_gateway
from tests.polling import wait_until

PYTHON = (sys.executable, "-u", "-c", BOOTSTRAP_LINE)


@pytest.fixture
def group() -> Iterator[execnet.Group]:
    made = execnet.Group()
    yield made
    made.terminate(5.0)


def test_a_gateway_runs_code_and_ends_with_its_group(group: execnet.Group) -> None:
    gateway = open_gateway(group, "a", PYTHON)
    assert list(group) == [gateway]
    channel = gateway.remote_exec("import os\nchannel.send((os.getpid(), channel.receive()))")
    channel.send(b"x" * 3_000_000)
    pid, data = channel.receive(30.0)
    assert (type(pid), len(data)) == (int, 3_000_000)
    group.terminate(5.0)
    assert not list(group)
    with contextlib.suppress(EOFError):
        channel.receive(5.0)
    # The thread that receives says that nothing more comes, and closes the channel after that.
    wait_until(channel.isclosed)


@pytest.mark.parametrize(
    ("script", "printed", "status"),
    [
        ("exit 3", "", 3),
        ("kill -9 $$", "", -9),
        ("echo 1 package can be updated; exit 4", "1 package can be updated", 4),
        ("echo welcome; read line; sleep 60", "welcome", None),
        # More than a pipe holds, and it reads nothing meanwhile.
        ('yes welcome | head -c 1000000; exec "$@"', "welcome", None),
    ],
)
def test_what_comes_instead_is_reported(group: execnet.Group, script: str, printed: str, status: int | None) -> None:
    with pytest.raises(NotStartedError) as raised:
        open_gateway(group, "a", ["sh", "-c", script, "sh", *PYTHON])
    assert (raised.value.printed.split("\n")[0], raised.value.status) == (printed, status)
    assert not list(group)


def test_a_missing_program_is_an_error_of_the_system(group: execnet.Group) -> None:
    with pytest.raises(FileNotFoundError):
        open_gateway(group, "a", ["/no/such/program"])
