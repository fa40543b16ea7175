"""Clusters over the nodes of a real Slurm, inside an allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.hosts import scenes
from tests.hosts.engines import NODES, SlurmSite, opened
from tests.plugin.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(new_project: Callable[..., Project]) -> Iterator[scenes.Scene]:
    with opened(SlurmSite) as site:
        # What a user may have set for srun.
        site.environ |= {"SLURM_LABELIO": "1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_CPU_BIND": "cores"}
        yield scenes.Scene(site, new_project, ["--ddl-launcher=slurm"], _is_step)


def _is_step(process: psutil.Process) -> bool:
    # It outlives its program by up to ten seconds.
    try:
        return process.name().startswith("slurmstepd")
    except psutil.NoSuchProcess:
        return True


def test_ranks_run_on_different_nodes(scene: scenes.Scene) -> None:
    scenes.expect_good(scene.good_run())


def test_a_killed_srun_fails_the_test(scene: scenes.Scene) -> None:
    def strike(project: Project) -> None:
        for process in scenes.of_name(project.running(), "srun", NODES[1]):
            process.kill()

    scenes.expect_verdict(scene, strike, f"the connection to the host {NODES[1]} has ended: it was killed by SIGKILL")


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly
def test_nothing_is_left_of_a_killed_pytest(scene: scenes.Scene) -> None:
    scenes.expect_end_with_pytest(scene)
