"""Record the collectives that a rank executes, in order, in its record and in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.records import CollectiveRecord
from pytest_ddl.training import adapter
from pytest_ddl.training.collective_calls import CollectiveCall, caught
from pytest_ddl.training.collective_log import CollectiveLog, path_of
from pytest_ddl.training.observers.base import Observer

LARGEST = 100_000
"""Maximum number of collectives to record, so that the log does not fill the disk."""


class CollectiveObserver(Observer):
    """Observer that fills ``RankRecord.collectives``, if there are several ranks, whose collectives may differ."""

    _executed: list[CollectiveRecord]

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._executed = []
        if self.context.num_ranks < 2 or not self.settings.tmp_path:
            yield
            return
        path = path_of(self.settings.tmp_path, self.settings.attempt, self.context.rank)
        with CollectiveLog(path) as log:

            def issued(call: CollectiveCall, group: int) -> None:
                if len(self._executed) >= LARGEST:
                    self.recorder.note(
                        f"collectives after the first {LARGEST} of {self.context.task} are not logged and not compared"
                    )
                    return
                try:
                    record = self._record(call, group)
                    self._executed.append(record)
                    log.write(record)
                except Exception as error:  # an exception here would be raised in the program's step
                    self.recorder.note(f"a collective could not be logged: {type(error).__name__}: {error}")

            with caught(self.context.strategy, issued) as possible:
                if not possible:
                    self.recorder.note("the collectives of this rank could not be logged in this TensorFlow release")
                yield

    def _record(self, call: CollectiveCall, group: int) -> CollectiveRecord:
        called = adapter.user_frames()
        return CollectiveRecord(
            kind=call.kind,
            op="SUM" if call.kind == "all_reduce" else "",
            shape=call.shape,
            dtype=call.dtype,
            where=call.where or called,
            called="" if called == call.where else called,
            group=group,
            step=self.recorder.completed,
            parts=call.parts,
            names=call.names,
        )

    def end_run(self) -> Mapping[str, Any]:
        return {"collectives": tuple(self._executed)}
