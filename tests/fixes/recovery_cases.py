"""Mistakes of programs that continue after an interruption, each with the verdict that names its fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddl.faults.verdict import FIXES, RecoveryVerdict
from tests.fixes.templates import LOOP

_MADE = """
optimizer.build(model.trainable_variables)
step = tf.Variable(0, dtype=tf.int64, trainable=False)
<kept>
path, counted = str(run.tmp_path / "saved"), run.tmp_path / "step.txt"
if tf.io.gfile.exists(path + ".index"):
    checkpoint.read(path)
    <counted>
"""
_LOOP = """
<skipped>
for batch in run.batches(dataset):
    loss = train_step(batch)
    run.record(loss=loss)
    step.assign_add(1)
    counted.write_text(str(step.numpy()))
    if step % 2 == 0:
        checkpoint.write(path)
    if step == 6:
        break
"""


@dataclass(frozen=True)
class RecoveryCase:
    """One mistake, and the holes of a program in which the fix takes its place."""

    verdict: RecoveryVerdict
    hole: str
    mistake: str
    given: Mapping[str, str] = field(default_factory=dict)
    """Lines of other holes, in both programs."""

    def wrong(self) -> str:
        """Return the program with the mistake."""
        return self._filled(self.mistake)

    def right(self) -> str:
        """Return the program in which the code of the fix has replaced the mistake."""
        return self._filled(FIXES[self.verdict].code)

    def _filled(self, lines: str) -> str:
        holes = {"kept": FIXES[RecoveryVerdict.REPLAYED].code, "skipped": FIXES[RecoveryVerdict.EXAMPLES].code}
        return LOOP.filled({"made": _MADE, "loop": _LOOP, **holes, **self.given, self.hole: lines})


_WITHOUT_STEP = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)"
CASES = (
    RecoveryCase(RecoveryVerdict.EXAMPLES, "skipped", "dataset = dataset.repeat()"),
    RecoveryCase(
        RecoveryVerdict.REPLAYED, "kept", _WITHOUT_STEP, given={"skipped": "dataset = dataset.repeat().skip(step)"}
    ),
    RecoveryCase(
        RecoveryVerdict.LOST,
        "kept",
        f"{_WITHOUT_STEP}\nstep.assign(int((run.tmp_path / 'step.txt').read_text()) if run.attempt > 1 else 0)",
    ),
)
