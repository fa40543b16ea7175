"""Transport ``tf_config``: the tasks of a training job on a platform that sets ``TF_CONFIG``.

Vertex AI and Kubeflow run the same command in each task. The chief, or worker 0, is the controller: its pytest collects
and runs the tests. Each other task dials in to it. See :mod:`pytest_ddl.hosts.trust` for who may.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddl.hosts import bridge
from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError

PATH_VARIABLE = "_PYTEST_DDL_TASKS"
"""Environment variable with the path of the controller's Unix socket. Workers of pytest-xdist inherit it."""
_CHIEFS = ("chief", "master")
_LAST_PORT = 65535
_SECONDS = re.compile(r"\d+(?:\.\d+)?")


class TfConfig:
    """Tasks of ``TF_CONFIG``, without the evaluator. The controller's own task is a host too."""

    name = "tf_config"
    summary = "the tasks of TF_CONFIG, as Vertex AI and Kubeflow set it: run the same pytest line in each task"
    defaults: Mapping[str, str] = {"port": "", "wait": "300"}

    def __init__(self, arguments: TransportArguments) -> None:
        check_settings(arguments)
        self._job = read_tf_config(os.environ.get("TF_CONFIG", ""))
        self._path = os.environ.get(PATH_VARIABLE, "")
        if not self._path:
            raise TransportError(
                "--ddl-launcher=tf_config works only where pytest runs: start `pytest --ddl-launcher=tf_config …` in "
                "every task"
            )

    def hosts(self) -> Sequence[Host]:
        try:
            with bridge.ask(self._path, None, []) as local:
                problem = bridge.problem_of(bridge.read_all(local))
        except OSError as error:
            problem = f"the pytest process that listens for tasks has ended ({error.strerror}); start the run again"
        if problem:
            raise TransportError(f"--ddl-launcher=tf_config: {problem}")
        return [Host(name, address) for name, (address, _port) in self._job.tasks.items()]

    def command(self, host: Host, program: Sequence[str]) -> Sequence[str]:
        if host.name == self._job.own:
            return program
        path = str(Path(bridge.__file__).resolve())
        return [sys.executable, "-I", "-S", path, self._path, host.name, json.dumps(list(program))]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class TfConfigJob:
    """Job that ``TF_CONFIG`` describes."""

    own: str
    """Name of this task, such as ``worker:1``."""
    controller: str
    tasks: Mapping[str, tuple[str, int]]
    """Address and port of each task that runs programs, the controller first."""


def check_settings(arguments: TransportArguments) -> tuple[int, float]:
    """Return the port, which is 0 for that of ``TF_CONFIG``, and the time to wait for tasks.

    :raises ArgumentError: if a setting is wrong.
    """
    if arguments.hosts:
        raise TransportArgumentError("tf_config takes its hosts from TF_CONFIG; leave --ddl-hosts out")
    given = arguments.settings(TfConfig.defaults)
    port, wait = given["port"], given["wait"]
    if port and not (port.isdigit() and 0 < int(port) <= _LAST_PORT):
        raise TransportArgumentError(f"port={port!r} is not a number from 1 to {_LAST_PORT}")
    if not _SECONDS.fullmatch(wait):
        raise TransportArgumentError(f"wait={wait!r} is not a number of seconds")
    return int(port or 0), float(wait)


def read_tf_config(text: str) -> TfConfigJob:
    """Return what a value of ``TF_CONFIG`` says.

    :raises TransportError: if it describes no cluster with a chief or a worker 0, or not this task.
    """
    if not text:
        raise TransportError("--ddl-launcher=tf_config: TF_CONFIG is not set; the platform sets it in each task")
    try:
        found = json.loads(text)
        cluster, task = found["cluster"], found["task"]
        own = f"{task['type']}:{int(task['index'])}"
        if any(isinstance(places, dict) for places in cluster.values()):
            raise _wrong(text, "it lists only some tasks; set enableDynamicWorker: false")
        tasks = {
            f"{kind}:{index}": _place(place)
            for kind, places in cluster.items()
            if kind != "evaluator"
            for index, place in enumerate(places)
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _wrong(text, 'it is not {"cluster": {"worker": ["HOST:PORT", …]}, "task": {…}}') from None
    controller = next((name for name in (*(f"{kind}:0" for kind in _CHIEFS), "worker:0") if name in tasks), None)
    if controller is None:
        raise _wrong(text, "the cluster has neither a chief nor a worker")
    if own not in tasks and task["type"] != "evaluator":
        raise _wrong(text, f"the cluster has no task {own}, which is this one")
    return TfConfigJob(own, controller, {controller: tasks.pop(controller), **tasks})


def _place(text: str) -> tuple[str, int]:
    host, _colon, port = text.rpartition(":")
    if not host or not 0 < int(port) <= _LAST_PORT:
        raise ValueError(text)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _wrong(text: str, problem: str) -> TransportError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return TransportError(f"--ddl-launcher=tf_config: TF_CONFIG={shown!r} cannot be used: {problem}")
