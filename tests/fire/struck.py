"""Project that strikes one of its own processes when a named point is reached. The tests run it with pytest."""

from __future__ import annotations

POINTS = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest_ddl
    from pytest_ddl.cluster import strays

    TARGET, SIGNAL, PHASE = os.environ["FIRE"].split(",")
    FOLDER = Path(os.environ["FIRE_FOLDER"])
    PIDS = {}

    def reached(phase):
        if phase != PHASE or (in_rank() and pytest_ddl.current_rank().rank != 1):
            return
        pid = pid_of()
        if pid is None:
            return
        try:
            # Struck once: what replaces a struck process reaches the same point again.
            (FOLDER / "struck").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(pid, getattr(signal, SIGNAL))
        if TARGET in ("zygote", "rank") and SIGNAL == "SIGKILL":
            # Nothing goes on before the process has ended. The kernel kills the ranks together with the zygote.
            while in_rank():
                signal.pause()
            # A zombie may still have threads with open files, and the zygote reaps it only after them.
            deadline = time.monotonic() + 60
            while strays.state(pid) not in ("", *("Z" if TARGET == "zygote" else "")):
                assert time.monotonic() < deadline, f"process {pid} has not ended"
                time.sleep(0.01)

    def in_rank():
        return pytest_ddl.current_rank() is not None

    def pid_of():
        if TARGET == "rank" and in_rank():
            return os.getpid()
        if TARGET == "zygote" and in_rank():
            return os.getppid()
        if TARGET in ("rank", "zygote"):
            return PIDS.get(TARGET)
        return int(os.environ.get("FIRE_" + TARGET.replace(" ", "_"), 0)) or None
"""
CONFTEST = """
    import os

    import pytest
    import fire_points
    from pytest_ddl.cluster import cluster, local_launcher, resources
    from pytest_ddl.cluster.protocol import RequestKind
    from pytest_ddl.cluster.resources import PortLease
    from pytest_ddl.harness import Harness

    LIMIT, IMPORT_LIMIT = map(float, os.environ["FIRE_LIMITS"].split(","))
    limits = {}

    def pytest_configure(config):
        if fire_points.in_rank():
            return
        worker, xdist = hasattr(config, "workerinput"), config.getoption("numprocesses", None)
        # No cluster of another test leases ports of this range, so that a held one was left by this run.
        resources.FIRST_PORT, resources.LAST_PORT = map(int, os.environ["FIRE_PORTS"].split(","))
        name = "xdist_worker" if worker else "xdist_controller" if xdist else "pytest_process"
        os.environ["FIRE_" + name] = str(os.getpid())
        # Limits of 120 s, which a test does not wait for.
        limits.update(start=LIMIT, zygote=IMPORT_LIMIT)
        Harness.start_timeout = property(lambda self: limits["start"])
        local_launcher.LocalLauncher.start_timeout = property(lambda self: limits["zygote"], lambda self, value: None)
        watch(local_launcher.LocalLauncher, "_start_cold", after=zygote_starts)
        watch(local_launcher.LocalLauncher, "_late_error", after=zygote_was_late)
        watch(cluster.Cluster, "_gather", before=cluster_starts)
        watch(PortLease, "__init__", after=ports_are_leased)

    def watch(kind, name, before=None, after=None):
        original = getattr(kind, name)
        def watched(self, *arguments):
            if before is not None:
                before(self, *arguments)
            result = original(self, *arguments)
            if after is not None:
                after(self, result)
            return result
        setattr(kind, name, watched)

    def zygote_starts(launcher, process):
        fire_points.PIDS["zygote"] = process.pid
        fire_points.reached("start of the zygote")

    def zygote_was_late(_launcher, _error):
        # Only the suspended zygote must meet the short limit, and not the one that replaces it on a busy machine.
        limits["zygote"] = 120.0

    def cluster_starts(self, kind, *arguments):
        if kind is RequestKind.BOOT and len(self.processes) == 2:
            fire_points.PIDS["rank"] = self.processes[1].pid
            fire_points.reached("start of a cluster")
            # The start that may have been struck has its deadline already. What replaces it meets a busy machine.
            limits["start"] = 120.0

    def ports_are_leased(lease, _result):
        with open(fire_points.FOLDER / "ports", "a") as file:
            file.writelines(f"{port}\\n" for port in lease.ports)

    def pytest_runtest_logfinish(nodeid):
        if "::test_struck" in nodeid and not fire_points.in_rank():
            fire_points.reached("between two tests")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(session):
        if not fire_points.in_rank() and (hasattr(session.config, "workerinput") or "xdist" not in fire_points.TARGET):
            fire_points.reached("end of the session")
"""
TESTS = """
    import pytest
    from fire_points import reached

    pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")

    @pytest.fixture(scope="module")
    def kept(ddl_strategy):
        yield

    @pytest.fixture
    def struck(ddl_strategy):
        reached("set-up")
        yield
        reached("tear-down")

    def test_before(kept):
        pass

    def test_struck(kept, struck):
        reached("body")

    def test_after(kept):
        pass
"""
PROJECT = {"fire_points.py": POINTS, "conftest.py": CONFTEST, "test_struck.py": TESTS}
