"""The yardstick: TensorFlow's own runner of multi-worker tests, kept warm in a process of its own.

It is private to TensorFlow, needs ``dill`` and ``tblib``, and refuses to run outside TensorFlow's own test
main; setting ``_test_main_called`` says that there is one, and shortening ``sys.argv`` keeps its flag parser
away from other programs' options. Nothing else in the project touches it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import TracebackType
from typing import Any


def _first_all_reduce() -> float:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def reduce() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(1.0))

    counted = strategy.experimental_local_results(strategy.run(reduce))[0]
    assert int(counted) == strategy.num_replicas_in_sync
    # The monotonic clock is the machine's, so that the parent can subtract its own reading.
    return time.monotonic()


def _serve() -> None:
    sys.argv = sys.argv[:1]
    from tensorflow.python.distribute import multi_process_lib, multi_process_runner

    from pytest_ddl.cluster.ports import PortLease

    multi_process_lib._test_main_called = True
    for line in sys.stdin:
        started = time.monotonic()
        # TensorFlow's own choice of ports needs one more package.
        lease = PortLease(int(line))
        spec = {"worker": [f"127.0.0.1:{port}" for port in lease.ports]}
        result = multi_process_runner.run(_first_all_reduce, cluster_spec=spec, timeout=120)
        ready = max(result.return_value) - started
        print("RESULT " + json.dumps([ready, time.monotonic() - started]), flush=True)
        lease.release()


class TensorFlowRunner:
    """A warm process that runs TensorFlow's runner on request; ``reason`` says why where it cannot."""

    def __init__(self) -> None:
        self.reason = ""
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )

    def __enter__(self) -> TensorFlowRunner:
        # The first run imports TensorFlow in a fork server, as our zygote has done by then.
        self.start_seconds(2)
        return self

    def start_seconds(self, workers: int) -> tuple[float, float] | None:
        """Seconds until all workers have done their first all-reduce, and until the runner returned."""
        if self.reason:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{workers}\n")
            self._process.stdin.flush()
        except OSError:
            pass
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                ready, done = json.loads(line.removeprefix("RESULT "))
                return float(ready), float(done)
        self.reason = f"TensorFlow's runner ended with status {self._process.wait()}; it needs dill and tblib"
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    _serve()
