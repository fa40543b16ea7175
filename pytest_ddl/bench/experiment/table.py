"""Make the tables as rows of text, for any format: published and measured numbers, differences, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_ddl.bench.experiment import numbers
from pytest_ddl.bench.experiment.numbers import BATCH_PER_REPLICA, PUBLISHED, Number, Scaling
from pytest_ddl.bench.experiment.results import Experiment, Training
from pytest_ddl.bench.records import EnergyReading

UNKNOWN = "not published"
NONE = "-"


@dataclass(frozen=True)
class Table:
    """Heading and rows of text; the first row names the columns."""

    title: str
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        head, *rest = self.rows
        lines = [head, ("---",) * len(head), *rest]
        return f"## {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def tables(experiment: Experiment) -> list[Table]:
    """Return all tables, in reading order."""
    return [_figures(experiment), _differences(experiment), _trust(experiment)]


def headline(experiment: Experiment) -> str:
    """Return the result in one sentence, with its uncertainty."""
    full, steady = numbers.all_epochs(experiment), numbers.steady_epochs(experiment)
    text = f"scaling efficiency on {experiment.replicas} replicas: {_percent(full.efficiency)} over all epochs"
    if steady is not None:
        text += f", {_percent(steady.efficiency)} without the first"
    return f"{text} (published: {numbers.published().efficiency.value:.2%}); {uncertainty(experiment)}"


def uncertainty(experiment: Experiment) -> str:
    """Describe the basis of the intervals in the table."""
    repeats = len(experiment.of(True))
    if repeats == 1:
        return "one run: no interval"
    return f"{repeats} runs of each, taking turns; intervals are t intervals at {numbers.LEVEL:.0%}"


def markdown(experiment: Experiment) -> str:
    """Return the whole page in Markdown."""
    parts = [f"# {TITLE}", f"{headline(experiment)[0].upper()}{headline(experiment)[1:]}."]
    parts += [f"> {note}" for note in experiment.notes]
    return "\n\n".join([*parts, *(table.markdown().rstrip() for table in tables(experiment))]) + "\n"


TITLE = "Scaling of an MNIST-shaped network: published and measured"


def _figures(experiment: Experiment) -> Table:
    full, steady, known = numbers.all_epochs(experiment), numbers.steady_epochs(experiment), numbers.published()
    n, singles, many = experiment.replicas, experiment.of(True), experiment.of(False)
    both = PUBLISHED.epochs, experiment.epochs

    def row(name: str, of: str, form: str) -> tuple[str, ...]:
        cells = (NONE if found is None else form.format(getattr(found, of)) for found in (known, full, steady))
        return (name, *cells)

    def times(name: str, of: str) -> tuple[str, ...]:
        found = [None if item is None else getattr(item, of) for item in (full, steady)]
        return (name, _seconds(getattr(known, of)), *(_seconds(item) for item in found))

    efficiency = f"{known.efficiency.value:.2%} (printed: {PUBLISHED.printed_efficiency:.2%}, from unrounded times)"
    rows = [
        ("", f"published, {both[0]} epochs", f"measured, all {both[1]} epochs", "measured, without the first epoch"),
        times("time on 1 replica", "single"),
        times(f"time on {n} replicas", "many"),
        _of_epochs("first epoch, tracing included", singles, many, n, first=True),
        _of_epochs("one epoch after it (median)", singles, many, n, first=False),
        row("speed-up T₁/T_N", "speed_up", "{:.3f}"),
        (
            "scaling efficiency T₁/(N·T_N)",
            efficiency,
            _percent(full.efficiency),
            NONE if steady is None else _percent(steady.efficiency),
        ),
        row("scaling overhead N·T_N/T₁", "overhead", "{:.3f}"),
        row("serial fraction (Karp-Flatt)", "serial_fraction", "{:.3f}"),
        ("test accuracy on 1 replica", f"{PUBLISHED.accuracy:.4f}", _accuracy(singles), ""),
        (f"test accuracy on {n} replicas", f"{PUBLISHED.accuracy:.4f}", _accuracy(many), ""),
        ("energy on 1 replica", UNKNOWN, _energy(singles), ""),
        (f"energy on {n} replicas", UNKNOWN, _energy(many), ""),
    ]
    return Table("Figures", tuple(rows))


def _of_epochs(
    name: str, singles: Sequence[Training], many: Sequence[Training], n: int, *, first: bool
) -> tuple[str, ...]:
    def mean_seconds(trainings: Sequence[Training]) -> str:
        if first:
            return f"{fmean([t.epoch_seconds[0] for t in trainings]):.2f} s"
        return f"{fmean([t.median_epoch_seconds for t in trainings]):.3f} s"

    measured = f"1: {mean_seconds(singles)}; {n}: {mean_seconds(many)}"
    if first:
        return (name, UNKNOWN, measured, NONE)
    known = [seconds / PUBLISHED.epochs for seconds in (PUBLISHED.single_seconds, PUBLISHED.many_seconds)]
    means = f"1: {known[0]:.2f} s; {PUBLISHED.replicas}: {known[1]:.2f} s (means of all)"
    return (name, means, NONE, measured if singles[0].epochs > 1 else NONE)


def _differences(experiment: Experiment) -> Table:
    single, many = experiment.single, experiment.many
    rule = {
        "replica": f"{experiment.batch} per replica: global batch {single.global_batch_size} on 1, "
        f"{many.global_batch_size} on {many.replicas}; the same images, 1/{many.replicas} of the steps",
        "global": f"global batch {experiment.batch} on both, split over the replicas: smaller batches on each",
    }[experiment.batch_rule]
    published_rule = (
        f"batch per replica fixed (its size is not published; {BATCH_PER_REPLICA} is that of TensorFlow's guides): "
        "global batch doubled"
    )
    network = "Conv 32, pooling, Dense 64, Dense 10 (as in TensorFlow's guides); Adam 0.001"
    rows = [
        ("what differs", "published", "measured"),
        ("hardware", "1 and 2 GPUs", _hardware(many)),
        ("strategy", "MirroredStrategy", f"{single.strategy} and {many.strategy}"),
        ("software", UNKNOWN, ", ".join(f"{name} {number}" for name, number in sorted(many.versions.items()))),
        (
            "images",
            "MNIST: 60 000 for training",
            f"{experiment.data}: {experiment.train_images} for training per epoch",
        ),
        ("tested on", UNKNOWN, f"{experiment.test_images} images that are not trained on"),
        ("network", "a CNN, not given in detail", network),
        ("batch rule", published_rule, rule),
        ("epochs", str(PUBLISHED.epochs), str(experiment.epochs)),
        ("what is timed", UNKNOWN, "only training, epoch by epoch; evaluation and building are not timed"),
    ]
    return Table("What differs", tuple(rows))


def _trust(experiment: Experiment) -> Table:
    trainings = experiment.trainings
    load = ", ".join(t.machine.get("load", "?") for t in trainings)
    rows = [
        ("guard", "result"),
        ("check of the training function against one device", experiment.check),
        (
            "all ranks trained",
            f"{len(trainings)} training(s): all steps of all epochs on every rank, finite losses, no retrace",
        ),
        ("replicas agree", "weights bit for bit the same at the end of each training"),
        ("accuracies on 1 and on N", str(numbers.agreement(experiment))),
        ("uncertainty", uncertainty(experiment)),
        ("load of the machine after each training (1-minute average)", load),
        ("command", f"`{experiment.command}`"),
        ("started", experiment.started),
    ]
    return Table("Why to believe it", tuple(rows))


def _hardware(training: Training) -> str:
    machine = training.machine
    cores = f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"
    if training.device == "gpu":
        return f"GPU: {machine.get('gpu') or 'unknown'}; {cores}"
    return f"CPU: {cores}" + (", cores of its own for each replica" if training.pinned else ", not pinned")


def _seconds(number: Number | None) -> str:
    if number is None:
        return NONE
    text = f"{number.value:.1f} s" if number.value >= 20 else f"{number.value:.2f} s"
    if number.low is None or number.high is None:
        return text
    return f"{text} ({number.low:.2f} to {number.high:.2f})"


def _percent(number: Number) -> str:
    text = f"{number.value:.2%}"
    if number.low is None or number.high is None:
        return text
    return f"{text} ({number.low:.1%} to {number.high:.1%})"


def _accuracy(trainings: Sequence[Training]) -> str:
    found = [t.accuracy for t in trainings]
    text = f"{fmean(found):.4f}"
    return text if len(found) == 1 else f"{text} ({min(found):.4f} to {max(found):.4f})"


def _energy(trainings: Sequence[Training]) -> str:
    readings: list[tuple[Training, EnergyReading]] = [(t, t.energy) for t in trainings]
    joules = [reading.joules for _t, reading in readings if reading.joules is not None]
    if len(joules) < len(readings):
        return f"none: {next(reading.reason for _t, reading in readings if reading.joules is None)}"
    examples = [t.examples_per_epoch * t.epochs / (r.joules or 1) for t, r in readings]
    return f"{fmean(joules):.0f} J, evaluating included ({fmean(examples):.1f} examples/J; {readings[0][1].source})"


def scaling_of(experiment: Experiment) -> dict[str, Scaling | None]:
    """Return the scalings that the plots show, by their names in the plots."""
    return {
        "published": numbers.published(),
        "all epochs": numbers.all_epochs(experiment),
        "without the first": numbers.steady_epochs(experiment),
    }
