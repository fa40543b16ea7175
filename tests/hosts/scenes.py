"""Runs of pytest over a site's hosts, and what each must end in. The tests of each engine are these."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.hosts.engines import NODES, Site, command_lines
from tests.plugin.conftest import END_PATIENCE, Outcome, Project
from tests.polling import wait_until

STRATEGIES = ("multi_worker_mirrored", "parameter_server[processes=separate]")
GOOD = """
    import os
    import socket

    import tensorflow as tf

    def addresses(strategy):
        # The strategy of parameter servers has no public name for its resolver.
        resolver = strategy.cluster_resolver or strategy._cluster_resolver
        return {task.split(":")[0] for task in resolver.cluster_spec().as_dict()["worker"]}

    def test_hosts(ddl_strategy):
        print("here is", socket.gethostname())
        assert len(addresses(ddl_strategy)) == 2
        assert not [name for name in os.environ if name.startswith(("SLURM", "PMI"))]

    def test_sum(ddl_strategy):
        if ddl_strategy.cluster_resolver is None:
            coordinator = tf.distribute.coordinator.ClusterCoordinator(ddl_strategy)
            with ddl_strategy.scope():
                total = tf.Variable(0.0)
            for _ in range(4):
                coordinator.schedule(tf.function(lambda: total.assign_add(1.0)))
            coordinator.join()
            assert float(total) == 4.0
        else:
            one = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0))
            (total,) = ddl_strategy.experimental_local_results(ddl_strategy.run(tf.function(lambda: one())))
            assert float(total) == 2.0

    def test_wrong(ddl_strategy):
        task = ddl_strategy.cluster_resolver and ddl_strategy.cluster_resolver.task_id
        assert task != 1, f"wrong on {socket.gethostname()}"
"""
WAITING = """
    import pathlib
    import threading

    def test_waits(ddl_strategy):
        pathlib.Path(f"waits-{ddl_strategy.cluster_resolver.task_id}").touch()
        threading.Event().wait(300)

    def test_goes_on(ddl_strategy):
        pass
"""
REPORTING = """
    import pathlib

    from pytest_ddl.cluster.worker import current_rank

    def pytest_runtest_logreport(report):
        # Written elsewhere first: a reader must not find half of it. Ranks have this file too.
        if current_rank() is None and (report.failed or report.when == "call"):
            name = report.nodeid.partition("::")[2].partition("[")[0]
            path = pathlib.Path(f"verdict-{name}")
            path.with_suffix(".part").write_text(f"{report.outcome} {report.longreprtext}")
            path.with_suffix(".part").rename(path)
"""


@dataclass
class Scene:
    """A site, and the options with which pytest uses its hosts."""

    site: Site
    new_project: Callable[..., Project]
    options: Sequence[str]
    is_engine: Callable[[psutil.Process], bool] = lambda process: False
    """True for a process on a host that belongs to the engine and ends by itself, later."""

    def _project(self, text: str) -> Project:
        project = self.new_project({"test_it.py": text, "conftest.py": REPORTING})
        project.prefix = self.site.prefix
        return project

    def good_run(self) -> Outcome:
        project = self._project(GOOD)
        strategies = f"--ddl-strategy={','.join(STRATEGIES)}"
        done = project.pytest(*self.options, strategies, "-rA", env=self.site.environ)
        self.expect_nothing_left(project)
        return done

    @contextlib.contextmanager
    def waiting_run(self) -> Iterator[tuple[Project, subprocess.Popen[str]]]:
        """Start a run, and wait until its ranks are in the body of a test. Then expect that nothing is left of it."""
        project = self._project(WAITING)
        process = project.start(*self.options, f"--ddl-strategy={STRATEGIES[0]}", env=self.site.environ)
        try:
            ranks = [project.folder / f"waits-{rank}" for rank in range(2)]
            wait_until(lambda: all(rank.exists() for rank in ranks) or process.poll() is not None, seconds=180.0)
            assert process.poll() is None, process.communicate()
            yield project, process
            # Slurm may kill an agent, so that its folder stays.
            self.expect_nothing_left(project, files=False)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def on_hosts(self) -> list[psutil.Process]:
        return [process for process in self.site.processes(*NODES) if not self.is_engine(process)]

    def expect_nothing_left(self, project: Project, *, files: bool = True) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.on_hosts(), seconds=END_PATIENCE)
        assert command_lines(self.on_hosts()) == []
        assert project.processes() == []
        assert not files or project.files() == []


def of_name(processes: Sequence[psutil.Process], *words: str) -> list[psutil.Process]:
    """Return the processes that have all these words in their command line."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            line = process.cmdline()
            if line and all(any(word == Path(part).name or word == part for part in line) for word in words):
                found.append(process)
    return found


def expect_good(done: Outcome) -> None:
    for strategy in STRATEGIES:
        for name in ("test_hosts", "test_sum"):
            assert done[f"{name}[{strategy}]"].outcome == "passed", done.stdout + done.stderr
    assert all(f"here is {name}" in done[f"test_hosts[{STRATEGIES[0]}]"].text for name in NODES), done.stdout
    wrong = done[f"test_wrong[{STRATEGIES[0]}]"]
    assert wrong.outcome == "failed"
    assert "wrong on node2" in wrong.text
    assert "rank 1" in wrong.text


def expect_verdict(scene: Scene, strike: Callable[[Project], None], expected: str) -> None:
    """Strike a run that waits. Expect a failure whose message names the host, and that the next test passes."""
    with scene.waiting_run() as (project, process):
        strike(project)
        verdict = project.folder / "verdict-test_waits"
        wait_until(verdict.exists, f"no verdict on {expected!r}", seconds=60.0)
        assert expected in verdict.read_text()
        process.communicate(timeout=180.0)
        next_verdict = (project.folder / "verdict-test_goes_on").read_text()
        assert next_verdict.startswith("passed"), next_verdict


def expect_end_with_pytest(scene: Scene) -> None:
    """Kill pytest. Expect that its workers end, and that no file is left."""
    with scene.waiting_run() as (project, process):
        assert scene.on_hosts()
        (controller,) = of_name(scene.site.processes("login"), "pytest", "-m")
        controller.kill()
        process.communicate(timeout=60.0)
        scene.expect_nothing_left(project)
