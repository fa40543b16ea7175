"""Command ``pytest-ddl advise``: its options, and the advice from the measurement to the confirmation."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddl.bench.advice.confirming import LAUNCHES, ConfirmationOutcome, confirm
from pytest_ddl.bench.advice.deciding import AdviceDecision, decide
from pytest_ddl.bench.advice.facts.evidence import NEEDS_PROGRAM, evidence_of, read
from pytest_ddl.bench.advice.text import AdviceReport
from pytest_ddl.bench.launching.machine import load_note
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.launching.records import BenchSpec, Launch
from pytest_ddl.bench.metrics.registry import NoNumberError
from pytest_ddl.bench.outcome import (
    FAILED,
    INCOMPLETE,
    OK,
    USAGE,
    WRONG,
    UsageError,
    failed,
)
from pytest_ddl.commands.frame import (
    add_strategy,
    check_file,
    close_clusters,
    conducted,
    find_target,
    former,
    positive,
    seconds,
    strategies_of,
    tell,
    whole,
)
from pytest_ddl.config import UsageError as SettingsError
from pytest_ddl.target import TargetOnRanks

if TYPE_CHECKING:
    from pytest_ddl.bench.advice.choosing import Choice
    from pytest_ddl.harness import Harness

STRATEGIES = "one_device,mirrored,multi_worker_mirrored"
BATCH = 32
EPILOG = """\
exit status:
  0    done: no advice, or the first piece of advice held, or it cannot be measured from outside
  1    the first piece of advice was measured and did not hold
  2    a wrong option
  3    the measurement of the first piece of advice decided nothing
  4    nothing could be measured
  130  interrupted

examples:
  pytest-ddl advise train.py:train --batch-per-replica=64
  pytest-ddl advise evaluation.json
  pytest-ddl advise train.py:train --strategy=mirrored --after=train.py:train_changed
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "given",
        nargs="+",
        metavar="TARGET",
        help="a training function, train(run), as MODULE:FUNCTION or path/to/file.py:FUNCTION; or EVALUATION.json of "
        "pytest-ddl evaluate or of Matrix.save; or both",
    )
    strategies = "comma-separated strategies or variants to choose from; with one, the advice is for it; repeatable"
    former(add_strategy(parser, f"{strategies} (default: %(default)s)", STRATEGIES), "--strategies", parser)
    add("--batch-per-replica", type=positive, metavar="N", help=f"examples per step and replica (default: {BATCH})")
    add("--global-batch-size", type=positive, metavar="N", help="examples per step over all replicas, instead")
    add("--after", metavar="MODULE:FUNCTION", help="the training function with your change, to measure against it")
    add(
        "--launches",
        type=whole,
        default=LAUNCHES,
        metavar="N",
        help="pairs of new launches that measure the first piece of advice; 0 for none (default: %(default)s)",
    )
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="device of the replicas (default: auto)")
    add("--timeout", type=seconds, default=300.0, metavar="S", help="seconds for one launch (default: %(default)g)")
    add("--json", type=Path, metavar="FILE", help="write the advice as JSON, too")


def main(options: argparse.Namespace) -> int:
    """Give advice and return the exit status."""
    return conducted(
        "advise",
        lambda: run(options),
        [((SettingsError,), USAGE, "error: ")],
        interrupted=lambda: "interrupted: no advice was given",
        clean_up=close_clusters,
    )


def run(options: argparse.Namespace, program: Callable[[Any], Any] | None = None) -> int:
    """Measure, decide, print, and return the exit status.

    :param program: training function, in place of one that ``options`` names.
    :raises UsageError: if an option cannot be used. Nothing that takes long has started by then.
    """
    from pytest_ddl.cluster.cluster import ClusterError
    from pytest_ddl.cluster.obstacles import LaunchError

    evaluation, target, after = _given(options)
    train = program or target
    bench = _bench(options, measures=train is not None)
    check_file("--json", options.json)
    try:
        if train is None:
            assert evaluation is not None
            report = _from_evaluation(evaluation, options)
        else:
            report = _measured(train, after, evaluation, bench, options)
    except (BenchError, ClusterError, LaunchError, NoNumberError) as error:
        return failed("advise", f"error: nothing was measured: {error}", FAILED)
    sys.stdout.write(f"{report}\n")
    sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if report.confirmation is None:
        return OK
    return {ConfirmationOutcome.HELD: OK, ConfirmationOutcome.FAILED: WRONG, ConfirmationOutcome.OPEN: INCOMPLETE}[
        report.confirmation.outcome
    ]


def _from_evaluation(path: Path, options: argparse.Namespace) -> AdviceReport:
    from pytest_ddl.bench.advice.choosing import from_matrix

    matrix = read(path)
    choice = from_matrix(matrix)
    evidence = evidence_of(matrix, choice.variant)
    decision = decide(evidence)
    unconfirmed = NEEDS_PROGRAM if decision.advice else ""
    return AdviceReport(choice, evidence, decision, unconfirmed=unconfirmed)


def _measured(
    train: Callable[[Any], Any],
    after: Callable[[Any], Any] | None,
    evaluation: Path | None,
    bench: BenchSpec,
    options: argparse.Namespace,
) -> AdviceReport:
    from pytest_ddl.bench.advice.choosing import from_matrix
    from pytest_ddl.bench.advice.collecting import Collector
    from pytest_ddl.harness import process_harness

    harness = process_harness()
    if harness.settings["launcher"] != "local":
        raise UsageError(
            f"--ddl-launcher={harness.settings['launcher']}: advise measures on this machine only; give local"
        )
    variants = _variants(harness, options)
    harness.warm_up()
    if note := load_note():
        tell(f"the machine is busy ({note}): intervals will be wide")
    if evaluation is not None:
        matrix = read(evaluation)
        choice = from_matrix(matrix)
        bench = _as_in(matrix.of(choice.variant)[0], bench, options)
    else:
        choice = _chosen(harness, train, variants, bench)
    collector = Collector(harness, train, choice.variant, bench, tell)
    evidence = collector.first()
    decision = decide(evidence, collector.answer)
    confirmation, unconfirmed = None, ""
    first = decision.advice[0] if decision.advice else None
    if options.launches and (after is not None or (first is not None and first.rule.knob)):
        confirmation = confirm(
            harness,
            train,
            choice.variant,
            bench,
            knob="base" if after is not None or first is None else first.rule.knob,
            after=after,
            expected=None if first is None else first.found.gain,
            at_most=first is not None and first.rule.at_most,
            launches=options.launches,
            say=tell,
        )
    elif first is not None:
        unconfirmed = _why_not(decision, options)
    return AdviceReport(choice, evidence, decision, confirmation, unconfirmed, by_user=after is not None)


def _as_in(launch: Launch, bench: BenchSpec, options: argparse.Namespace) -> BenchSpec:
    """Return the settings with the batch size of an evaluation's launch, unless the options give one."""
    if launch.global_batch_size is None or options.batch_per_replica or options.global_batch_size:
        return bench
    return replace(bench, batch_per_replica=None, global_batch_size=launch.global_batch_size)


def _why_not(decision: AdviceDecision, options: argparse.Namespace) -> str:
    if not options.launches:
        return "--launches=0"
    name = next(text for text in options.given if not _is_file(text))
    return (
        f"{decision.advice[0].rule.id} needs a change of your code. Make it in a copy of the function, and run: "
        f"pytest-ddl advise {name} --after=MODULE:FUNCTION"
    )


def _chosen(harness: Harness, train: Callable[[Any], Any], variants: list[str], bench: BenchSpec) -> Choice:
    from pytest_ddl.bench.advice.choosing import Choice, compare

    if len(variants) == 1:
        return Choice(variants[0], "it is the only one that was asked for (--strategy)", (), {})
    tell(f"comparing {', '.join(variants)} …")
    return compare(harness, train, variants, bench)[0]


def _variants(harness: Harness, options: argparse.Namespace) -> list[str]:
    """Return the variants that can run here.

    :raises UsageError: if a name is wrong, or none can run.
    """
    from pytest_ddl.items.selection import DdlMark
    from pytest_ddl.strategies.base import capabilities_of
    from pytest_ddl.strategies.registry import UnknownStrategyError

    names = strategies_of(options.strategy)
    mark = DdlMark(device=options.device)
    variants, refused = [], []
    for name in names:
        try:
            spec = harness.registry.parse_variant(name)
        except UnknownStrategyError as error:
            raise UsageError(f"--strategy={options.strategy}: {str(error).splitlines()[0]}") from None
        if capabilities_of(harness.registry[spec.name]).coordinator:
            refused.append(f"{spec}: its workers do not step together, so no change of a step can be measured")
        elif reason := harness.unavailable(spec, mark):
            refused.append(f"{spec}: {reason}")
        else:
            variants.append(str(spec))
    if not variants:
        raise UsageError(f"--strategy={options.strategy}: {'; '.join(refused) or 'give at least one strategy'}")
    for text in refused:
        tell(f"not measured: {text}")
    return list(dict.fromkeys(variants))


def _is_file(text: str) -> bool:
    return text.endswith(".json")


def _given(options: argparse.Namespace) -> tuple[Path | None, TargetOnRanks | None, TargetOnRanks | None]:
    files = [text for text in options.given if _is_file(text)]
    targets = [text for text in options.given if not _is_file(text)]
    if len(files) > 1 or len(targets) > 1:
        raise UsageError(f"{' '.join(options.given)}: give one evaluation, one training function, or one of each")
    if options.after is not None and not targets:
        raise UsageError(f"--after={options.after}: give the training function without the change, too")
    after = None if options.after is None else find_target(options.after).on_ranks()
    evaluation = Path(files[0]) if files else None
    if evaluation is not None:
        read(evaluation)
    return evaluation, find_target(targets[0]).on_ranks() if targets else None, after


def _bench(options: argparse.Namespace, *, measures: bool) -> BenchSpec:
    given = {name: getattr(options, name) for name in ("batch_per_replica", "global_batch_size")}
    if not measures and (options.after is not None or any(value is not None for value in given.values())):
        raise UsageError("--batch-per-replica, --global-batch-size and --after need a training function to measure")
    if options.launches == 1:
        raise UsageError(f"--launches={options.launches}: an interval needs at least 2; 0 measures nothing")
    if all(value is None for value in given.values()):
        given["batch_per_replica"] = BATCH
    try:
        return BenchSpec(**given, device=options.device, timeout=options.timeout)
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-', 2).removesuffix(', or None')}") from None
