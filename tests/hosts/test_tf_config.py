"""The transport ``tf_config``: what TF_CONFIG says, programs on other tasks, and whole runs in two networks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl import joining
from pytest_ddl.hosts import bridge, rendezvous
from pytest_ddl.hosts.frames import receive_message
from pytest_ddl.hosts.rendezvous import Rendezvous
from pytest_ddl.hosts.task import HostTask, TaskError
from pytest_ddl.hosts.transport import Host, TransportArgumentError, TransportArguments, TransportError
from pytest_ddl.hosts.transports.netns import Netns
from pytest_ddl.hosts.transports.tf_config import PATH_VARIABLE, TfConfig, check_settings, read_tf_config
from tests.plugin.conftest import Outcome, Project, new_project
from tests.polling import wait_until

__all__ = ["new_project"]

KEY = bytes(range(100, 132))
PLACES = ["10.0.0.1:2222", "10.0.0.2:2222"]


def tf_config(places: Sequence[str], index: int, kind: str = "worker", **others: Any) -> str:
    return json.dumps({"cluster": {"worker": places, **others}, "task": {"type": kind, "index": index}})


def arguments(**given: str) -> TransportArguments:
    return TransportArguments("tf_config", Path(), {}, given=given)


# ----- TF_CONFIG -----


def test_the_first_worker_is_the_controller() -> None:
    job = read_tf_config(tf_config(PLACES, 1, ps=["[fd00::3]:1"], evaluator=["10.0.0.9:1"]))
    assert (job.own, job.controller) == ("worker:1", "worker:0")
    places = {"worker:0": ("10.0.0.1", 2222), "worker:1": ("10.0.0.2", 2222), "ps:0": ("fd00::3", 1)}
    assert job.tasks == places


@pytest.mark.parametrize("kind", ["chief", "master"])
def test_a_chief_is_the_controller(kind: str) -> None:
    job = read_tf_config(tf_config(PLACES, 0, "evaluator", **{kind: ["job-chief-0:2222"]}))
    assert (job.own, job.controller) == ("evaluator:0", f"{kind}:0")
    assert list(job.tasks) == [f"{kind}:0", "worker:0", "worker:1"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "TF_CONFIG is not set"),
        ("{", "it is not {"),
        ("[]", "it is not {"),
        ('{"cluster": {}}', "it is not {"),
        (tf_config(["host"], 0), "it is not {"),
        (tf_config(["host:0"], 0), "it is not {"),
        (tf_config(PLACES, 2), "the cluster has no task worker:2"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "neither a chief nor a worker"),
        ('{"cluster": {"worker": {"1": "a:1"}}, "task": {"type": "worker", "index": 1}}', "enableDynamicWorker: false"),
    ],
)
def test_a_wrong_tf_config_is_named_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(TransportError) as raised:
        read_tf_config(text)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_settings_are_checked() -> None:
    assert check_settings(arguments()) == (0, 300.0)
    assert check_settings(arguments(port="4000", wait="2.5")) == (4000, 2.5)
    for given in ({"port": "0"}, {"port": "70000"}, {"port": "a"}, {"wait": "-1"}, {"wait": "soon"}, {"ports": "1"}):
        with pytest.raises(TransportArgumentError, match=next(iter(given))):
            check_settings(arguments(**given))
    with pytest.raises(TransportArgumentError, match="leave --ddl-hosts out"):
        check_settings(TransportArguments("tf_config", Path(), {}, hosts="a"))


def test_the_controller_listens_at_its_own_address_only() -> None:
    with joining.listen("127.0.0.1", 0) as listener:
        place, port = listener.getsockname()
        assert place == "127.0.0.1"
        with pytest.raises(TransportError, match=rf"127\.0\.0\.1 port {port}: Address already in use"):
            joining.listen("127.0.0.1", port)
    with pytest.raises(TransportError, match=r"192\.0\.2\.1 port 1: "):
        joining.listen("192.0.2.1", 1)


def test_a_name_means_an_address_that_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(_host: str, *_rest: object, **_more: object) -> list[Any]:
        return [(None, None, None, "", (place, 0)) for place in ("127.0.1.1", "10.1.2.3")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(joining, "own_address", lambda: "10.9.9.9")
    assert joining._own_addresses("job-worker-0") == ["10.1.2.3", "10.9.9.9"]
    assert joining._own_addresses("10.5.5.5") == ["10.5.5.5"]


# ----- programs on another task -----


class Joined:
    """A controller and one task of this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        place = listener.getsockname()
        self.notes: list[str] = []
        self.ends: list[int | TaskError] = []
        self.controller = Rendezvous(KEY, ["worker:1"], listener, str(folder / "tasks"), 0.0, self.notes.append)
        self.task = HostTask("worker:1", "worker:0", place, KEY)
        monkeypatch.setenv("TF_CONFIG", tf_config(["a:1", "b:1"], 0))
        monkeypatch.setenv(PATH_VARIABLE, str(folder / "tasks"))
        self.transport = TfConfig(arguments())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.ends.append(self.task.serve(10.0, self.notes.append))
        except TaskError as error:
            self.ends.append(error)

    def end_of_task(self) -> int | TaskError:
        self._thread.join(20.0)
        return self.ends[0]

    def start(self, *program: str) -> subprocess.Popen[bytes]:
        command = self.transport.command(Host("worker:1", "b"), program)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    made = Joined(tmp_path, monkeypatch)
    yield made
    made.controller.close()


def test_a_command_passes_all_bytes_in_both_directions(joined: Joined) -> None:
    data = secrets.token_bytes(3_000_001)
    out, err = joined.start("cat").communicate(data, timeout=30.0)
    assert out == data
    assert err == b""


def test_several_programs_run_at_once_and_after_each_other(joined: Joined) -> None:
    for _ in range(2):
        several = [joined.start("cat") for _ in range(4)]
        for number, one in enumerate(several):
            assert one.communicate(str(number).encode(), timeout=30.0)[0] == str(number).encode()


def test_the_own_task_needs_no_connection(joined: Joined) -> None:
    assert [host.name for host in joined.transport.hosts()] == ["worker:0", "worker:1"]
    assert joined.transport.command(Host("worker:0", "a"), ["cat"]) == ["cat"]


def test_a_program_that_ends_badly_says_why(joined: Joined) -> None:
    out, err = joined.start("sh", "-c", "echo out; echo sorry >&2; exit 3").communicate(timeout=30.0)
    assert out == b"out\n"
    assert err == b"on the task worker:1, its Python has ended with status 3; sorry\n"
    _out, err = joined.start("no-such-program").communicate(timeout=30.0)
    assert b"`no-such-program` cannot be started (No such file or directory); set [python=PATH]" in err


def test_a_program_that_ends_before_its_connection_is_known_says_why(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_the_end(_connection: object) -> None:
        wait_until(lambda: not joined.controller._orders, "the program has not ended", 20.0)

    joined.transport.hosts()
    monkeypatch.setattr(rendezvous, "notice_loss", wait_for_the_end)
    for program, text in (("true", b""), ("echo sorry >&2; exit 3", b"has ended with status 3; sorry")):
        command = joined.start("sh", "-c", f"echo out; {program}")
        out, err = command.communicate(timeout=30.0)
        assert out == b"out\n"
        assert text in err
        assert command.returncode == bool(text)
    _out, err = joined.start("no-such-program").communicate(timeout=30.0)
    assert b"cannot be started" in err


def test_a_command_whose_pytest_ends_has_not_succeeded(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as pytest_process:
        pytest_process.bind(str(tmp_path / "tasks"))
        pytest_process.listen(1)
        command = [sys.executable, "-I", "-S", bridge.__file__, str(tmp_path / "tasks"), "worker:1", '["cat"]']
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        asked, _address = pytest_process.accept()
        program, ours = socket.socketpair()
        with program, ours, asked:
            assert receive_message(asked) == {"task": "worker:1", "program": ["cat"]}
            socket.send_fds(asked, [b"x"], [program.fileno()])
        _out, err = started.communicate(timeout=30.0)
    assert (started.returncode, err) == (1, b"pytest has ended\n")


def test_a_killed_command_ends_its_program(joined: Joined, tmp_path: Path) -> None:
    command = joined.start("sh", "-c", f"echo $$; cat; echo ended > {tmp_path / 'mark'}")
    assert command.stdout is not None
    command.stdout.readline()
    command.kill()
    command.communicate()
    wait_until((tmp_path / "mark").exists, "the program has not noticed the end", 20.0)


def test_a_task_returns_the_status_of_the_controller(joined: Joined) -> None:
    joined.transport.hosts()
    joined.controller.tell_status(5)
    assert joined.end_of_task() == 5


def test_a_task_says_that_the_controller_has_ended_without_a_status(joined: Joined) -> None:
    command = joined.start("cat")
    wait_until(lambda: joined.task._running, seconds=20.0)
    joined.controller.close()
    error = joined.end_of_task()
    assert isinstance(error, TaskError)
    assert "worker:0 at 127.0.0.1" in str(error)
    assert "without saying its exit status" in str(error)
    assert "\n" not in str(error)
    command.kill()
    command.communicate()


def test_a_missing_task_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddl.hosts.rendezvous.RETURN_WAIT", 0.1)
    path = str(tmp_path / "tasks")
    controller = Rendezvous(KEY, ["worker:1"], socket.create_server(("127.0.0.1", 0)), path, 0.2, lambda _line: None)
    monkeypatch.setenv("TF_CONFIG", tf_config(PLACES, 0))
    monkeypatch.setenv(PATH_VARIABLE, path)
    with contextlib.closing(controller), pytest.raises(TransportError, match="worker:1 has not dialed in within 0 s"):
        TfConfig(arguments()).hosts()


def test_a_task_without_a_controller_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = free.getsockname()
    with pytest.raises(
        TaskError, match=r"no connection to the controller worker:0 at .* within 0 s \(Connection refused"
    ):
        HostTask("worker:1", "worker:0", place, KEY).serve(0.0, print)


def test_a_task_with_another_key_gives_up(joined: Joined) -> None:
    joined.transport.hosts()
    place = joined.controller._listener.getsockname()
    with pytest.raises(TaskError, match="refuses worker:1: it has not accepted the key"):
        HostTask("worker:1", "worker:0", place, bytes(32)).serve(0.0, print)
    assert "does not know the key" in "".join(joined.notes)


def test_only_a_pytest_run_has_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(PLACES, 0))
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    with pytest.raises(TransportError, match="works only where pytest runs"):
        TfConfig(arguments())


# ----- whole runs -----

PASSES = """
    import os
    from pathlib import Path
    import pytest

    @pytest.mark.ddl
    def test_on_both(ddl_strategy):
        import tensorflow as tf
        context = tf.distribute.get_replica_context
        assert "PYTEST_DDL_KEY" not in os.environ
        Path(f"rank-{ddl_strategy.cluster_resolver.task_id}").write_text(os.readlink("/proc/self/ns/net"))
        total = ddl_strategy.reduce("SUM", ddl_strategy.run(lambda: tf.constant(1.0)), axis=None)
        assert float(total) == 2.0
"""
WAITS = """
    import os, threading
    from pathlib import Path
    import pytest

    @pytest.mark.ddl
    def test_waits(ddl_strategy):
        Path(f"rank-{ddl_strategy.cluster_resolver.task_id}").write_text("waits")
        threading.Event().wait(100)
"""
SPARE = 60.0
"""Seconds in which two processes must end that nobody disturbs."""


class TwoTasks:
    """Two networks, in which one pytest process each runs the same line."""

    def __init__(self, network: Netns) -> None:
        self._network, self._hosts = network, network.hosts()

    def start(
        self, project: Project, index: int, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start the pytest process of a worker."""
        config = tf_config([f"{host.address}:2222" for host in self._hosts], index)
        key = {"PYTEST_DDL_KEY": KEY.hex()} if env is None else env
        line = ["-p", "no:cacheprovider", "--ddl-launcher=tf_config[wait=60]", *args]
        project.prefix = [*self._network.command(self._hosts[index], [])]
        return project.start(*line, env={"TF_CONFIG": config, **key})

    def start_both(
        self, project: Project, *args: str, env: Mapping[str, str] | None = None
    ) -> list[subprocess.Popen[str]]:
        """Start the task and then the controller. Return the controller first."""
        return [self.start(project, index, *args, env=env) for index in (1, 0)][::-1]

    def finish(self, project: Project, both: list[subprocess.Popen[str]], seconds: float = 200.0) -> list[Outcome]:
        # Before the look for processes that are left: that would take the status of one that ends meanwhile.
        for process in both:
            process.wait(seconds)
        found = [project.finish(process) for process in both]
        for one in found:
            assert KEY.hex() not in one.stdout + one.stderr
        return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoTasks]:
    network = Netns(TransportArguments("netns", tmp_path_factory.mktemp("network"), {}, given={"hosts": "2"}))
    with contextlib.closing(network):
        try:
            network.hosts()
        except TransportError as error:
            pytest.skip(str(error))
        yield TwoTasks(network)


MakeProject = Callable[[Mapping[str, str]], Project]


@pytest.mark.slow
def test_ranks_run_on_both_tasks(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_both.py": PASSES})
    controller, task = two.finish(project, two.start_both(project, "--ddl-strategy=multi_worker_mirrored"))
    assert (controller.status, task.status) == (0, 0), controller.stdout + controller.stderr + task.stderr
    assert "1 passed" in controller.stdout
    networks = {(project.folder / f"rank-{rank}").read_text() for rank in (0, 1)}
    assert len(networks | {os.readlink("/proc/self/ns/net")}) == 3
    # The task has collected nothing, and says in two lines what it does instead.
    assert task.stdout == ""
    assert len(task.stderr.splitlines()) == 2
    assert (task.processes, task.files) == ([], [])


@pytest.mark.slow
def test_a_failure_is_the_status_of_both(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_fails.py": "def test_fails(): assert False"})
    controller, task = two.finish(project, two.start_both(project))
    assert (controller.status, task.status) == (1, 1)
    assert "1 failed" in controller.stdout
    assert (task.processes, task.files) == ([], [])


@pytest.mark.slow
def test_a_wrong_option_is_the_status_of_both(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_fails.py": "def test_fails(): assert False"})
    controller, task = two.finish(project, two.start_both(project, "--ddl-strategy=wrong"))
    assert (controller.status, task.status) == (4, 4)
    assert "--ddl-strategy='wrong'" in controller.stderr


@pytest.mark.slow
def test_without_a_key_both_end_at_once(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_passes.py": "def test_passes(): pass"})
    started = time.monotonic()
    for one in two.finish(project, two.start_both(project, env={}), SPARE):
        assert one.status == 4
        (line,) = one.stderr.strip().splitlines()
        assert line.startswith("ERROR: --ddl-launcher=tf_config: PYTEST_DDL_KEY and PYTEST_DDL_KEY_FILE are not set")
        assert one.stdout.strip() == ""
    assert time.monotonic() - started < SPARE / 2


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly
@pytest.mark.slow
def test_different_keys_end_both_with_the_reason(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_both.py": PASSES})
    line = ("--ddl-strategy=multi_worker_mirrored", "--ddl-launcher=tf_config[wait=8]")
    controller = two.start(project, 0, *line)
    late = two.start(project, 1, *line, env={"PYTEST_DDL_KEY": secrets.token_hex(32)})
    first, task = two.finish(project, [controller, late], SPARE)
    assert task.status == 3
    assert "it has not accepted the key" in task.stderr
    assert first.status == 4, first.stdout + first.stderr
    assert "worker:1 has not dialed in within 8 s" in first.stderr
    assert "refused a connection from" in first.stderr


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_task_fails_the_test_within_seconds(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_waits.py": WAITS})
    both = two.start_both(project, "--ddl-strategy=multi_worker_mirrored")
    wait_until((project.folder / "rank-1").exists, "the ranks have not started")
    killed = time.monotonic()
    both[1].kill()
    both[0].wait(SPARE)
    took = time.monotonic() - killed
    both[1].communicate()
    controller = project.finish(both[0])
    assert controller.status == 1
    assert "worker:1" in controller.stdout
    assert took < 20.0, controller.stdout
    assert controller.processes == []


@pytest.mark.nightly
@pytest.mark.slow
def test_a_killed_controller_ends_the_task(two: TwoTasks, new_project: MakeProject) -> None:
    project = new_project({"test_waits.py": WAITS})
    both = two.start_both(project, "--ddl-strategy=multi_worker_mirrored")
    wait_until((project.folder / "rank-1").exists, "the ranks have not started")
    killed = time.monotonic()
    os.kill(both[0].pid, signal.SIGKILL)
    both[1].wait(SPARE)
    took = time.monotonic() - killed
    both[0].communicate()
    task = project.finish(both[1])
    assert took < 20.0, task.stderr
    assert task.status == 3
    assert "has ended without saying its exit status" in task.stderr.splitlines()[-1]
    assert task.processes == []
