"""The end of a connection to a host is described while its log is removed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_ddl.hosts.link import HostLink


class _RemovedLog:
    """Log of a transport's command that is removed after some reads."""

    def __init__(self, text: str, reads: int) -> None:
        self._text, self._left = text, reads

    def read_text(self, **_options: str) -> str:
        self._left -= 1
        if self._left < 0:
            raise FileNotFoundError
        return self._text


@pytest.mark.parametrize("reads", range(4))
def test_an_end_is_described_when_the_log_is_removed(reads: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as waiting:
        link = object.__new__(HostLink)
        vars(link)["_log"] = _RemovedLog(f"{waiting.pid}\nhello\n", reads)
        assert link._end().endswith("it printed: hello") == (reads > 0)
