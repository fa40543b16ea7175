"""``--ddl-sync`` copies the user's files to hosts that have other folders, and ranks use the copies."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.hosts.conftest import Emulated, skip_below_tmp
from tests.plugin.conftest import Project
from tests.polling import wait_until

pytestmark = pytest.mark.slow

CONFTEST = """
import pytest

import helper


@pytest.fixture
def from_conftest():
    return helper.FROM_HELPER
"""
TESTS = """
import os
import signal
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from package.model import DATA, weights

HERE = os.path.dirname(__file__)
pytestmark = pytest.mark.ddl(strategies="multi_worker_mirrored")


def test_on_ranks(ddl_strategy, from_conftest, request, tmp_path):
    import only_on_ranks

    assert from_conftest == "from helper"
    assert only_on_ranks.NUMBER == 7
    assert Path(DATA).read_text() == "1.5"
    assert request.node.nodeid == "tests/test_it.py::test_on_ranks[multi_worker_mirrored]"
    here = Path(__file__).parent.parent
    assert here == request.config.rootpath == Path.cwd() == Path(only_on_ranks.__file__).parent
    assert here.name == os.environ["PROJECT"]
    assert os.environ["ROOT"] == str(here)
    # Only what git does not ignore was copied.
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == [
        ".gitignore", "helper.py", "link.txt", "only_on_ranks.py", "package", "pytest.ini", "tests", "version.py",
    ]
    assert (here / "link.txt").is_symlink() and (here / "link.txt").read_text() == "1.5"
    (tmp_path / "own").write_text("1")
    print("the rank is at", here)


@pytest.mark.parametrize("file", [os.path.join(HERE, "test_it.py")])
def test_a_path_as_parameter(ddl_strategy, file):
    assert file == __file__ and os.path.exists(file)


def test_fails(ddl_strategy):
    assert ddl_strategy.cluster_resolver.task_id == 0, f"wrong in {HERE}"


def make_step(run, weight):
    factor = float(Path(HERE, "..", "package", "data.txt").read_text())

    @tf.function
    def step(iterator):
        def replica(batch):
            if tf.reduce_sum(batch) > 0.0:  # AutoGraph needs the source.
                gradient = tf.reduce_sum(batch * weight) * factor / run.global_batch_size
            else:
                gradient = tf.constant(0.0)
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.01 * context.all_reduce("SUM", gradient))
            return gradient

        return run.strategy.reduce("SUM", run.strategy.run(replica, args=(next(iterator),)), axis=None)

    return step


def test_comparison(ddl_equivalence):
    here, places = Path(HERE), {"text": HERE, "path": Path(__file__)}

    def train(run):
        import helper

        # Constants of the pytest process name files of the rank.
        assert (here / "test_it.py").exists() and places["path"].exists() and os.path.isdir(places["text"])
        assert helper.FROM_HELPER == "from helper"
        with run.strategy.scope():
            weight = tf.Variable(weights())
        run.watch(variables=[weight])
        dataset = tf.data.Dataset.from_tensor_slices(tf.range(1.0, 17.0)).batch(run.global_batch_size)
        for loss in run.steps(make_step(run, weight), dataset):
            pass

    ddl_equivalence(train, global_batch_size=4, steps=3)


def raises(run):
    raise ValueError(f"raised in {HERE}")


def test_comparison_fails(ddl_equivalence):
    ddl_equivalence(raises, global_batch_size=4, steps=3)


def dies(run):
    with run.strategy.scope():
        weight = tf.Variable(1.0)
    run.watch(variables=[weight])
    dataset = tf.data.Dataset.from_tensor_slices(tf.range(1.0, 17.0)).batch(run.global_batch_size)
    for loss in run.steps(make_step(run, weight), dataset):
        if os.environ.get("TF_CONFIG", "").endswith('"index": 1}}'):
            os._exit(3)


def test_a_rank_dies(ddl_equivalence):
    ddl_equivalence(dies, global_batch_size=4, steps=3)
"""
FILES = {
    "pytest.ini": "[pytest]\npythonpath = .\n",
    ".gitignore": "ignored*\nversion.py\n",
    "conftest_of_tests": CONFTEST,
    "helper.py": "import version\nFROM_HELPER = 'from helper'\n",
    "version.py": "VERSION = '1'\n",
    "only_on_ranks.py": "NUMBER = 7\n",
    "ignored.bin": "x",
    "package/__init__.py": "",
    "package/model.py": (
        "import os\nDATA = os.path.join(os.path.dirname(__file__), 'data.txt')\n\n"
        "def weights():\n    return float(open(DATA).read())\n"
    ),
    "package/data.txt": "1.5",
    "tests/test_it.py": TESTS,
    "tests/conftest.py": CONFTEST,
}
LAUNCHER = "--ddl-launcher=netns[hosts=2,tmp=own]"


@pytest.fixture
def project(emulated: Emulated, new_project: Callable[..., Project]) -> Project:
    """Return a project in /tmp, of which each host has another."""
    emulated.close()
    skip_below_tmp()
    project = new_project({name: text for name, text in FILES.items() if name != "conftest_of_tests"})
    if not project.folder.is_relative_to("/tmp"):
        pytest.skip(f"the folder for temporary files, {project.folder}, is not in /tmp, and so hosts share it")
    (project.folder / "link.txt").symlink_to(project.folder / "package" / "data.txt")
    subprocess.run(["git", "init", "-q", str(project.folder)], check=True)
    return project


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def copies_in(text: str, shared: Path) -> list[str]:
    """Return the paths of copies that a text names."""
    return [word for word in text.split() if "/pytest-ddl-" in word and str(shared) not in word]


def environ(project: Project) -> dict[str, str]:
    return {"PROJECT": project.folder.name, "ROOT": str(project.folder)}


def test_ranks_use_copies_of_the_files(project: Project, shared: Path) -> None:
    options = (LAUNCHER, "--ddl-sync", f"--ddl-shared-dir={shared}", "-rA")
    done = project.pytest(*options, env=environ(project))
    for name in ("test_on_ranks", "test_comparison"):
        assert done[f"{name}[multi_worker_mirrored]"].outcome == "passed", done.stdout + done.stderr
    # The id of a test may have a path, which is another one on the ranks.
    with_path = f"test_a_path_as_parameter[multi_worker_mirrored-{project.folder}/tests/test_it.py]"
    assert done[with_path].outcome == "passed", done.stdout
    assert f"the rank is at {project.folder}\n" in done["test_on_ranks[multi_worker_mirrored]"].text
    # What a rank reports names the files here.
    for name in ("test_fails", "test_comparison_fails"):
        failed = done[f"{name}[multi_worker_mirrored]"]
        assert failed.outcome == "failed"
        assert f"in {project.folder}/tests" in failed.text
    # A rank that has died leaves only its log, which its host has written.
    died = done["test_a_rank_dies[multi_worker_mirrored]"]
    assert died.outcome == "failed"
    assert "worker-died" in died.text
    assert copies_in(done.stdout, shared) == []
    assert (done.processes, done.files, list(shared.iterdir())) == ([], [], [])


WAITING = """
import os
import signal
from pathlib import Path

import pytest


@pytest.mark.ddl(strategies="multi_worker_mirrored")
def test_waits(ddl_strategy):
    path = Path(os.environ["PYTEST_WAITS"])
    path.with_suffix(".part").write_text(f"{Path.cwd()} {Path('data.txt').read_text()}")
    path.with_suffix(".part").rename(path)
    signal.pause()
"""


# The same end in another way.
@pytest.mark.nightly(each_commit=("pytest",))
@pytest.mark.parametrize("struck", ["pytest", "agents"])
def test_the_copies_are_removed_after_a_kill(
    emulated: Emulated, new_project: Callable[..., Project], shared: Path, struck: str
) -> None:
    emulated.close()
    # Hosts that share /tmp, so that what is left there can be seen. A copy of the project is made all the same.
    different = "from pytest_ddl.hosts import copies\ncopies.fingerprint = lambda *_: ''\n"
    project = new_project({"test_it.py": WAITING, "data.txt": "1.5", "conftest.py": different})
    waits = shared / "waits"
    process = project.start("--ddl-launcher=netns[hosts=2]", "--ddl-sync", env={"PYTEST_WAITS": str(waits)})
    try:
        wait_until(waits.exists, "the test did not begin", seconds=180.0)
        folder, data = waits.read_text().split()
        assert (Path(folder).name, data) == (project.folder.name, "1.5")
        assert Path(folder) != project.folder
        agents = [one for one in psutil.Process(process.pid).children(True) if "sys.stdin" in str(one.cmdline())]
        assert len(agents) == 2
        for one in agents if struck == "agents" else [process]:
            one.kill()
        done = project.finish(process, 60.0)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert done.processes == []
    wait_until(lambda: not Path(folder).parent.exists(), f"{folder} is left", seconds=10.0)
