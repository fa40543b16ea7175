"""Compare a script with one device, and decide what can be said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_ddl.equivalence.diagnosis.limitations import known_limitation
from pytest_ddl.equivalence.verdict.report import DivergenceError, Report
from pytest_ddl.records import ErrorRecord, TrainingRecord, VariableKind
from pytest_ddl.run_facts import ScriptRecord
from pytest_ddl.trying.counts import line_with_bare_count, line_with_copied_count, line_with_other_count
from pytest_ddl.trying.found import OWN_ERRORS, explained, text_of, text_of_cell
from pytest_ddl.trying.legacy import imports_keras
from pytest_ddl.trying.program import TriedScript
from pytest_ddl.trying.source import Script
from pytest_ddl.trying.strategies import Meaning

_UNSUPPORTED = "unsupported-by-framework"
_NUMBERS = ("STEP-EQ", "LOSS-EQ", "OPT-STATE", "METRIC-EQ")
"""Checks of numbers, which a wrong hypothesis about the number of replicas makes fail."""
_UNSEEN = (
    "no training step was seen. A step is a call of model.fit, or a call of a tf.function or of strategy.run after "
    "which a Keras optimizer has counted an update. Call the training at the top level of the script, or below "
    "`if __name__ == '__main__':`"
)
_NO_OPTIMIZER = (
    "no training step was seen, because the weights change without an optimizer of Keras. Apply the gradients with "
    "one, as in `optimizer.apply_gradients(zip(gradients, variables))`"
)
_NO_STEP = "No step was compared, because this cell trains, or makes what is trained: mend it, or remove it"
_UNCLEAR = (
    "a loss is scaled by the number of replicas, and one device cannot know whether that is right. Divide the sum of "
    "the losses of the examples by the global batch size, and by nothing else: "
    "tf.nn.compute_average_loss(losses, global_batch_size=GLOBAL_BATCH_SIZE)"
)
_UNRUN = (
    "this training has not run, because the script was ended at the limit of steps of an earlier loop. What ran "
    "agrees. Let that loop end by itself: raise --steps or --epochs to what it takes"
)
_SHARED = (
    "the number of replicas enters the arithmetic here. One device was told the number of the strategy, so that it "
    "computes the same, right or wrong; with its own number it computes something else. Read "
    "strategy.num_replicas_in_sync in the replica function itself, or divide by the global batch size only"
)
_SAME_BATCHES = (
    "the number of replicas enters the arithmetic here, and no batch grows with it. With its own number, one device "
    "gets the same batches and trains in another way. A learning rate should follow the global batch size, not the "
    "number of replicas: make the global batch size BATCH_PER_REPLICA * strategy.num_replicas_in_sync, or leave the "
    "number out here"
)
_OF_ONE_DEVICE = (
    "one device cannot run this with the number of replicas of the strategy ({}), and with its own number it trains in "
    "another way, so there is nothing to compare with. Take what depends on the number from the batch itself, such as "
    "tf.shape(batch)[0], or write the loop as train(run) for ddl_equivalence"
)
_NOT_COMPARED = "This is usual if the global batch grows as much. Whether it trains as well was not compared"
_LEFT_OPEN = f"{'left open:':<13}"
_LESS = (
    "Give it more time (--timeout=SECONDS) or less work: --steps=1, or a smaller number in the script if it says "
    "itself how many steps it makes, as in range(STEPS) with a dataset that never ends"
)
_SLOW = f"the script did not end in time on one device. {_LESS}"
_SLOW_THERE = (
    "the script did not end in time under the strategy, and on one device it did. It may be slow, or wait forever. "
    f"{_LESS}"
)

_IN_SCOPE = "To compare it, make or load the model inside strategy.scope()"
_OTHER_KERAS = "tf_keras may not have this limit: try it with --keras=tf_keras"
_CUT = ("StopIteration", "OutOfRangeError")
"""Exceptions that a script gets if it reads more batches than ``--steps``."""


_OPEN = "METRIC-EQ"
"""Check that may leave values open: metrics with a threshold, for example, jump."""


class UndecidedError(Exception):
    """Error for a script about which nothing can be said. The message has the line to add or to change."""

    def __init__(self, reason: str, fails: bool = False, of_framework: bool = False) -> None:
        super().__init__(reason)
        self.of_framework = of_framework
        """True if the reason is a limit of TensorFlow or Keras, and not in the script."""
        self.fails = fails
        """True if the script, or a cell of it, fails on one device, perhaps because of the version of Keras."""


class _NeedsAllError(Exception):
    """Error for a script whose step reads more batches than it was given."""


def compare_script(
    compare: Callable[..., Report],
    script: TriedScript,
    arguments: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Compare a script, and again with whole datasets or another number of replicas if these could change the verdict.

    :param compare: returns the report of a comparison, as ``ddl_equivalence`` does, also an undecided one.
    :param tell: function that shows the user a text about what was found.
    :raises DivergenceError: if the script is wrong, whatever the number of replicas means in it.
    :raises UndecidedError: if the script could not be followed.
    """
    __tracebackhide__ = True
    trial = _Trial(compare, script, arguments, tell)
    with suppress(_NeedsAllError):
        return _compared(trial)
    return _compared(trial.with_script(whole=True))


@dataclass(frozen=True)
class _Trial:
    """Comparison of a script, which may be repeated with the script run in another way."""

    compare: Callable[..., Report]
    script: TriedScript
    arguments: Mapping[str, Any]
    tell: Callable[[str], None]

    def with_script(self, **changes: Any) -> _Trial:
        return replace(self, script=replace(self.script, **changes))

    def report(self) -> Report:
        """Return the report of the comparison, also of one that fails."""
        try:
            return self.compare(self.script, **self.arguments)
        except DivergenceError as error:
            return error.report

    def unless_failed(self) -> Report | None:
        """Return the report of the comparison, or ``None`` if it fails."""
        report = self.report()
        if report.verdict == "fail":
            return None
        _refuse_open(report)
        return report


def _compared(trial: _Trial) -> Report:
    __tracebackhide__ = True
    script = trial.script
    try:
        report, error = trial.compare(script, **trial.arguments), None
    except DivergenceError as raised:
        report, error = raised.report, raised
    if script.meaning is Meaning.BATCHES and (as_given := _error_as_given(report)) is not None:
        return _with_own_number(trial, as_given)
    trial.tell(_summary(report))
    if error is not None:
        _refuse_unseen(report, script.source)
    _refuse_open(report)
    if script.failing is None and not _fails_alike(report):
        only = _script(report.reference).failed
        return _compared(trial.with_script(failing=only))
    if not report.distributed.errors and not _fails_alike(report):
        there = {cell[:2] for cell in _script(report.distributed).failed}
        cells = [text_of_cell(cell) for cell in _script(report.reference).failed if cell[:2] not in there]
        raise UndecidedError(f"{'; '.join(cells)} (on one device, but not under the strategy)")
    if error is not None:
        if script.meaning is not Meaning.BATCHES:
            raise error
        report = _with_another_meaning(trial, error)
        trial.tell(_summary(report))
    elif left_open := _shared_count(trial, report):
        trial.tell(f"{_summary(report)}\n{_LEFT_OPEN} {left_open}")
    failed = [cell for cell in _script(report.reference).failed if cell.error not in _CUT]
    failed = [cell for cell in failed if script.source.needs_cell(cell.cell)]
    if failed:
        raise UndecidedError(
            f"{report.distributed.num_steps} step(s) agree, but {text_of_cell(failed[0])} (on one device, too). What "
            "it does was not compared: mend the cell, or remove it",
            fails=True,
        )
    unrun = _script(report.reference).unrun
    if unrun:
        raise UndecidedError(f"{unrun}: {_UNRUN}")
    return report


def _error_as_given(report: Report) -> ErrorRecord | None:
    """Return the error of one device with the number of the strategy, if the strategy runs the script."""
    reference, distributed = report.reference, report.distributed
    if not _script(reference).told or distributed.errors:
        return None
    errors = [error for _rank, error in reference.errors]
    if any(error.type == "deadline" or error.type.rpartition(".")[2] in (*_CUT, *OWN_ERRORS) for error in errors):
        return None
    return errors[0] if errors else None


def _with_own_number(trial: _Trial, as_given: ErrorRecord) -> Report:
    """Return the report of a comparison in which one device reads its own number of replicas.

    :param as_given: error of one device with the number of the strategy.
    :raises DivergenceError: if it differs although it trains on as many examples at the same rate.
    :raises UndecidedError: if one device fails with its own number, too, or trains in another way.
    """
    __tracebackhide__ = True
    try:
        return _compared(trial.with_script(meaning=Meaning.OWN))
    except DivergenceError as error:
        examples, rates = _first_step(error.report.reference)
        if examples is not None and (examples, rates) == _first_step(error.report.distributed):
            raise  # nothing that the number may rightly change is different
        reason = _OF_ONE_DEVICE.format(explained(as_given))
        raise UndecidedError(f"{_place_of(as_given)}{reason}") from None


def _with_another_meaning(trial: _Trial, error: DivergenceError) -> Report:
    """Return the report of a comparison in which the number of replicas has another meaning, and that passes.

    :raises DivergenceError: the error, if there is none.
    :raises UndecidedError: if the values do not show whether the script is right.
    """
    __tracebackhide__ = True
    first = error.report.findings[0] if error.report.findings else None
    if not _script(error.report.reference).counts_replicas or first is None or first.check not in _NUMBERS:
        raise error
    report = trial.with_script(meaning=Meaning.NOTHING).unless_failed()
    if report is not None:
        return report
    unclear = trial.with_script(meaning=Meaning.EVERYWHERE).unless_failed() is not None
    script = trial.script
    line = line_with_copied_count(script.source.code, _told_lines(script, error.report))
    if unclear or line is not None:
        place = script.source.file if line is None else f"{script.source.file}:{line}"
        raise UndecidedError(f"{place}: {_UNCLEAR}") from None
    raise error


def _shared_count(trial: _Trial, report: Report) -> str:
    """Ask what both runs compute with the number of the strategy, beside the size of a batch.

    One device runs with its own number, too. Its batches may then be smaller, so a second run joins them. Only code
    that may use the number for something else is asked about.

    :return: a line for the output if more than the batch grows with the number, such as a learning rate; else empty.
    :raises UndecidedError: if one device trains in another way, and the batch does not grow or the use is no product.
    """
    script = trial.script
    told = _told_lines(script, report)
    bare = line_with_bare_count(script.source.code, told)
    line = line_with_other_count(script.source.code, told) if bare is None else bare
    if line is None or script.meaning is not Meaning.BATCHES:
        return ""
    place = f"{script.source.file}:{line}"
    own = trial.with_script(meaning=Meaning.OWN).report()
    if own.verdict in ("pass", "known"):
        return ""
    before, after = _first_step(report.reference), _first_step(own.reference)
    if before[0] == after[0] is not None:
        if own.findings and own.findings[0].cause == "examples-dropped":
            raise DivergenceError(own)  # with batches of one size, the number chose a part of the examples
        raise UndecidedError(f"{place}: {_SAME_BATCHES}")
    if trial.with_script(meaning=Meaning.NOTHING).unless_failed() is not None:
        return ""
    if bare is not None:
        raise UndecidedError(f"{place}: {_SHARED}")
    short = f"{Path(script.source.file).name}:{line}"
    if before[1] == after[1]:
        return f"what {short} computes from the number of replicas is equal in both runs. {_NOT_COMPARED}"
    rates = (", ".join(f"{rate:.6g}" for rate in rates) for rates in (before[1], after[1]))
    text = "the learning rate follows the number of replicas ({}): {} in both runs, {} on one device alone. {}"
    return text.format(short, *rates, _NOT_COMPARED)


def _first_step(record: TrainingRecord) -> tuple[int | None, tuple[float, ...]]:
    """Return how many examples a run consumed in its first step, if this is known, and its learning rates."""
    ranks = record.ranks
    if not ranks or not all(rank.steps for rank in ranks):
        return None, ()
    first = ranks[0].steps[0].snapshot
    rates = [one.index for one in ranks[0].variables if one.kind is VariableKind.LEARNING_RATE]
    values = (first[index][0] for index in rates if index in first)
    return sum(batch.size for rank in ranks for batch in rank.steps[0].batches) or None, tuple(map(float, values))


def _told_lines(script: TriedScript, report: Report) -> set[int]:
    """Return the lines of the script at which one device read the number of the strategy."""
    places = (place.rpartition(":") for place in _script(report.reference).told)
    return {int(line) for file, _, line in places if file == Path(script.source.file).name}


def _fails_alike(report: Report) -> bool:
    """Return True if the same cells of a notebook failed on one device and on each rank."""
    ranks = (*report.reference.ranks, *report.distributed.ranks)
    cells = [[cell[:2] for cell in rank.facts.get("script", ScriptRecord()).failed] for rank in ranks]
    return all(cell == cells[0] for cell in cells)


def _refuse_unseen(report: Report, source: Script) -> None:
    """Raise an exception for a report that only shows what could not be followed.

    :raises UndecidedError: with the line to add.
    """
    reference, distributed = report.reference, report.distributed
    if report.findings and report.findings[0].cause == _UNSUPPORTED:
        raise _unsupported(report, source)
    errors = [error for _rank, error in (*reference.errors, *distributed.errors)]
    if reference.refused is not None:
        errors.append(reference.refused)
    for error in errors:
        if error.type.rpartition(".")[2] in OWN_ERRORS:
            raise UndecidedError(error.message)
    for _rank, error in reference.errors:
        # Without an end on one device, batches in another order are not replayed, and look like a finding.
        if error.type == "deadline":
            raise UndecidedError(f"{_place_of(error)}{_SLOW}")
        if _script(reference).cut and error.type.rpartition(".")[2] in _CUT:
            raise _NeedsAllError
        raise UndecidedError(f"{_place_of(error)}the script fails on one device, too: {explained(error)}", True)
    # A rank that waits for another one is proved by the logs of collectives. A single rank may only be slow.
    late = [error for _rank, error in distributed.errors if error.type == "deadline"]
    if len(distributed.ranks) == 1 and late:
        raise UndecidedError(f"{_place_of(late[0])}{_SLOW_THERE}")
    if not reference.num_steps:
        raise _without_steps(_script(reference), source)
    _refuse_open(report)


def _unsupported(report: Report, source: Script) -> UndecidedError:
    """Return the error for a report whose first finding is that the framework cannot run the script."""
    raised = [*report.reference.errors, *report.distributed.errors]
    limitations = [known_limitation(error, rank.optimizers) for rank, error in raised]
    known = [limitation for limitation in limitations if limitation is not None]
    of_keras = not imports_keras(source.code) and all(limitation.of_keras for limitation in known)
    reason = report.findings[0].message + (f" ({_OTHER_KERAS})" if of_keras else "")
    advice = next((f". {limitation.advice.text}" for limitation in known if limitation.advice is not None), "")
    place = _place_of(raised[0][1]) if raised else ""
    return UndecidedError(f"{place}{reason}{advice.rstrip('.')}", of_framework=True)


def _without_steps(script: ScriptRecord, source: Script) -> UndecidedError:
    """Return the error for a script of which no step was seen on one device."""
    left_out = script.lines.get("not compared", ())
    if left_out:
        return UndecidedError(_outside(left_out))
    failed = [cell for cell in script.failed if cell.error not in _CUT]
    if not failed:
        own = "optimizers" not in script.lines and "GradientTape" in source.code
        return UndecidedError(_NO_OPTIMIZER if own else _UNSEEN)
    after = _NO_STEP if source.needs_cell(failed[0].cell) else f"After this, {_UNSEEN}"
    return UndecidedError(f"{text_of_cell(failed[0])} (on one device, too). {after}", True)


def _place_of(error: ErrorRecord) -> str:
    return f"{Path(error.file).name}:{error.line}: " if error.file else ""


def _refuse_open(report: Report) -> None:
    """Raise an exception for a report that leaves more open than metrics.

    :raises UndecidedError: with the reasons.
    """
    left_out = _script(report.reference).lines.get("not compared", ())
    if left_out and any("unwatched" in rank.facts for rank in report.reference.ranks):
        raise UndecidedError(_outside(left_out))
    if report.verdict == "inconclusive" and not (report.doubts and _open_metrics(report)):
        loops = "; ".join(_script(report.reference).lines.get("loops", ()))
        raise UndecidedError(f"{loops}{': ' if loops else ''}{'; '.join(report.inconclusive)}" or _UNSEEN)


def _outside(left_out: Sequence[str]) -> str:
    """Return what to say about calls whose models were created outside ``strategy.scope()``."""
    return f"{'; '.join(left_out)}. {_IN_SCOPE}"


def _open_metrics(report: Report) -> tuple[str, ...]:
    """Return what only metrics leave open in a comparison whose training agrees. Otherwise nothing is returned."""
    if report.findings or any(doubt.check != _OPEN for doubt in report.doubts):
        return ()
    return report.inconclusive


def _script(record: TrainingRecord) -> ScriptRecord:
    """Return what was found in the script; nothing if the run ended before."""
    return record.ranks[0].facts.get("script", ScriptRecord()) if record.ranks else ScriptRecord()


def _summary(report: Report) -> str:
    script = next((one for one in map(_script, (report.distributed, report.reference)) if one != ScriptRecord()), None)
    if script is None:
        return ""
    lines = text_of(script)
    if told := _script(report.reference).told:
        same = f"one device reads the number of the strategy, too ({', '.join(told)})"
        lines.append(f"{'replicas:':<13} {same}: what follows from it, such as a learning rate, is equal in both runs")
    lines.append(f"{'compared:':<13} {report.distributed.num_steps} step(s)")
    return "\n".join([*lines, *(f"{_LEFT_OPEN} {reason}" for reason in _open_metrics(report))])
