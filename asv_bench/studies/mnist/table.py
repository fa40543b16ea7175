"""Make the tables as rows of text, for any format: published and measured numbers, differences, and checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from asv_bench.studies.mnist.results import (
    BATCH_PER_REPLICA,
    LEVEL,
    PUBLISHED,
    Experiment,
    Number,
    Scaling,
    Training,
)
from pytest_ddl.web.results import NONE, Table

TITLE = "Scaling of an MNIST-shaped network: published and measured"
UNKNOWN = "not published"


def tables(experiment: Experiment) -> list[Table]:
    """Return all tables, in reading order."""
    return [_figures(experiment), _differences(experiment), _trust(experiment)]


def headline(experiment: Experiment) -> str:
    """Return the result in one sentence, with its uncertainty."""
    full, steady = experiment.all_epochs, experiment.steady_epochs
    text = f"Scaling efficiency on {experiment.replicas} replicas: {_percent(full.efficiency)} over all epochs"
    if steady is not None:
        text += f", {_percent(steady.efficiency)} without the first"
    return f"{text} (published: {PUBLISHED.scaling.efficiency.value:.2%}); {uncertainty(experiment)}"


def uncertainty(experiment: Experiment) -> str:
    """Describe the basis of the intervals in the table."""
    repeats = len(experiment.of(True))
    if repeats == 1:
        return "one run: no interval"
    return f"{repeats} runs of each, taking turns; intervals are t intervals at {LEVEL:.0%}"


def _figures(experiment: Experiment) -> Table:
    n, singles, many = experiment.replicas, experiment.of(True), experiment.of(False)

    def row(name: str, text: Callable[[Scaling], str]) -> tuple[str, ...]:
        return (name, *(NONE if found is None else text(found) for found in experiment.scalings.values()))

    def means(form: str, seconds: Callable[[Training], float]) -> str:
        one, several = (form.format(fmean(map(seconds, trainings))) for trainings in (singles, many))
        return f"1: {one} s; {n}: {several} s"

    name, known, *measured = row("scaling efficiency T₁/(N·T_N)", lambda found: _percent(found.efficiency))
    printed = f"{known} (printed: {PUBLISHED.printed_efficiency:.2%}, from unrounded times)"
    epoch_1, epoch_n = (seconds / PUBLISHED.epochs for seconds in (PUBLISHED.single_seconds, PUBLISHED.many_seconds))
    published_means = f"1: {epoch_1:.2f} s; {PUBLISHED.replicas}: {epoch_n:.2f} s (means of all)"
    later = means("{:.3f}", lambda training: training.median_epoch_seconds) if experiment.epochs > 1 else NONE
    rows = [
        (
            "",
            f"published, {PUBLISHED.epochs} epochs",
            f"measured, all {experiment.epochs} epochs",
            "measured, without the first epoch",
        ),
        row("time on 1 replica", lambda found: _seconds(found.single)),
        row(f"time on {n} replicas", lambda found: _seconds(found.many)),
        ("first epoch, tracing included", UNKNOWN, means("{:.2f}", lambda training: training.epoch_seconds[0]), NONE),
        ("one epoch after it (median)", published_means, NONE, later),
        row("speed-up T₁/T_N", lambda found: f"{found.speed_up:.3f}"),
        (name, printed, *measured),
        row("scaling overhead N·T_N/T₁", lambda found: f"{found.overhead:.3f}"),
        row("serial fraction (Karp-Flatt)", lambda found: f"{found.serial_fraction:.3f}"),
        ("test accuracy on 1 replica", f"{PUBLISHED.accuracy:.4f}", _accuracy(singles), ""),
        (f"test accuracy on {n} replicas", f"{PUBLISHED.accuracy:.4f}", _accuracy(many), ""),
        ("energy on 1 replica", UNKNOWN, _energy(singles), ""),
        (f"energy on {n} replicas", UNKNOWN, _energy(many), ""),
    ]
    return Table("Figures", tuple(rows))


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
        ("accuracies on 1 and on N", str(experiment.agreement)),
        ("uncertainty", uncertainty(experiment)),
        ("load of the machine after each training (1-minute average)", load),
    ]
    return Table("Why to believe it", tuple(rows))


def _hardware(training: Training) -> str:
    machine = training.machine
    cores = f"{machine.get('cores', '?')} cores of {machine.get('cpu', 'unknown')}"
    if training.device == "gpu":
        return f"GPU: {machine.get('gpu') or 'unknown'}; {cores}"
    return f"CPU: {cores}" + (", cores of its own for each replica" if training.pinned else ", not pinned")


def _seconds(number: Number) -> str:
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
    joules = [one.energy.joules for one in trainings if one.energy.joules is not None]
    if len(joules) < len(trainings):
        return f"none: {next(one.energy.reason for one in trainings if one.energy.joules is None)}"
    examples = [one.examples_per_epoch * one.epochs / (used or 1) for one, used in zip(trainings, joules, strict=True)]
    source = trainings[0].energy.source
    return f"{fmean(joules):.0f} J, evaluating included ({fmean(examples):.1f} examples/J; {source})"
