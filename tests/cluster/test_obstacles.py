"""Obstacles for clusters: limits, proxies, a network without loopback, long paths, files with taken names."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_ddl.cluster import strays
from pytest_ddl.cluster.cluster import Answer, Fate
from pytest_ddl.cluster.local_launcher import LocalLauncher
from pytest_ddl.cluster.obstacles import LaunchError, cannot_write, how_it_ended, loopback_problem, without_proxy_here
from pytest_ddl.cluster.preload import import_all
from pytest_ddl.cluster.zygote import short_path

HERE = "localhost,127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {}),
        ({"no_proxy": "x"}, {}),
        ({"http_proxy": "p"}, {"no_proxy": HERE, "NO_PROXY": HERE}),
        ({"HTTPS_PROXY": "p", "NO_PROXY": "x"}, {"no_proxy": f"x,{HERE}", "NO_PROXY": f"x,{HERE}"}),
        (
            {"grpc_proxy": "p", "no_proxy": "x, localhost", "NO_PROXY": "y"},
            {"no_proxy": "x,localhost,127.0.0.1", "NO_PROXY": f"y,{HERE}"},
        ),
        (
            {"http_proxy": "p", "no_proxy": "*", "NO_PROXY": "*", "no_grpc_proxy": "z"},
            {"no_grpc_proxy": f"z,{HERE}"},
        ),
    ],
)
def test_connections_within_the_machine_avoid_the_proxy(environ: dict[str, str], expected: dict[str, str]) -> None:
    assert without_proxy_here(environ) == expected


def test_loopback_works_here() -> None:
    assert loopback_problem() is None


def test_a_network_without_loopback_is_named() -> None:
    code = "from pytest_ddl.cluster.obstacles import loopback_problem; print(loopback_problem())"
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("the command unshare is not installed")
    if "unshare" in result.stderr:
        pytest.skip(f"this machine permits no network namespace: {result.stderr.strip()}")
    assert "the loopback device is down" in result.stdout
    assert "ip link set lo up" in result.stdout


def test_a_limit_of_memory_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Answer(0, "worker:0", Fate.DIED, exit_status=127)
    assert ended.describe_end() == "exited with status 127 before it had finished"
    monkeypatch.setattr(resource, "getrlimit", lambda number: (4 << 30 if number == resource.RLIMIT_AS else -1, -1))
    assert "address space of this process is limited to 4.0 GiB (ulimit -v)" in ended.describe_end()
    assert "ulimit -v unlimited" in how_it_ended(127)


def test_a_killed_process_may_have_run_out_of_memory() -> None:
    assert how_it_ended(-9).startswith("it was killed by SIGKILL (the kernel does this when memory runs out")


@pytest.mark.parametrize(("number", "fix"), [(errno.ENOSPC, "TMPDIR"), (errno.EFBIG, "ulimit -f")])
def test_a_folder_without_space_is_named_with_the_fix(number: int, fix: str) -> None:
    text = cannot_write(OSError(number, os.strerror(number)), "/folder")
    assert f"cannot write to /folder: {os.strerror(number)}" in text
    assert fix in text


def test_a_launcher_without_a_folder_to_write_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(LaunchError, match=r"cannot write to .*TMPDIR"):
        LocalLauncher(os.environ, tmp_path / "file")


def test_a_socket_may_have_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with short_path(str(folder / "zygote")) as path:
            listener.bind(path)
        listener.listen()
        with short_path(str(folder / "zygote")) as path:
            client.connect(path)
    assert (folder / "zygote").is_socket()


def test_a_file_with_the_name_of_a_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "this_is_needed.py").write_text("raise RuntimeError('mine')")
    (tmp_path / "sndhdr_user.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert "RuntimeError: mine" in import_all(["this_is_needed"])
    (tmp_path / "this.py").write_text("")
    monkeypatch.delitem(sys.modules, "this", raising=False)
    text = import_all(["this", "this_is_needed"])
    assert f"{tmp_path / 'this.py'} has the name of the module this and was imported instead of it" in text


def test_a_process_that_is_starting_a_program_is_found_by_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "1000"], env={**os.environ, strays.TAG: "starting"})
    read, readings = Path.read_bytes, []

    def empty_at_first(path: Path) -> bytes:
        if path != Path(f"/proc/{child.pid}/environ"):
            return read(path)
        readings.append(path)
        return b"" if len(readings) == 1 else read(path)

    monkeypatch.setattr(Path, "read_bytes", empty_at_first)
    try:
        assert strays.tagged("starting") == [child.pid]
    finally:
        child.kill()
        child.wait()
    assert strays.tagged("starting") == []


def test_processes_are_found_by_their_tag_whatever_session_they_are_in() -> None:
    environ = {**os.environ, strays.TAG: "tested"}
    child = subprocess.Popen(["sleep", "1000"], env=environ, start_new_session=True)
    other = subprocess.Popen(["sleep", "1000"])
    try:
        assert strays.tagged("tested") == [child.pid]
        assert {child.pid, other.pid} <= strays.children()
        strays.end_tagged("tested")
        assert child.wait(timeout=10) == -9
        assert psutil.pid_exists(other.pid)
    finally:
        other.kill()
        other.wait()
