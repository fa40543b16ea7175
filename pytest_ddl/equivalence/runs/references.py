"""Runs on one device, computed once and shared by all strategies and all processes of pytest-xdist."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_ddl.cluster import ship
from pytest_ddl.cluster.protocol import Snapshot
from pytest_ddl.records import TrainingRecord
from pytest_ddl.training.settings import RunSettings

if TYPE_CHECKING:
    from pytest_ddl.harness import Harness


class ReferenceStore:
    """Store of reference runs, in files that all xdist workers of the session see."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._known: dict[str, TrainingRecord] = {}

    def get(self, key: tuple[ship.Job, RunSettings, str, str], compute: Callable[[], TrainingRecord]) -> TrainingRecord:
        """Return the reference of a job. The first call computes it.

        :param key: the job, its settings, its device and the test that asks. The test is included because another test
            may have written other files. Changes of the environment, the current directory, the import path and the
            globals of modules are added to the key.
        """
        job, settings, device, test = key
        around = Snapshot.now().since(self._harness.surroundings)
        values = sorted((module, sorted(values.items())) for module, values in job.overrides.items())
        others = repr((settings, device, test, sorted(around.environ.items()), around.directory, around.path, values))
        digest = hashlib.sha256(b"\0".join([job.payload, others.encode()])).hexdigest()
        if digest in self._known:
            return self._known[digest]
        folder = self._harness.folder / "references"
        folder.mkdir(exist_ok=True)
        with (folder / digest).open("ab+") as file:
            # A second process waits here until the first one has computed the reference.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read()
            record: TrainingRecord = pickle.loads(data) if data else compute()
            if any(error.type == "deadline" for _rank, error in record.errors):
                return record  # another caller may have more time
            if not data:
                file.write(pickle.dumps(record, protocol=5))
        self._known[digest] = record
        return record
