"""Runs scripts as processes that find TensorFlow imported: forks of one process, which imports it once for all."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


class Forks:
    """A process that has imported TensorFlow and Keras, and the scripts that its forks run."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ddl-forks-")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            env={**os.environ, **environ},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, script: Path, folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a script in a folder.

        :raises TimeoutError: if it needs more seconds than this.
        """
        outputs = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(json.dumps([str(script.resolve()), str(folder), *map(str, outputs)]) + "\n")
        pipe_in.flush()
        if not select.select([pipe_out], [], [], timeout)[0]:
            self.end()
            raise TimeoutError(f"{script} takes more than {timeout} s")
        status = int(pipe_out.readline() or "-1")
        printed, errors = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
        return subprocess.CompletedProcess([str(script)], status, printed, errors)

    def end(self) -> None:
        """End the process and its forks."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A process for the scripts of a module, which see neither a GPU nor the log of TensorFlow."""
    made = Forks({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"})
    yield made
    made.end()


def _become(script: str, folder: str, *outputs: str) -> None:
    """Do what the interpreter does for ``python SCRIPT``."""
    os.chdir(folder)
    for number, path in enumerate(outputs, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [script]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


def _serve() -> None:
    import keras  # noqa: F401
    import tensorflow as tf  # noqa: F401

    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            _become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
