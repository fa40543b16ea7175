"""Clusters over hosts that a real Open MPI reaches through ssh."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hosts import scenes
from tests.hosts.engines import NODES, SshSite, missing, opened
from tests.plugin.conftest import Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(new_project: Callable[..., Project]) -> Iterator[scenes.Scene]:
    if reason := missing({"mpirun": "openmpi-bin"}):
        pytest.skip(reason)
    with opened(SshSite) as site:
        plain = "-o ControlMaster=no -o ClearAllForwardings=yes -o RequestTTY=no"
        site.environ["OMPI_MCA_plm_rsh_agent"] = f"ssh -F {site.folder}/ssh_config {plain}"
        site.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        # mpirun looks names up, for which these hosts have no server.
        hosts = ",".join(f"{site.address(name)}:2" for name in NODES)
        yield scenes.Scene(site, new_project, ["--ddl-launcher=mpi", f"--ddl-hosts={hosts}"])


# Each is a run over real services. Each commit has one run over ssh, and those over Slurm.
@pytest.mark.nightly
def test_ranks_run_on_different_hosts(scene: scenes.Scene) -> None:
    scenes.expect_good(scene.good_run())


@pytest.mark.nightly
def test_a_killed_mpirun_fails_the_test(scene: scenes.Scene) -> None:
    address = scene.site.address(NODES[1])

    def strike(project: Project) -> None:
        (process,) = scenes.of_name(project.running(), "mpirun", address)
        process.kill()

    scenes.expect_verdict(scene, strike, f"the connection to the host {address} has ended: it was killed by SIGKILL")


@pytest.mark.nightly
def test_nothing_is_left_of_a_killed_pytest(scene: scenes.Scene) -> None:
    scenes.expect_end_with_pytest(scene)
