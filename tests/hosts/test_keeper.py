"""The scratch folder of a session over several hosts goes away with a killed pytest process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_ddl.cluster import session_folder
from tests.polling import wait_until

_PROGRAM = """
import subprocess, sys
from pytest_ddl.cluster import session_folder
lock = session_folder.hold(sys.argv[1])
subprocess.Popen([sys.executable, session_folder.__file__, sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_held", [False, True])
def test_a_killed_process_leaves_no_folder(tmp_path: Path, is_held: bool) -> None:
    session = tmp_path / f"{session_folder.PREFIX}x"
    own = session / f"{session_folder.ZYGOTE_PREFIX}1"
    own.mkdir(parents=True)
    held = session_folder.hold(str(session)) if is_held else None
    command = [sys.executable, "-c", _PROGRAM, str(session), str(own)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert own.exists()
        process.kill()
    wait_until(lambda: not own.exists() and (is_held or not session.exists()), seconds=30.0)
    # Another worker of pytest-xdist was killed, and not the process of the session.
    assert session.exists() is is_held
    if held is not None:
        os.close(held)
