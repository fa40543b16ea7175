"""Run a worker that serves requests over stdin and stdout: ``python -m pytest_ddl.cluster.stdio_worker``.

A launcher starts this program if it has only a stream of bytes to another process, for example through ``ssh``.
Requests arrive on stdin, and each reply leaves on stdout. They have the format of
:class:`multiprocessing.connection.Connection`: the length as four bytes in network order, then that many bytes. All
output of the user's code and the stacks of the worker go to stderr. The worker imports TensorFlow before it reads its
first request. It leads a process group, and kills this group when stdin ends.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from typing import NoReturn

from pytest_ddl.cluster.preload import PRELOAD, import_all


def main() -> NoReturn:
    # The copies are not inherited by programs that the user's code starts.
    requests, replies = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    problem = import_all(PRELOAD)
    if problem:
        sys.exit(problem)
    from pytest_ddl.cluster.worker import Worker

    os._exit(Worker(requests, replies, stacks_fd=2).main())


if __name__ == "__main__":
    main()
