"""Compare again without differences of random numbers, and with batch normalization synchronized, in both runs.

Dropout with one stream per replica, and batch normalization by each replica's own statistics, make a correct program
differ from one device. A difference that remains without both is a defect. One that vanishes comes from them.

Random numbers are not removed. In both runs, the same example gets the same numbers (common random numbers). So a wrong
mean over random masks, for example, still shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from pytest_ddl.equivalence.causes import fix_of, is_possible
from pytest_ddl.equivalence.diagnosis.candidates.shared import draws_of, drew_unseen, random_layers
from pytest_ddl.equivalence.evidence.observe import is_asynchronous, of_kind
from pytest_ddl.equivalence.findings import CheckResult, Doubt, Finding, Outcome, Symptom
from pytest_ddl.equivalence.probes.placing import moved, places_of, same_examples, unlike_loops, unplaced
from pytest_ddl.equivalence.roles import Role, Roles
from pytest_ddl.equivalence.verdict.judge import concluded_from
from pytest_ddl.equivalence.verdict.report import Report
from pytest_ddl.hints import Hint
from pytest_ddl.notes import Note, NoteKind
from pytest_ddl.records import DrawRecord, LayerRecord, TrainingRecord, VariableKind
from pytest_ddl.training.neutral import IN_ORDER, NORMALIZATION, RANDOM
from pytest_ddl.training.places import Places, Rows, Shared
from pytest_ddl.training.settings import RunSettings

_CAUSES = {NORMALIZATION: "per-replica-normalization", RANDOM: "random-stream-differs-across-replicas"}
_DONE = {NORMALIZATION: "batch normalization synchronized", RANDOM: "the same random numbers for the same examples"}
_OF_A_MESH = "DTensor draws other random numbers over a mesh than one device does, and they could not be replaced"
_IN_ORDER = "the same random numbers for the same examples, ordered by replica"
"""Description of the comparison for a program that sorts the examples of a replica by random numbers."""


def wanted(report: Report, _names: Collection[str]) -> bool:
    """Return whether numbers differ in a program that draws random numbers or normalizes per replica."""
    differs = any(
        report.roles.have(result, Role.NUMBERS) and result.outcome in (Outcome.FAIL, Outcome.INCONCLUSIVE)
        for result in report.results
    )
    return differs and bool(kinds(report))


def kinds(report: Report) -> tuple[str, ...]:
    """Return what can be switched off in the program of a report."""
    reference, distributed = report.reference, report.distributed
    if distributed.errors and not _ends_by_framework(report):
        return ()
    if is_asynchronous(distributed):
        return ()
    names = []
    # Draws differ with one replica too: each worker of a parameter server has its own generators.
    if distributed.num_replicas > 1 and any(_is_plain(layer) for rank in distributed.ranks for layer in rank.layers):
        names.append(NORMALIZATION)
    if draws_of(reference, distributed) or random_layers(distributed) or drew_unseen(distributed):
        names.append(RANDOM)
    return tuple(names)


def _ends_by_framework(report: Report) -> bool:
    """Return whether a known behavior of a framework has ended the run after all its steps, which can be compared."""
    reference, distributed = report.reference, report.distributed
    if not 0 < reference.num_steps <= distributed.num_steps:
        return False
    return any(finding.symptom == Symptom.CRASH.value for finding in report.known)


def _is_plain(layer: LayerRecord) -> bool:
    return layer.settings.get("synchronized") is False and bool(layer.settings.get("trainable", True))


def probe(
    report: Report, settings: RunSettings, compare_once: Callable[[RunSettings, Collection[str] | None], Report]
) -> Report:
    """Replace the results that compare numbers with those of the runs without randomness, and add a note."""
    reference, distributed = report.reference, report.distributed
    off = kinds(report)
    if distributed.capabilities.global_view:
        return _without(_left_open(report, off, _OF_A_MESH), RANDOM)
    places = places_of(reference, distributed) if RANDOM in off else None
    names = [result.check for result in report.results]
    change = _described(off, _DONE[RANDOM])
    again = compare_once(replace(settings, neutralize=off, places=places), names)
    moved_places = _moved(places, again)
    if moved_places is not None:
        places = moved_places
        again = compare_once(replace(settings, neutralize=off, places=places), names)
    refused = _refusal(report, again, places)
    if refused is not None:
        left = _left_open(report, off, f"repeated with {change}, but the runs could not be compared: {refused}")
        # A difference that vanishes is understood, so one of a run that did not get so far is no defect yet.
        if _failed_run(report, again) is not None:
            return _without(left, *off)
        # That random numbers differ is no defect if the numbers of a right program could not be replaced either.
        return _without(left, RANDOM) if _not_replaced(again) else left
    noise = _noise_of_weights(distributed, places)
    loops = _loops(places, again)
    if (noise or loops) and not any(finding.exact and finding.cause for finding in again.findings):
        why = f"each replica draws {noise} of its own, and how their sum is distributed cannot be compared"
        if loops:
            why = f"it is not known to which examples the numbers of {', '.join(loops[:3])} in a loop belong"
        left = _left_open(report, off, f"repeated with {change}, but {why}")
        return _without(left, RANDOM)
    switched_off = off
    if places is not None and _belong_to_examples(places) and _may_sort(again):
        ordered = compare_once(replace(settings, neutralize=(*off, IN_ORDER), places=places), names)
        if _refusal(report, ordered, places) is None and not ordered.doubts and not _shows_more(report, ordered):
            again, switched_off, change = ordered, (*off, IN_ORDER), _described(off, _IN_ORDER)
    joined = _joined(report, again, places, off, change)
    # Later probes repeat this comparison.
    return replace(joined, ledger=again.ledger, neutralized=switched_off, places=places)


def _joined(report: Report, again: Report, places: Places | None, off: tuple[str, ...], change: str) -> Report:
    """Return the report with the numbers of the repeated runs, and with the doubts that they leave."""
    repeated = {result.check: _with_change(result, change) for result in again.results}
    results = tuple(_result(result, repeated.get(result.check), report.roles) for result in report.results)
    open_again = [
        Doubt(doubt.check, f"{doubt.reason} (with {change})")
        for doubt in (*again.doubts, *_hidden(report, again, places), *_unexplained(report, places))
        if report.roles.have(doubt, Role.NUMBERS) or doubt not in report.doubts
    ]
    remains = any(report.roles.have(finding, Role.NUMBERS) for finding in again.findings)
    tolerated = [] if remains or open_again else _tolerated(report, off, change)
    concluded = concluded_from(report, results, understood=tolerated)
    plain = concluded_from(report, report.results)
    others = [doubt for doubt in report.doubts if doubt not in plain.doubts]
    open_still = [d for d in (*concluded.doubts, *others) if not report.roles.have(d, Role.NUMBERS)]
    return replace(
        report,
        results=results,
        # Keras itself repeats random streams. A difference that remains without them is a mistake of the program.
        findings=sorted(concluded.findings, key=lambda finding: report.roles.have(finding, Role.DRAWS)),
        approximations=concluded.approximations,
        expected=concluded.expected,
        known=concluded.known,
        unused_expectations=concluded.unused_expectations,
        doubts=(*dict.fromkeys(open_still), *open_again),
        notes=(
            *(note for note in report.notes if note.kind is not NoteKind.NOT_COMPARED),
            Note(NoteKind.HOW, f"weights, state and losses were compared in runs with {change}"),
        ),
    )


def _described(off: tuple[str, ...], random: str) -> str:
    return " and ".join(random if kind == RANDOM else _DONE[kind] for kind in off)


def _with_change(result: CheckResult, change: str) -> CheckResult:
    """Say in each message of a result how the programs were run."""
    findings = tuple(replace(f, message=f"with {change}: {f.message}") for f in result.findings)
    # A doubt that comes from other random numbers is no fault of the program.
    return replace(result, reason=f"{result.reason} (with {change})", findings=findings, in_program=False)


def _moved(places: Places | None, again: Report) -> Places | None:
    return None if places is None else moved(places, again.reference, again.distributed)


def _may_sort(again: Report) -> bool:
    """Return whether a difference may come from sorting the examples by random numbers: its cause is not recomputed."""
    return any(
        again.roles.have(finding, Role.NUMBERS) and (finding.cause in (None, "batch-coupled-loss") or not finding.exact)
        for finding in again.findings
    )


def _noise_of_weights(distributed: TrainingRecord, places: Places | None) -> str | None:
    """Describe draws in the shape of a weight that differ between the replicas, such as noise on a gradient.

    In the repeated runs all replicas draw the same. There, N times a part of the noise is the noise of one device,
    although a sum of independent parts has another variance.
    """
    shared = [] if places is None else [at for at, place in places.draws.items() if isinstance(place, Shared)]
    shapes = {v.shape for v in of_kind(distributed, VariableKind.TRAINABLE) if math.prod(v.shape) > 1}
    for step in range(1, distributed.num_steps + 1):
        draws = [draw for rank in distributed.ranks for draw in rank.steps[step - 1].draws]
        for position in shared:
            ours = [draw for draw in draws if draw.position == position and draw.shape in shapes]
            if len({draw.digest for draw in ours}) > 1:
                return f"numbers in the shape of a weight ({ours[0].name})"
    return None


def _belong_to_examples(places: Places) -> bool:
    return any(isinstance(placement, Rows) for placement in places.draws.values())


def _hidden(report: Report, again: Report, places: Places | None) -> list[Doubt]:
    """Return a doubt if some draws could not be given the same numbers for the same examples."""
    if places is None:
        return []
    draws = unplaced(places, again.reference, again.distributed)
    differs = [r.check for r in report.results if report.roles.have(r, Role.NUMBERS) and r.findings]
    if not draws or not differs:
        return []
    names = ", ".join(draws[:3])
    return [Doubt(differs[0], f"it is not known to which examples the numbers of {names} belong: all were equal")]


def _without(report: Report, *off: str) -> Report:
    """Leave out the findings of what could not be switched off. A doubt stands in their place."""
    causes = {_CAUSES[kind] for kind in off}
    return replace(report, findings=[finding for finding in report.findings if finding.cause not in causes])


def _not_replaced(again: Report) -> bool:
    ranks = (*again.reference.ranks, *again.distributed.ranks)
    return any(note.kind is NoteKind.NOT_REPLACED for rank in ranks for note in rank.notes)


def _loops(places: Places | None, again: Report) -> list[str]:
    """Describe the draws in loops that could not be given the same numbers in both runs."""
    return [] if places is None else unlike_loops(places, again.reference, again.distributed)


def _unexplained(report: Report, places: Places | None) -> list[Doubt]:
    """Return a doubt if the replicas drew the same numbers for their examples in all steps.

    They may be too few to exclude chance. Then it is not known whether the replicas have streams of their own.
    """
    roles, record = report.roles, report.distributed
    differs = [r.check for r in report.results if roles.have(r, Role.NUMBERS) and r.findings]
    wrong = any(roles.have(f, Role.DRAWS) for result in report.results for f in result.findings)
    if places is None or wrong or not differs:
        return []
    found: dict[int, dict[int, list[DrawRecord]]] = {}
    for rank in record.ranks:
        for step in rank.steps[: record.num_steps]:
            for draw in step.draws:
                if isinstance(places.draws.get(draw.position), Rows) and _has_own_seed(draw):
                    found.setdefault(draw.position, {}).setdefault(step.index, []).append(draw)
    alike = []
    for steps in found.values():
        draws = [draw for made in steps.values() for draw in made]
        varies = len({draw.digest for draw in draws}) > 1 or draws[0].distinct > 1
        equal = all(len({(d.digest, d.shape) for d in made}) == 1 < len(made) for made in steps.values())
        if varies and equal:
            alike.append(f"{draws[0].op} {draws[0].shape}")
    text = f"all replicas drew the same few numbers in each step ({', '.join(alike[:3])}), by chance or by equal seeds"
    return [Doubt(differs[0], text)] if alike else []


def _has_own_seed(draw: DrawRecord) -> bool:
    """Return whether the program decides the stream of a draw, and its seeds are not known to SEED."""
    return draw.seeds is None and (draw.op.startswith("state") or draw.seeded)


def _shows_more(report: Report, again: Report) -> bool:
    """Return whether the repeated runs find something new, or something that no random number explains."""
    known = {finding.cause for result in report.results for finding in result.findings if finding.known is None}
    return any(
        report.roles.have(finding, Role.NUMBERS)
        or (finding.cause not in known and finding.symptom != Symptom.SLOW.value)
        for finding in again.findings
    )


def _failed_run(report: Report, again: Report) -> TrainingRecord | None:
    """Return the first repeated run that failed, although the plain one did not fail so."""
    for before, record in ((report.reference, again.reference), (report.distributed, again.distributed)):
        if not record.errors:
            continue
        alike = [error.type for _, error in before.errors] == [error.type for _, error in record.errors]
        if not (alike and _ends_by_framework(report)):
            return record
    return None


def _refusal(report: Report, again: Report, places: Places | None) -> str | None:
    """Return why the repeated runs decide nothing, or ``None`` if both ran as far as the plain ones."""
    plain, records = (report.reference, report.distributed), (again.reference, again.distributed)
    for before, record in zip(plain, records, strict=True):
        where = "on one device" if record is records[0] else f"under {record.strategy}"
        if record is _failed_run(report, again):
            error = record.errors[0][1]
            more = f": if the machine is slow, set a longer {Hint.TIMEOUT}" if error.type == "deadline" else ""
            return f"{error.type} {where} after step {error.step}: {error.message}{more}"
        notes = [note for rank in record.ranks for note in rank.notes if note.kind is NoteKind.NOT_REPLACED]
        if notes:
            return f"{notes[0]} could not be given other numbers {where}"
        plain_layers = any(_is_plain(layer) for rank in record.ranks for layer in rank.layers)
        if plain_layers and NORMALIZATION in record.neutralized:
            return f"a layer normalizes by its own statistics {where}"
        # Fewer steps under the strategy than on one device are a finding of the repeated runs, so they are no reason
        # here.
        if record is again.reference and record.num_steps < before.num_steps:
            return f"the program ended after {record.num_steps} of {before.num_steps} steps {where}"
        if places is not None and _belong_to_examples(places) and not same_examples(before, record):
            return f"the program consumed other examples than before {where}: set a seed for its data"
    if _moved(places, again) is not None:
        return "draws have other lengths in each run"
    return None if again.comparable else "nothing could be compared"


def _left_open(report: Report, off: tuple[str, ...], why: str) -> Report:
    """Keep only the findings that no random number explains, and report that the rest was not decided."""
    differs = [r.check for r in report.results if report.roles.have(r, Role.NUMBERS) and r.findings]
    doubts = (Doubt(differs[0], f"{why}; whether anything else differs is not known"),) if differs else ()
    known = {finding.cause for finding in report.known}
    # Numbers may differ only by a known behavior of a framework, as by a declared cause.
    guessed = [f for f in report.findings if f.cause in known and not f.exact and _is_understood(f, report.roles)]
    return replace(
        report,
        findings=[f for f in report.findings if f not in guessed and not _may_be_random(f, off, report.roles)],
        notes=(*report.notes, Note(NoteKind.NOT_COMPARED, why)),
        doubts=(*report.doubts, *doubts),
    )


def _may_be_random(finding: Finding, off: tuple[str, ...], roles: Roles) -> bool:
    """Return whether a difference may come from something that could not be switched off, and needs no declaration."""
    if not _is_understood(finding, roles) or not is_possible(finding.cause, off):
        return False
    recomputed = finding.exact and finding.cause is not None
    return not recomputed or roles.have(finding, Role.LOSS | Role.METRICS | Role.STATE)


def _is_understood(finding: Finding, roles: Roles) -> bool:
    """Return whether the repeated runs judge the same thing. Copies that differ are a defect in both kinds of runs."""
    return roles.have(finding, Role.NUMBERS) and finding.cause != "state-not-aggregated"


def _tolerated(report: Report, off: tuple[str, ...], change: str) -> list[Finding]:
    """Return the vanished difference, once for each thing that was switched off, unless that thing is a defect."""
    roles = report.roles
    gone = [f for result in report.results for f in result.findings if _is_understood(f, roles)]
    if not gone:
        return []
    first = min(
        gone,
        key=lambda f: (not roles.have(f, Role.UPDATES), not roles.have(f, Role.VALUES), roles.position(f), f.step or 0),
    )
    random_is_wrong = any(roles.have(f, Role.DRAWS) for result in report.results for f in result.findings)
    return [
        replace(
            first,
            cause=_CAUSES[kind],
            fix=fix_of(_CAUSES[kind]),
            evidence=f"both runs were repeated with {change}: they are equal then",
            approximation=True,
            exact=True,
            verified=True,
            also=(),
        )
        for kind in off
        if not (kind == RANDOM and random_is_wrong)
    ]


def _result(plain: CheckResult, again: CheckResult | None, roles: Roles) -> CheckResult:
    """Return the result of a check, from the repeated runs if it compares numbers with one device."""
    if again is None:
        return plain
    if roles.have(plain, Role.NUMBERS):
        kept = [f for f in plain.findings if not _is_understood(f, roles)]
        return replace(plain if kept else again, findings=(*kept, *again.findings))
    # The plain runs judge slowness. Everything else that only the repeated runs show is a defect as well.
    known = {f.cause for f in plain.findings if f.known is None}
    new = tuple(f for f in again.findings if f.cause not in known and f.symptom != Symptom.SLOW.value)
    return replace(again, findings=(*plain.findings, *new)) if new else plain
