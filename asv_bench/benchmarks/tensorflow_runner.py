"""The yardstick: TensorFlow's own runner of multi-worker tests, kept warm in a process of its own.

It is private to TensorFlow, needs ``dill`` and ``tblib``, and refuses to run outside TensorFlow's own test
main; setting ``_test_main_called`` says that there is one, and shortening ``sys.argv`` keeps its flag parser
away from other programs' options. Nothing else in the project touches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from types import TracebackType

if __name__ in ("__main__", "__mp_main__"):
    # The fork server imports this file as __mp_main__: with TensorFlow in it, its workers start as fast as they can.
    import keras  # noqa: F401
    import tensorflow  # noqa: F401
    from tensorflow.python.distribute import multi_process_lib, multi_process_runner


def _first_all_reduce() -> float:
    # dill sends the function without this module's globals.
    import time

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def reduce() -> object:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    counted = strategy.experimental_local_results(strategy.run(reduce))[0]
    assert int(counted) == strategy.num_replicas_in_sync
    # The monotonic clock is the machine's, so that the parent can subtract its own reading.
    return time.monotonic()


def _serve() -> None:
    results = open(int(sys.argv[1]), "w", buffering=1)  # noqa: SIM115
    sys.argv = sys.argv[:1]
    from pytest_ddl.cluster.resources import PortLease

    multi_process_lib._test_main_called = True
    for line in sys.stdin:
        started = time.monotonic()
        # TensorFlow's own choice of ports needs one more package.
        lease = PortLease(int(line))
        spec = {"worker": [f"127.0.0.1:{port}" for port in lease.ports]}
        result = multi_process_runner.run(_first_all_reduce, cluster_spec=spec, timeout=120)
        ready = max(result.return_value) - started
        results.write(json.dumps([ready, time.monotonic() - started]) + "\n")
        lease.release()


class TensorFlowRunner:
    """A warm process that runs TensorFlow's runner on request. If it cannot run, ``reason`` says why."""

    def __init__(self) -> None:
        self.reason = ""
        # Results have a pipe of their own: the fork server keeps stdout open even when its parent has died,
        # and nobody reads a pipe while TensorFlow's workers fill it with their log.
        results, theirs = os.pipe()
        self._results = open(results)  # noqa: SIM115
        self._log = tempfile.TemporaryFile("w+", prefix="ddl-benchmark-")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), str(theirs)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs],
            text=True,
            start_new_session=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )
        os.close(theirs)

    def __enter__(self) -> TensorFlowRunner:
        # The first run imports TensorFlow in a fork server, as our zygote has done by then.
        self.start_seconds(2)
        return self

    def start_seconds(self, workers: int) -> tuple[float, float] | None:
        """Seconds until all workers have done their first all-reduce, and until the runner returned."""
        if self.reason:
            return None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{workers}\n")
            self._process.stdin.flush()
        line = self._results.readline()
        if line:
            ready, done = json.loads(line)
            return float(ready), float(done)
        status = self._process.wait()
        self._log.seek(0)
        last = (self._log.read().strip().splitlines() or [""])[-1]
        self.reason = f"TensorFlow's runner, which needs dill and tblib, ended with status {status}: {last}"
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With its fork server, which would hold our end of the pipes open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._results, self._log):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


if __name__ == "__main__":
    _serve()
