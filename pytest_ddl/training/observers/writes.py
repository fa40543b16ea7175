"""Record the files that a rank writes, from audit events of Python and from the save calls of TensorFlow and Keras."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_ddl.records import WriteRecord
from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import python_writes, write_log
from pytest_ddl.training.lines import WRITE
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.observers import saving

_IGNORED = ("/dev/", "/proc/", "/sys/", sysconfig.get_paths()["purelib"], str(Path.home() / ".keras"))


class WriteObserver(Observer):
    """Observer that fills ``RankRecord.writes`` if there are several ranks.

    Each path is recorded once for each kind of call and each step.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._writes: dict[WriteRecord, None] = {}
        self._failed: dict[str, None] = {}
        """Paths that a call tried to save to, and failed."""
        if self.context.num_ranks < 2:
            yield  # one process cannot collide with other ranks
            return
        with saving.observed(self._hear), python_writes.heard(self._writes_by_python):
            yield

    def end_run(self) -> Mapping[str, Any]:
        facts = RunFacts(failed_saves=tuple(self._failed)) if self._failed else RunFacts()
        return {"writes": tuple(self._writes), "facts": facts}

    def _hear(self, call: saving.Call) -> None:
        if call.writes:
            shown = self._wrote(call.path, call.api)
            if call.failed and shown:
                self._failed.setdefault(shown)

    def _writes_by_python(self, path: str, api: str) -> None:
        with suppress(Exception):  # an exception here would be raised in the program's call
            self._wrote(path, api)

    def _wrote(self, path: str, api: str) -> str:
        """Record a write, and return its path as it is shown; an empty text if it does not count."""
        whole = os.path.realpath(path)
        # Python opens the folder itself for a temporary file without a name.
        if whole.startswith(_IGNORED) or "__pycache__" in whole or (api == "open" and os.path.isdir(whole)):
            return ""
        folder = os.path.realpath(self.settings.tmp_path) + os.sep if self.settings.tmp_path else None
        shown = whole.removeprefix(folder) if folder else whole
        if shown.startswith("."):  # files of this package are hidden
            return ""
        record = WriteRecord(shown, api, self.recorder.completed)
        if record not in self._writes:
            self._writes[record] = None
            if folder:
                write_log.append(write_log.path_of(folder, self.settings.attempt, self.context.rank), record)
        self.recorder.lines.add(WRITE.format(shown))
        return shown
