"""Make the table of an evaluation: one row for each cell, with the reasons of missing numbers below it."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from functools import cached_property

from pytest_ddl.bench.evaluating import judging
from pytest_ddl.bench.evaluating.judging import PairedDifference, ToTarget
from pytest_ddl.bench.evaluating.ranking import Ranking, rank
from pytest_ddl.bench.evaluating.records import EvaluatedCell, Evaluation, TrainingCurve, one_line
from pytest_ddl.bench.launching.records import Launch
from pytest_ddl.bench.metrics import METRICS, Estimate, estimate
from pytest_ddl.bench.metrics.registry import digits
from pytest_ddl.messages import aligned
from pytest_ddl.web import results
from pytest_ddl.web.results import NONE, Table
from pytest_ddl.web.units import size

WIDTH = 118


class EvaluationSummary:
    """Results of an evaluation: its compared number, tests, ranks and rows."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self._notes: dict[str, int] = {}

    @cached_property
    def metric(self) -> str:
        """Name of the number that is compared with one device."""
        return judging.choose_metric(self.evaluation.curves, str(self.evaluation.identity.options["metric"]))

    @cached_property
    def differences(self) -> dict[str, PairedDifference]:
        return judging.differences(self.evaluation, self.metric)

    @cached_property
    def ranking(self) -> Ranking:
        return rank(self.evaluation, self.differences)

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """Each cell as text, by column. A number in brackets refers to a note."""
        return [self._row(cell) for cell in self.in_order]

    @property
    def in_order(self) -> list[EvaluatedCell]:
        """Cells in the order of their ranks, then those without a rank that ran, then those that cannot run."""
        ranks = self.ranking.ranks
        return sorted(
            self.evaluation.cells,
            key=lambda cell: (ranks.get(cell.variant, len(ranks) + 1), bool(cell.reason)),
        )

    @property
    def notes(self) -> list[str]:
        """Notes of the rows, in the order of their numbers."""
        _ = self.rows
        return list(self._notes)

    @property
    def wrong(self) -> list[str]:
        """Variants of which the comparison found a defect."""
        return [name for name, one in self.evaluation.verdicts.items() if one.verdict == "fail"]

    def estimate(self, name: str, cell: EvaluatedCell) -> Estimate | None:
        """Return a metric of the measured launches of a cell; ``None`` if it was not measured."""
        matrix = self.evaluation.matrix
        return estimate(name, matrix, cell.variant) if cell.variant in matrix.variants else None

    def launches(self, cell: EvaluatedCell) -> list[Launch]:
        return [one for one in self.evaluation.matrix.launches if one.strategy == cell.variant]

    def time_to(self, cell: EvaluatedCell) -> ToTarget:
        return judging.to_target(self.evaluation, cell)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        best = self.ranking.best
        if not best:
            return "No cell could be ranked"
        shared = f"{len(best)} cells cannot be told apart" if len(best) > 1 else "the best"
        return f"Shortest {self.ranking.by}: {', '.join(best)} ({shared})"

    # --------------------------------------------------------------------------------------------

    def _row(self, cell: EvaluatedCell) -> dict[str, str]:
        if cell.reason:
            place = self._note(f"{cell.variant} cannot run here: {cell.reason}")
            return {**dict.fromkeys(_titles(self), NONE), "variant": cell.variant, "correct": place}
        position = self.ranking.ranks.get(cell.variant)
        place = str(position) if position else f"- {self._note(f'no rank: {self.ranking.unranked[cell.variant]}')}"
        return {
            "rank": place,
            "variant": cell.variant,
            "correct": self._correct(cell),
            "result": self._result(cell),
            "against_one": self._against_one(cell),
            "steps": self._steps(cell),
            "time": self._time(cell),
            "throughput": self._number(cell, "throughput", digits),
            "efficiency": self._number(
                cell, f"{self.evaluation.scaling}_scaling_efficiency", "{:.2f}".format, base="1"
            ),
            "share": self._share(cell),
            "data": self._bytes(cell),
            "memory": self._memory(cell),
            "energy": self._number(cell, "joules_per_example", lambda value: digits(1000 * value)),
            "staleness": self._staleness(cell),
        }

    def _note(self, text: str) -> str:
        text = " ".join(text.split())
        return f"[{self._notes.setdefault(text, len(self._notes) + 1)}]"

    def _failed(self, cell: EvaluatedCell, part: str) -> str:
        why = self.evaluation.failures.get(cell.variant, {}).get(part)
        if why is None:
            return NONE
        return self._note(f"{part} {cell.variant} failed: {one_line(why)}")

    def _correct(self, cell: EvaluatedCell) -> str:
        if cell.is_reference:
            return "reference"
        verdict = self.evaluation.verdicts.get(cell.variant)
        if verdict is None:
            return self._failed(cell, "comparing")
        if verdict.verdict == "pass":
            return "yes"
        word = {"fail": "WRONG", "known": "known"}.get(verdict.verdict, "undecided")
        return f"{word} {self._note(f'{cell.variant}: {verdict.headline}')}"

    def _finals(self, cell: EvaluatedCell) -> list[float]:
        curves = self.evaluation.curves_of(cell.variant, cell.batch)
        return [value for curve in curves if (value := judging.final(curve, self.metric)) is not None]

    def _result(self, cell: EvaluatedCell) -> str:
        if "training" in self.evaluation.failures.get(cell.variant, {}):
            return self._failed(cell, "training")
        finals = self._finals(cell)
        if not finals:
            return NONE
        text = f"{statistics.fmean(finals):.4f}"
        return f"{text} ±{statistics.stdev(finals):.4f}" if len(finals) > 1 else text

    def _against_one(self, cell: EvaluatedCell) -> str:
        difference = self.differences.get(cell.variant)
        if difference is None:
            return NONE
        word, colon, _rest = difference.words.partition(": ")
        if not colon:
            return word
        return f"{word} {self._note(f'{cell.variant} against one device: {difference.words}')}"

    def _steps(self, cell: EvaluatedCell) -> str:
        to_target = self.time_to(cell)
        if to_target.missed and to_target.steps == ():
            last = f"; last loss {to_target.last:.3g}" if to_target.last is not None else ""
            return self._note(f"{cell.variant}: the target was not reached{last}")
        if not to_target.steps:
            return self._note(to_target.reason) if to_target.reason else NONE
        low, high = min(to_target.steps), max(to_target.steps)
        text = f"{statistics.geometric_mean(to_target.steps):.0f}"
        text += f" ({low} to {high})" if low != high else ""
        return f"{text} {self._note(f'{cell.variant}: {to_target.reason}')}" if to_target.missed else text

    def _time(self, cell: EvaluatedCell) -> str:
        to_target = self.time_to(cell)
        if to_target.seconds is None:
            return NONE
        if to_target.low is None or to_target.high is None:
            return f"{to_target.seconds:.3g}"
        return f"{to_target.seconds:.3g} ({to_target.low:.3g} to {to_target.high:.3g})"

    def _number(self, cell: EvaluatedCell, name: str, form: object, base: str = "") -> str:
        found = self.estimate(name, cell)
        if found is None:
            return self._failed(cell, "measuring")
        if cell.is_reference and METRICS[name].scope == "pair":
            return base or NONE
        if found.value is None:
            return self._note(found.note)
        text = form(found.value)  # type: ignore[operator]
        return f"{text} {found.spread()}".rstrip()

    def _share(self, cell: EvaluatedCell) -> str:
        """Return the share of a step that distribution costs. Its interval is one of percents, so it is no ±."""
        text = self._number(cell, "communication_share", "{:.0%}".format)
        share = self.estimate("communication_share", cell)
        if share is None or share.value is None or share.low is None or share.high is None or cell.is_reference:
            return text
        return f"{share.value:.0%} ({share.low:.0%} to {share.high:.0%})"

    def _bytes(self, cell: EvaluatedCell) -> str:
        launches = self.launches(cell)
        if not launches or cell.is_reference:
            return NONE
        counters = launches[0].counters
        if counters.uncounted:
            return self._note(counters.uncounted[0])
        if cell.kind == "copies":
            return self._note(
                f"{cell.strategy} copies gradients to one device and adds them there; bytes of copies are not counted"
            )
        return size(counters.reduced_bytes + counters.gathered_bytes)

    def _memory(self, cell: EvaluatedCell) -> str:
        """Return the peak of each rank in MiB: the largest over launches."""
        launches = self.launches(cell)
        if not launches:
            return NONE
        peaks = [max(ranks) for ranks in zip(*_peaks(launches), strict=True)]
        if not all(peaks):
            return self._note("this system has no /proc/self/status to read the peak memory from")
        return " + ".join(f"{peak / 2**20:.0f}" for peak in peaks)

    def _staleness(self, cell: EvaluatedCell) -> str:
        if cell.kind != "asynchronous":
            return NONE
        curves = self.evaluation.curves_of(cell.variant, cell.batch)
        if not curves:
            return NONE
        counts = staleness_of(curves)
        if not counts:
            return self._note(
                f"{cell.strategy}: staleness is counted only for steps of run.steps; this program schedules its own"
            )
        total = sum(counts.values())
        mean = sum(stale * number for stale, number in counts.items()) / total
        return f"{mean:.2f} (at most {max(counts)})"


def staleness_of(curves: Sequence[TrainingCurve]) -> dict[int, int]:
    """Return how many steps had each staleness, over all trainings."""
    counts: dict[int, int] = {}
    for curve in curves:
        for key, number in (curve.staleness or {}).items():
            counts[int(key)] = counts.get(int(key), 0) + number
    return dict(sorted(counts.items()))


def _peaks(launches: Sequence[Launch]) -> list[list[int]]:
    return [[rank.peak_memory_bytes for rank in one.ranks] for one in launches]


# -- text ------------------------------------------------------------------------------------------


def _titles(summary: EvaluationSummary) -> dict[str, str]:
    target = summary.evaluation.target
    to = f"to loss {target:g}" if target is not None else "to a target"
    return {
        "rank": "rank",
        "variant": "variant",
        "correct": "correct",
        "result": f"final {summary.metric}",
        "against_one": "against one device",
        "steps": f"steps {to}",
        "time": f"seconds {to}",
        "throughput": "examples/s",
        "efficiency": "efficiency",
        "share": "cost of distribution",
        "data": "comm. per step",
        "memory": "MiB of each rank",
        "energy": "J/1000 examples",
        "staleness": "staleness",
    }


_BLOCKS = (
    ("rank", "variant", "correct", "result", "against_one"),
    ("variant", "steps", "time", "throughput", "efficiency"),
    ("variant", "share", "data", "memory", "energy", "staleness"),
)


def tables(summary: EvaluationSummary) -> list[Table]:
    """Return the tables of the page, in reading order."""
    titles = _titles(summary)
    result = [Table("Cells", (tuple(titles.values()), *(tuple(row.values()) for row in summary.rows)))]
    if summary.notes:
        notes = [(f"[{place}]", note) for place, note in enumerate(summary.notes, 1)]
        result.append(Table("Notes", (("", "reason"), *notes)))
    result += [_batch_table(summary), _settings(summary)]
    return result


def _cells(row: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in names)


def _batch_table(summary: EvaluationSummary) -> Table:
    sweep = summary.evaluation.sweep
    title = "Steps to the target by global batch size, on one device"
    rows: list[tuple[str, ...]] = [("batch", "steps", "learning rate", "regime")]
    if sweep is None:
        why = summary.evaluation.sweep_failure or "no sweep was asked for"
        return Table(title, (*rows, (NONE, why, NONE, NONE)))
    regimes = regimes_of(summary.evaluation)
    for batch, trial in sweep.best.items():
        rows.append((str(batch), str(trial.steps), f"{trial.learning_rate:g}", regimes.get(batch, NONE)))
    rows += [("", note, "", "") for note in sweep.notes]
    return Table(title, tuple(rows))


def regimes_of(evaluation: Evaluation) -> Mapping[int, str]:
    """Return the regime of each batch size; empty if there are too few for a fit."""
    from pytest_ddl.bench.metrics.registry import NoNumberError

    sweep = evaluation.sweep
    try:
        scaling = sweep.scaling if sweep is not None else None
    except NoNumberError:
        return {}
    if scaling is None:
        return {}
    return {batch: regime.value for (batch, _steps), regime in zip(scaling.points, scaling.regimes, strict=True)}


def _settings(summary: EvaluationSummary) -> Table:
    evaluation = summary.evaluation
    identity, options = evaluation.identity, evaluation.identity.options
    rule = "per replica" if options["batch_rule"] == "replica" else "over all replicas"
    facts = {
        "training function": f"{identity.target} (digest {identity.digest[:12]})",
        "batch": f"{options['batch']} {rule}",
        "seeds and launches": f"{options['seeds']} trainings and {options['launches']} launches of each cell",
        "ranking": f"{summary.ranking.by}; ranks differ where the 95 % intervals of the differences exclude 0, for all "
        "pairs together. The intervals in these tables are those of one cell each",
        "± of a result": "standard deviation over seeds; of other numbers half of the 95 % t interval over launches",
        "versions": ", ".join(f"{name} {number}" for name, number in sorted(identity.versions.items())),
        "machine": ", ".join(f"{value}" for name, value in identity.machine.items() if value and name != "host"),
        "took": f"{evaluation.seconds / 60:.1f} minutes",
        "started": evaluation.started,
        "command": f"`{evaluation.command}`",
    }
    return Table("How it was measured", (("", ""), *facts.items()))


def markdown(summary: EvaluationSummary) -> str:
    """Return the whole page in Markdown."""
    notes = warnings_of(summary)
    return results.markdown(title_of(summary.evaluation), summary.headline, notes, tables(summary))


def title_of(evaluation: Evaluation) -> str:
    return f"Evaluation of {evaluation.identity.target}"


def warnings_of(summary: EvaluationSummary) -> list[str]:
    """Return what makes results wrong or less reliable, in words."""
    warnings = [
        f"{name} is WRONG: {summary.evaluation.verdicts[name].headline}. Its speed has no meaning."
        for name in summary.wrong
    ]
    if not summary.evaluation.complete:
        warnings.append("The evaluation is not complete: run the same command again to continue.")
    shared = [cell.variant for cell in summary.evaluation.cells if _shares_cores(summary, cell)]
    if shared:
        warnings.append(
            f"{', '.join(shared)}: there are fewer cores than replicas, so the speed says nothing about scaling."
        )
    return [*warnings, *summary.evaluation.notes]


def _shares_cores(summary: EvaluationSummary, cell: EvaluatedCell) -> bool:
    return any(one.device == "cpu" and not one.pinned for one in summary.launches(cell))


def text(summary: EvaluationSummary) -> str:
    """Return the tables for a terminal, in blocks that fit beside each other."""
    titles = _titles(summary)
    lines = [f"{summary.headline}.", *warnings_of(summary)]
    lines = [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]
    for names in _BLOCKS:
        lines += ["", *aligned([_cells(titles, names), *(_cells(row, names) for row in summary.rows)])]
    lines.append("")
    for place, note in enumerate(summary.notes, 1):
        lines += textwrap.wrap(f"[{place}] {note}", WIDTH, subsequent_indent="    ")
    sweep = summary.evaluation.sweep
    if sweep is not None:
        lines += ["", "Steps to the target by global batch size, on one device:", *str(sweep).splitlines()]
    elif summary.evaluation.sweep_failure:
        lines += ["", f"Steps to the target by batch size: {summary.evaluation.sweep_failure}"]
    return "\n".join(lines) + "\n"
