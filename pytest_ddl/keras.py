"""Callbacks for ``Model.fit`` of Keras 3 and of tf_keras."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import keras

from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.guarding.guard import Guard

__all__ = ["ReplicaGuard"]


class ReplicaGuard(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Callback that guards a real job: :func:`pytest_ddl.guard` for ``Model.fit``.

    ``model.fit(..., callbacks=[ReplicaGuard(every=100)])`` checks before the first step, after it, every 100 steps, and
    at the end. Give it to ``fit`` on each worker, because a check compares the workers with each other.
    """

    async_safe = True
    """Keras 3 may call the end of a batch from another thread. So nothing but a number is kept there."""
    _supports_tf_logs = True  # of tf_keras, which would otherwise fetch the logs of each batch

    def __init__(
        self,
        every: int = 100,
        *,
        on_finding: str = "raise",
        tolerance: float | None = None,
        expect: Mapping[str, str] | Collection[str] = (),
    ) -> None:
        """Take the arguments of :func:`pytest_ddl.guard`.

        :param every: number of steps between two checks.
        :param on_finding: ``"raise"`` or ``"log"``.
        :param tolerance: by how much copies may differ, as a fraction of the largest value of the variable.
        :param expect: causes that are intended, with reasons.
        """
        super().__init__()
        self._settings = (every, on_finding, tolerance, expect)
        self._guard: Guard | None = None
        self._guarded: Any = None
        self._earlier = 0
        self._in_epoch = 0

    @property
    def findings(self) -> list[Finding]:
        """All findings so far."""
        return [] if self._guard is None else self._guard.findings

    def on_train_begin(self, logs: Any = None) -> None:
        """Check the initial values."""
        if self._guard is None or self._guarded is not self.model:
            if keras.backend.backend() != "tensorflow" and isinstance(self.model, keras.Model):
                raise ValueError(
                    f"ReplicaGuard needs Keras with TensorFlow, and its backend is {keras.backend.backend()}"
                )
            every, on_finding, tolerance, expect = self._settings
            strategy = self.model.distribute_strategy
            self._guard = Guard(strategy, self.model, None, None, every, on_finding, tolerance, expect)
            self._guarded, self._earlier = self.model, 0
        self._guard.check()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin to count the steps of an epoch."""
        self._in_epoch = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Check the state after the batch before, if a check is due."""
        if self._guard is not None:
            self._guard.reached(self._earlier + int(batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Remember how many steps of the epoch are done."""
        self._in_epoch = max(self._in_epoch, int(batch) + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Check after the last step of the epoch, if a check is due."""
        self._earlier += self._in_epoch
        self._in_epoch = 0
        if self._guard is not None:
            self._guard.reached(self._earlier)

    def on_train_end(self, logs: Any = None) -> None:
        """Check the steps since the last check."""
        if self._guard is not None:
            self._guard.check()

    # tf_keras asks its callbacks whether they need the hooks of batches.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
