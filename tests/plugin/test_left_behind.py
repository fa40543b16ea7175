"""If all processes of a run were killed at the same moment, the next run removes the remains."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.plugin.conftest import Project
from tests.polling import wait_until

_WAITS = """
    import signal
    import subprocess

    import pytest

    @pytest.mark.ddl(strategies="multi_worker_mirrored")
    def test_waits(ddl_strategy, request):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        (request.path.parent / f"ready-{ddl_strategy.cluster_resolver.task_id}").touch()
        while True:
            signal.pause()
"""
_PASSES = """
    import pytest

    @pytest.mark.ddl(strategies="mirrored")
    def test_passes(ddl_strategy):
        pass
"""


@pytest.mark.slow
def test_what_processes_left_that_were_killed_together_is_removed(
    new_project: Callable[..., Project],
) -> None:
    project = new_project({"test_waits.py": _WAITS, "test_passes.py": _PASSES})
    # A warm server would adopt the daemons of a zygote that was killed, and end them.
    process = project.start("test_waits.py", env={"PYTEST_DDL_WARM": "0"})
    wait_until(lambda: all((project.folder / f"ready-{rank}").exists() for rank in range(2)), seconds=120.0)
    running = project.running()
    daemons = [one for one in running if one.name() == "sleep"]
    assert len(daemons) == 2
    killed = [one for one in running if one not in daemons]
    # Nobody removes or ends anything, because nobody notices the death of another.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in killed:
            one.send_signal(number)
    process.communicate()
    assert all(one.is_running() for one in daemons)
    assert [path for path in project.temporary.iterdir() if path.name.startswith("pytest-ddl-")]
    outcome = project.pytest("test_passes.py")
    assert outcome.status == 0, outcome.stdout
    assert outcome.processes == []
    assert outcome.files == []
