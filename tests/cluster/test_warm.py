"""Warm servers: what makes one fit, what a zygote that it forks gets, and how both end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddl.cli import main
from pytest_ddl.cluster.handle import ClusterHandle
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.warm import fitting
from pytest_ddl.cluster.warm import servers as warm
from pytest_ddl.cluster.warm.fitting import Server, key_of
from pytest_ddl.cluster.warm.servers import WarmZygotes
from pytest_ddl.config import resolve_without_pytest
from pytest_ddl.harness import Harness
from pytest_ddl.items.selection import DdlMark
from pytest_ddl.launchers import built_in_launchers, environ_of_ranks
from pytest_ddl.strategies.machine import GPU_GROWTH
from pytest_ddl.strategies.registry import StrategyRegistry
from tests.polling import runs, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    """A ready server, and the folder in XDG_RUNTIME_DIR."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ddl-") as folder:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        # As in the ranks of a run, so that it finds this server.
        for name, value in environ_of_ranks(resolve_without_pytest(), Path(tempfile.gettempdir())).items():
            patch.setenv(name, value)
        key = key_of(os.environ)
        warm.start(key, os.environ)
        yield warm.wait_until_ready(key), folder
        warm.stop()


@pytest.fixture
def launcher(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LocalLauncher]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", server[1])
    launcher = LocalLauncher(os.environ, tmp_path / "session", warm=WarmZygotes())
    yield launcher
    launcher.close()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# ----- which server fits -----


def test_key_changes_with_what_an_import_reads(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "HOME": str(tmp_path)}
    key = key_of(environ)
    assert key_of({**environ, "TERM": "dumb", "PYTEST_ADDOPTS": "-q", "PY_COLORS": "0", "TMPDIR": "/x"}) == key
    # A run of pytest sets it, and the command that starts the server does not.
    assert key_of({**environ, GPU_GROWTH: "true"}) == key
    assert key_of({**environ, "HDF5_PLUGIN_PATH": "disable"}) == key
    assert key_of({**environ, "HDF5_PLUGIN_PATH": "/plugins"}) != key
    assert key_of({**environ, "TF_ENABLE_ONEDNN_OPTS": "0"}) != key
    assert key_of({**environ, "KERAS_BACKEND": "jax"}) != key
    assert key_of({**environ, "A_NAME_THAT_NOBODY_KNOWS": "1"}) != key
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"floatx": "float64"}')
    assert key_of(environ) != key


@pytest.mark.parametrize(("held", "is_one"), [("000001ffffffffff", True), ("00000000a80425fb", False), ("", False)])
def test_only_an_administrator_shares_a_server_between_networks(
    monkeypatch: pytest.MonkeyPatch, held: str, is_one: bool
) -> None:
    """The second number is that of root in a container of Docker."""
    texts = {"/proc/self/status": f"Name:\tpython\nCapEff:\t{held}\nCapBnd:\t000001ffffffffff\n"}
    monkeypatch.setattr(fitting, "_text", lambda path: texts.get(path, ""))
    keys = set()
    for network in ("net:[1]", "net:[2]"):
        monkeypatch.setattr(fitting, "_link", {"/proc/self/ns/net": network}.get)
        keys.add(key_of({}))
    assert (len(keys) == 1) is is_one


def test_key_changes_with_the_installed_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    key = key_of({})
    (tmp_path / "keras-99.dist-info").mkdir()
    installed = key_of({})
    assert installed != key
    (tmp_path / "hooks.pth").write_text("import os")
    first = key_of({})
    assert first != installed
    (tmp_path / "hooks.pth").write_text("import re")
    assert key_of({}) != first


def test_server_fits_a_path_that_shadows_nothing(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
    (mine / "my_tests.py").touch()
    server = Server("key", 1, "", 1.0, {"/": [os.stat("/").st_ctime_ns, os.stat("/").st_size]}, ("keras",), "")
    assert server.misfit({"PYTHONPATH": str(mine)}) is None
    (mine / "keras.py").touch()
    assert server.misfit({"PYTHONPATH": str(mine)}) == f"{mine} in PYTHONPATH has a module keras"
    file = theirs / "keras.py"
    file.touch()
    files = {str(file): [file.stat().st_ctime_ns, file.stat().st_size]}
    server = Server("key", 1, "", 1.0, files, ("keras",), str(theirs))
    assert server.misfit({"PYTHONPATH": str(theirs)}) is None
    assert server.misfit({}) == f"PYTHONPATH is not {theirs}"
    # Another folder before it or after it is judged by its names.
    (mine / "keras.py").unlink()
    both = os.pathsep.join(map(str, (mine, theirs)))
    assert server.misfit({"PYTHONPATH": both}) is None
    (mine / "keras.py").touch()
    assert server.misfit({"PYTHONPATH": both}) == f"{mine} in PYTHONPATH has a module keras"


def test_server_is_stale_when_a_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("a = 1")
    status = file.stat()
    server = Server("key", 1, "", 1.0, {str(file): [status.st_ctime_ns, status.st_size]}, (), "")
    assert server.misfit({}) is None
    file.write_text("a = 2")
    # Tools such as uv and git can set the time of the last change. They cannot set the ctime.
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    wait_until(lambda: file.write_text("a = 2") and server.misfit({}), "the file has the old ctime")
    assert server.misfit({}) == f"{file} was changed"
    file.unlink()
    assert server.misfit({}) == f"{file} was changed"


def test_changed_file_starts_another_server(light: Path) -> None:
    module = light / "keras.py"
    key = key_of(os.environ)
    warm.start(key, os.environ)
    first = warm.wait_until_ready(key)
    assert str(module) in first.files
    module.write_text("changed = 1")
    warm.start(key, os.environ)
    wait_until(lambda: (found := warm.find(key)) is not None and found.pid != first.pid, "no new server")
    assert not runs(first.pid)


def test_failed_import_is_reported_and_not_tried_again(home: Path, light: Path) -> None:
    (light / "cloudpickle.py").write_text("raise RuntimeError('broken on purpose')")
    key = key_of(os.environ)
    warm.start(key, os.environ)
    with pytest.raises(warm.WarmError, match="RuntimeError: broken on purpose"):
        warm.wait_until_ready(key)
    wait_until(lambda: not (home / f"{key}.socket").exists(), "the server left its socket")
    warm.start(key, os.environ)
    assert not (home / f"{key}.socket").exists()


# ----- the folder -----


def test_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"pytest-ddl-warm-{os.getuid()}"
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)
    with pytest.raises(warm.WarmError, match="only you can open"):
        warm.servers()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(warm.WarmError, match="only you can open"):
        warm.servers()


def test_sockets_can_be_opened_by_the_user_only(server: tuple[Server, str]) -> None:
    folder = Path(server[1]) / f"pytest-ddl-warm-{os.getuid()}"
    assert folder.stat().st_mode & 0o077 == 0


# ----- zygotes -----


def test_zygote_comes_from_the_server(launcher: LocalLauncher, server: tuple[Server, str]) -> None:
    zygote = launcher._process
    assert isinstance(zygote, warm.WarmZygote)
    assert parent(zygote.pid) == server[0].pid
    used = warm.use_of(server[0])
    assert used is not None
    assert (used["runs"] >= 1, used["running"]) == (True, 1)
    launcher._wait_until(lambda: launcher._ready, "starting the zygote")
    launcher.close()
    assert not runs(zygote.pid)
    assert zygote.returncode == 0
    assert runs(server[0].pid)


def test_a_question_about_its_use_does_not_prolong_the_life_of_a_server(server: tuple[Server, str]) -> None:
    first = warm.use_of(server[0])
    assert first is not None
    assert first["left"] <= server[0].idle

    def has_less_left() -> bool:
        now = warm.use_of(server[0])
        return now is not None and now["left"] < first["left"] - 0.05

    wait_until(has_less_left, "each question begins the server's time anew")


def test_workers_get_what_the_run_has(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", server[1])
    monkeypatch.setenv("PYTEST_DDL_WARM", "1")
    # The server of the key without this variable: it is one that no import reads.
    monkeypatch.setenv("PYTEST_OF_THIS_TEST", "yes")
    monkeypatch.chdir(tmp_path)
    settings = resolve_without_pytest()
    harness = Harness(settings, StrategyRegistry(), built_in_launchers(settings))
    before = os.umask(0o031)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with harness.cluster(harness.registry.default("one_device"), DdlMark()) as cluster:
            seen = ClusterHandle(cluster, time.monotonic() + 60).run(look)[0]
        zygote = harness.pool.launcher._process  # type: ignore[attr-defined]
        assert isinstance(zygote, warm.WarmZygote)
        assert parent(zygote.pid) == server[0].pid
    finally:
        os.umask(before)
        os.sched_setaffinity(0, cores)
        harness.close()
    assert seen == ("yes", str(tmp_path), 0o031, {min(cores)}, True)


def look() -> tuple[str | None, str, int, set[int], bool]:
    mask = os.umask(0)
    os.umask(mask)
    return (
        os.environ.get("PYTEST_OF_THIS_TEST"),
        os.getcwd(),
        mask,
        os.sched_getaffinity(0),
        "tensorflow" in sys.modules,
    )


OWNER = """
import os, signal, sys
from pathlib import Path
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.warm.servers import WarmZygotes
launcher = LocalLauncher(os.environ, Path(sys.argv[1]), warm=WarmZygotes())
print(launcher._process.pid, type(launcher._process).__name__, flush=True)
signal.pause()
"""


def test_zygote_ends_with_a_killed_owner(server: tuple[Server, str], tmp_path: Path) -> None:
    environ = {**os.environ, "XDG_RUNTIME_DIR": server[1]}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "session")],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        # Python puts the working directory first on the path, and the repository has a package of the same name.
        cwd=tmp_path,
    ) as owner:
        assert owner.stdout is not None
        pid, kind = owner.stdout.readline().split()
        running = runs(int(pid))
        owner.kill()
    assert (kind, running) == ("WarmZygote", True)
    wait_until(lambda: not runs(int(pid)), "the zygote outlives its owner")
    wait_until(lambda: not (tmp_path / "session").exists(), "the folder of the zygote is left")


def test_killed_server_leaves_its_zygotes(light: Path, tmp_path: Path) -> None:
    key = key_of(os.environ)
    warm.start(key, os.environ)
    pid = warm.wait_until_ready(key).pid
    launcher = LocalLauncher(os.environ, tmp_path / "session", warm=WarmZygotes())
    zygote = launcher._process
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not runs(pid), "the server runs")
    assert zygote is not None
    assert runs(zygote.pid)
    launcher.poll()
    launcher.close()
    assert not runs(zygote.pid)
    # The next run finds no server and leaves one.
    launcher = LocalLauncher(os.environ, tmp_path / "next", warm=WarmZygotes())
    assert not isinstance(launcher._process, warm.WarmZygote)
    launcher.close()


# ----- the command -----


def test_command_starts_lists_and_stops(light: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def command(*arguments: str) -> tuple[int, str, str]:
        return main(["warm", *arguments]), *capsys.readouterr()

    assert command("--status") == (0, "no warm server is running\n", "")
    status, out, _err = command("--idle", "5")
    assert status == 0
    assert "is ready; it ends after 5 minutes without a run" in out
    _status, listed, _err = command("--status")
    assert "ends:      after 5 minutes without a run: at " in listed
    assert f"python:    {sys.executable} ({sys.version.split()[0]})" in listed
    assert re.search(r"since:     \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \(0 min ago\)", listed)
    assert re.search(r"packages:  .*keras \d[\w.]+, .*tensorflow \d", listed)
    assert "runs:      0, none now" in listed
    assert "not used here" not in listed
    assert command("--stop")[:2] == (0, "ended: 1\n")
    assert command("--status")[1] == "no warm server is running\n"


def test_command_names_a_wrong_idle_time() -> None:
    command = [sys.executable, "-m", "pytest_ddl.cli", "warm", "--idle", "never"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "'never' is not a positive number of minutes, for example 15" in done.stderr
