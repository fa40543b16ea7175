"""Clusters over hosts with a real sshd."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hosts import scenes
from tests.hosts.engines import NODES, SshSite, opened
from tests.plugin.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(new_project: Callable[..., Project]) -> Iterator[scenes.Scene]:
    with opened(SshSite) as site:
        options = [f"--ddl-launcher=ssh[config={site.folder}/ssh_config]", f"--ddl-hosts={NODES[0]}:2,{NODES[1]}:2"]
        yield scenes.Scene(site, new_project, options)


def test_ranks_run_on_different_hosts(scene: scenes.Scene) -> None:
    scenes.expect_good(scene.good_run())


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly
def test_a_killed_ssh_fails_the_test(scene: scenes.Scene) -> None:
    def strike(project: Project) -> None:
        # One: the run has started one launcher.
        (process,) = scenes.of_name(project.running(), "ssh", NODES[1])
        process.kill()

    scenes.expect_verdict(scene, strike, f"the connection to the host {NODES[1]} has ended: it was killed by SIGKILL")


@pytest.mark.nightly
def test_nothing_is_left_of_a_killed_pytest(scene: scenes.Scene) -> None:
    scenes.expect_end_with_pytest(scene)
