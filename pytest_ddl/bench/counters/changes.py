"""Compare the counters of a steady step of HEAD with those of BASE; the result is exact on any machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_ddl.bench.counters.retraces import retraces_more
from pytest_ddl.bench.launching.records import Counters

KINDS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device", "between_tasks")
NAMES = (
    *(f"collectives.{kind}" for kind in KINDS),
    *("reduced_bytes", "gathered_bytes", "packs", "unpacked", "traces", "retraces"),
    *("host_calls", "parameter_bytes", "misplaced"),
    *(f"copies.{direction}" for direction in DIRECTIONS),
)
"""Counters whose change may be accepted by name."""
FIRST_COUNTED = 2
"""Number of the first step in ``Counters.of_steps``, counted from 1."""
REFUSED = {
    "steady_steps": "no steady step was measured, so there is nothing to compare",
    "eager": "collectives of an eager step are in no graph, so accepting it would accept any number of collectives",
    **dict.fromkeys(("executions", "kernels"), "it is only reported"),
    "nodes": "it is only reported; if graphs were not counted, there is nothing to compare",
}
"""Counter whose change may not be accepted -> reason."""


NOT_COUNTED = (
    "what runs outside of graphs, such as copies to the host by loss.numpy(), float(loss) and print(loss)",
    "the input pipeline",
)
"""Work that no counter contains."""


@dataclass(frozen=True)
class CounterChange:
    """Change of one counter from BASE to HEAD."""

    counter: str
    """Name as in :data:`NAMES` or :data:`REFUSED`: ``collectives.all_reduce``, ``reduced_bytes``, ``retraces`` …"""
    base: Any
    head: Any
    is_regression: bool
    """``False`` for an improvement, for a change that is only reported, and for an accepted change."""
    message: str
    """Description of the change, its size, the likeliest cause, and what to do."""


def compare(base: Counters, head: Counters, accept: Mapping[str, str] | None = None) -> list[CounterChange]:
    """List the counters that changed between two versions of a program, regressions first.

    Regressions are more collectives of a kind, more reduced or gathered bytes than the parameters explain, and more
    reductions of a single tensor. So are retraces in steady steps, more copies, more calls to the host, more variables
    on a wrong device, steps that now run eagerly, and a version without measured steps. Only reported are nodes,
    executions, kernels, packs, traces of the warm-up, parameters, and every decrease. :func:`uncounted` says if the two
    versions could be compared at all.

    :param accept: counter -> reason why its change is intended. Such a change is reported, but is no regression.
    :raises ValueError: if a name in ``accept`` is no counter, cannot be accepted, or has no reason.
    """
    return compare_launches([(base, head)], accept)


def compare_launches(
    pairs: Sequence[tuple[Counters, Counters]], accept: Mapping[str, str] | None = None
) -> list[CounterChange]:
    """Compare several launches, each as ``(base, head)``, like :func:`compare`; without launches, nothing changed.

    Counters are exact, so only the launch with the most regressions counts. Retraces may be up to chance, for example
    with ragged batches, so they are pooled over the launches (:mod:`pytest_ddl.bench.counters.retraces`).

    :raises ValueError: as :func:`compare`.
    """
    if not pairs:
        return []
    accepted: dict[str, str] = {}
    for base, head in pairs:
        accepted.update(_checked(accept or {}, base, head))
    of_launches = (_accepted(_of_launch(base, head), accepted) for base, head in pairs)
    worst = max(of_launches, key=lambda changes: sum(change.is_regression for change in changes))
    if not any(change.counter == "steady_steps" for change in worst):
        worst = [*worst, *_accepted(_retraces(pairs), accepted)]
    return sorted(worst, key=lambda change: not change.is_regression)


def uncounted(base: Counters, head: Counters) -> str:
    """Explain why the graphs of two versions cannot be compared, in words for the user; empty if they can.

    A counter that is worse is a regression in any case. But without a regression, such a comparison shows nothing.
    """
    reasons = []
    for name, one in (("BASE", base), ("HEAD", head)):
        if one.eager:
            reasons.append(
                f"the steps of {name} run eagerly, wholly or in part: their collectives are in no graph, and were not "
                "counted. Decorate the function that calls strategy.run with @tf.function"
            )
        elif not one.nodes:
            reasons.append(f"no graph of {name} could be counted: {'; '.join(one.notes) or 'no reason was given'}")
        reasons += [f"{name}: {reason}" for reason in one.uncounted]
    if not reasons and (base.copies is None) != (head.copies is None):
        lacks, one = ("BASE", base) if base.copies is None else ("HEAD", head)
        reasons.append(f"copies of {lacks} were not counted: {'; '.join(one.notes) or 'no reason was given'}")
    return "; ".join(reasons)


def _accepted(changes: Iterable[CounterChange], accepted: Mapping[str, str]) -> list[CounterChange]:
    return [
        replace(change, is_regression=False, message=f"{change.message} Accepted: {accepted[change.counter]}")
        if change.is_regression and change.counter in accepted
        else change
        for change in changes
    ]


def _checked(accept: Mapping[str, str], base: Counters, head: Counters) -> Mapping[str, str]:
    present = (f"collectives.{kind}" for kind in {**base.collectives, **head.collectives})
    known = {*NAMES, *present}
    for name, reason in accept.items():
        if name in REFUSED:
            raise ValueError(f"accept: {name!r} cannot be accepted: {REFUSED[name]}")
        if name not in known:
            raise ValueError(f"accept: {name!r} is not a counter; valid: {', '.join(sorted(known))}")
        if not reason.strip():
            raise ValueError(f"accept: {name!r} needs a reason, which the gate's report repeats")
    return accept


def _of_launch(base: Counters, head: Counters) -> list[CounterChange]:
    changes = [*_changes(base, head)]
    worse = {change.counter for change in changes if change.is_regression}
    of_steps = [change for change in _in_steps(base, head) if change.counter not in worse]
    said = {change.counter for change in of_steps}
    return [*(change for change in changes if change.counter not in said), *of_steps]


def _in_steps(base: Counters, head: Counters) -> Iterator[CounterChange]:
    """Yield the counters whose sum over the steps that both versions counted is larger in HEAD.

    The last step of the warm-up does not show work that only some steps do.
    """
    steps = min(base.counted_steps, head.counted_steps)
    if not steps or base.eager != head.eager:
        return
    nothing = (0,) * steps
    for name in sorted({*base.of_steps, *head.of_steps}):
        before, after = (one.of_steps.get(name, nothing)[:steps] for one in (base, head))
        # As in a single step, bytes may grow with the parameters.
        grown = head.parameter_bytes / base.parameter_bytes if base.parameter_bytes and name.endswith("bytes") else 1.0
        if sum(after) <= sum(before) * max(1.0, grown):
            continue
        where = [number for number, values in enumerate(zip(before, after, strict=True)) if values[1] > values[0]]
        yield CounterChange(
            name, sum(before), sum(after), True,
            f"{sum(after) - sum(before)} more in {steps} counted steps ({sum(before)} -> {sum(after)}; at most "
            f"{max(before)} -> {max(after)} in one step). {len(where)} of these steps do more than in BASE, the first "
            f"of them is step {where[0] + FIRST_COUNTED}. Likeliest cause: work that only some steps do, such as an "
            "evaluation or a summary in every n-th step.",
        )  # fmt: skip


def _changes(base: Counters, head: Counters) -> Iterator[CounterChange]:
    if not base.steady_steps or not head.steady_steps:
        which = " and ".join(name for name, one in (("BASE", base), ("HEAD", head)) if not one.steady_steps)
        yield CounterChange(
            "steady_steps", base.steady_steps, head.steady_steps, True,
            f"No steady step of {which} was measured: there is nothing to compare, so this cannot pass.",
        )  # fmt: skip
        return
    yield from _eager(base, head)
    lacking = [name for name, one in (("BASE", base), ("HEAD", head)) if not one.nodes and not one.eager]
    if lacking:
        yield CounterChange(
            "nodes", base.nodes, head.nodes, False,
            f"The graphs of {' and '.join(lacking)} were not counted: their collectives and copies are not known.",
        )  # fmt: skip
    elif base.eager == head.eager:
        # The reductions of an eager step are in no graph, so a version with eager steps cannot be compared with one
        # without.
        yield from _collectives(base, head)
        yield from _reduced(base, head)
        yield from _gathered(base, head)
        yield from _counted(
            "unpacked", base, head, "reductions of a single tensor",
            f"{{more}} ({{change}}; packs {base.packs} -> {head.packs}): each one costs latency. Pass all tensors to "
            "one all_reduce as a list.",
        )  # fmt: skip
        yield from _counted("packs", base, head, "reductions that carry several tensors")
        yield from _counted("nodes", base, head, "operations in the graphs of a step")
        yield from _counted("executions", base, head, "graphs executed per step")
        if base.kernels and head.kernels:
            yield from _counted("kernels", base, head, "operations executed on devices per step")
    yield from _counted("traces", base, head, "traces before the first steady step")
    if not lacking:
        yield from _copies(base, head)
        yield from _counted(
            "host_calls", base, head, "calls from the step to the host",
            "{more} ({change}): tf.py_function, tf.numpy_function, tf.print or tf.summary. Devices wait for each call. "
            "Call them outside the step, or only every n-th step.",
        )  # fmt: skip
    yield from _misplaced(base, head)
    yield from _counted("parameter_bytes", base, head, "bytes of trainable variables")


def _eager(base: Counters, head: Counters) -> Iterator[CounterChange]:
    if head.eager and not base.eager:
        yield CounterChange(
            "eager", False, True, True,
            "Steps run eagerly now: every operation is dispatched from Python, and collectives are in no graph. "
            "Likeliest cause: a @tf.function was removed, or run_eagerly=True was set. Decorate the function that "
            "calls strategy.run.",
        )  # fmt: skip
    elif base.eager and not head.eager:
        yield CounterChange("eager", True, False, False, "Steps run in a graph now; in BASE they ran eagerly.")


def _collectives(base: Counters, head: Counters) -> Iterator[CounterChange]:
    for kind in sorted({*base.collectives, *head.collectives}):
        before, after = base.collectives.get(kind, 0), head.collectives.get(kind, 0)
        name = f"collectives.{kind}"
        if after < before:
            yield CounterChange(
                name, before, after, False,
                f"{before - after} fewer {kind} per step ({before} -> {after}). If this was not intended, something is "
                "no longer reduced: run the equivalence check.",
            )  # fmt: skip
        elif after > before:
            number = head.conditional.get(kind, 0)
            branches = f" In HEAD, {number} are in a branch (`if`), and counted as if every step took it."
            # Each counter that a collective changes must be accepted separately.
            changed = [name]
            changed += ["reduced_bytes"] if head.reduced_bytes > explained_bytes(base, head) else []
            changed += [each for each in ("gathered_bytes", "unpacked") if getattr(head, each) > getattr(base, each)]
            yield CounterChange(
                name, before, after, True,
                f"{after - before} more {kind} per step ({before} -> {after}). Each one costs latency, even if it is "
                f"small.{branches if number else ''} {_why_more(kind, base, head)} If this is intended, accept "
                f"{', '.join(changed)}.",
            )  # fmt: skip


def _why_more(kind: str, base: Counters, head: Counters) -> str:
    if kind in ("all_reduce", "reduce"):
        if head.unpacked > base.unpacked and (head.packs < base.packs or head.unpacked - base.unpacked > 2):
            return (
                "Likeliest cause: tensors are reduced one by one. Pass the whole list of gradients to one all_reduce, "
                "or to optimizer.apply_gradients."
            )
        if head.reduced_bytes - base.reduced_bytes >= max(1, base.parameter_bytes) // 2:
            return "Likeliest cause: gradients are reduced twice, by the program and by the optimizer. Remove one."
        return (
            "Likeliest cause: a metric, a norm or a flag is reduced in every step. Reduce it only when it is "
            "shown, or together with the gradients."
        )
    if kind == "broadcast":
        return (
            "Likeliest cause: a variable with aggregation ONLY_FIRST_REPLICA is assigned within the step. Give it "
            "another aggregation, or assign it outside the step."
        )
    return f"Likeliest cause: a value of every replica is gathered in each step ({kind}). Gather it only when needed."


def explained_bytes(base: Counters, head: Counters) -> int:
    """Return the bytes that HEAD may reduce per step, given those of BASE and how their parameters differ.

    BASE reduces ``r`` bytes per byte of parameters, and a rest ``c`` (losses, flags) that does not grow with the model.
    With mixed dtypes, ``r`` is not known, so the larger of two estimates is used. The first assumes that everything is
    proportional (``c = 0``). The second assumes that ``r`` is a ratio of dtype sizes: the largest power of two from ¼
    up to the observed ratio.
    """
    if not base.parameter_bytes or not head.parameter_bytes or base.parameter_bytes == head.parameter_bytes:
        return base.reduced_bytes
    ratio = base.reduced_bytes / base.parameter_bytes
    whole = 2.0 ** math.floor(math.log2(ratio)) if ratio >= 0.25 else 0.0
    rest = base.reduced_bytes - whole * base.parameter_bytes
    return math.ceil(max(rest + whole * head.parameter_bytes, ratio * head.parameter_bytes))


def _reduced(base: Counters, head: Counters) -> Iterator[CounterChange]:
    before, after = base.reduced_bytes, head.reduced_bytes
    if before == after:
        return
    allowed = explained_bytes(base, head)
    amount = f"{_bytes(before)} -> {_bytes(after)} reduced per step and replica"
    if after > allowed:
        yield CounterChange(
            "reduced_bytes", before, after, True, f"{amount}{_beyond(base, head)}. {_why_bytes(base, head)}"
        )
    elif base.parameter_bytes != head.parameter_bytes:
        yield CounterChange("reduced_bytes", before, after, False, f"{amount}: the parameters explain the difference.")
    else:
        yield CounterChange("reduced_bytes", before, after, False, f"{amount}: less to communicate.")


def _beyond(base: Counters, head: Counters) -> str:
    if not base.parameter_bytes or not head.parameter_bytes:
        return " (the program watches no model, so it is not known how many bytes it needs)"
    ratios = (one.reduced_bytes / one.parameter_bytes for one in (base, head))
    return " ({:.3g} -> {:.3g} times the parameters)".format(*ratios)


def _why_bytes(base: Counters, head: Counters) -> str:
    shifts = {
        dtype: head.reduced_dtypes.get(dtype, 0) - base.reduced_dtypes.get(dtype, 0)
        for dtype in sorted({*base.reduced_dtypes, *head.reduced_dtypes})
    }
    less = [dtype for dtype, shift in shifts.items() if shift < 0]
    more = [dtype for dtype, shift in shifts.items() if shift > 0]
    if less and more:
        return (
            f"Likeliest cause: tensors that were reduced as {', '.join(less)} are cast to {', '.join(more)} before the "
            "reduction. Reduce first, and cast the result."
        )
    if head.parameter_bytes and base.collectives != head.collectives:
        return "The additional collectives carry these bytes."
    return (
        "Likeliest cause: gradients of frozen or unused variables are reduced, or activations instead of gradients. "
        "Reduce the gradients of trainable variables only."
    )


def _gathered(base: Counters, head: Counters) -> Iterator[CounterChange]:
    before, after = base.gathered_bytes, head.gathered_bytes
    if before == after:
        return
    amount = f"{_bytes(before)} -> {_bytes(after)} gathered and broadcast per step and replica"
    # Gathered bytes may grow with the parameters, because the program may gather parameters.
    larger = base.parameter_bytes > 0 and after * base.parameter_bytes <= before * head.parameter_bytes
    if after > before and not larger:
        yield CounterChange(
            "gathered_bytes", before, after, True,
            f"{amount}. Likeliest cause: values of every replica are gathered in each step, or the gathered values "
            "are larger than before. Gather small values, and only when they are needed.",
        )  # fmt: skip
    else:
        yield CounterChange("gathered_bytes", before, after, False, f"{amount}.")


def _retraces(pairs: Sequence[tuple[Counters, Counters]]) -> Iterator[CounterChange]:
    before, after = (sum(pair[side].retraces for pair in pairs) for side in (0, 1))
    steps = [sum(pair[side].steady_steps for pair in pairs) for side in (0, 1)]
    shown = f"{after} in {steps[1]} steady steps of HEAD, {before} in {steps[0]} of BASE"
    if retraces_more(pairs):
        yield CounterChange(
            "retraces", before, after, True,
            f"Functions are traced again during training: {shown}. Likeliest cause: an argument is a Python number or "
            "has another shape each time, or a tf.function is created within the loop. Pass tensors, fix shapes "
            "(drop_remainder=True), decorate once.",
        )  # fmt: skip
    elif before and not after:
        yield CounterChange("retraces", before, 0, False, f"Functions are no longer traced again: {shown}.")
    elif after * steps[0] > before * steps[1]:
        yield CounterChange(
            "retraces", before, after, False, f"Retraces: {shown}; not clearly more, as BASE retraces too."
        )


_COPIES: Mapping[str, str] = {
    "host_to_device": "a value is made in Python or on the host in each step (NumPy, py_function, a variable)",
    "device_to_host": "a value is read in the step: a summary, a print, py_function, or .numpy() of a gradient",
    "device_to_device": "a tensor that a replica needs is on another device",
    "between_tasks": "a variable is read or written more than once on its parameter server",
}


def _copies(base: Counters, head: Counters) -> Iterator[CounterChange]:
    if base.copies is None or head.copies is None:
        return
    for direction in sorted({*base.copies, *head.copies}):
        yield from _counted(
            f"copies.{direction}", base, head, f"tensors copied {direction.replace('_', ' ')} per step",
            f"{{more}} ({{change}}). Likeliest cause: {_COPIES.get(direction, 'a tensor is on another device')}. Keep "
            "it on its device, or copy it only every n-th step.",
        )  # fmt: skip


def _misplaced(base: Counters, head: Counters) -> Iterator[CounterChange]:
    # Compare numbers, because a variable that was misplaced before may have another name.
    before, after = base.misplaced, head.misplaced
    if len(after) > len(before):
        new = [item for item in after if item not in before]
        yield CounterChange(
            "misplaced", before, after, True,
            f"{len(after) - len(before)} more variables are not on a device of their replica: {', '.join(new)}. "
            "Every step moves their values. Create them within strategy.scope(), without tf.device.",
        )  # fmt: skip
    elif len(after) < len(before):
        yield CounterChange("misplaced", before, after, False, "Fewer variables are misplaced.")


def _counted(counter: str, base: Counters, head: Counters, what: str, worse: str = "") -> Iterator[CounterChange]:
    """Yield the change of a number, if there is one.

    :param worse: message if the number grew, which is then a regression; empty if that never is one. It contains
        ``{more}`` for the difference, and ``{change}`` for both numbers.
    """
    name, _, key = counter.partition(".")
    before, after = (getattr(one, name).get(key, 0) if key else getattr(one, name) for one in (base, head))
    if after > before and worse:
        message = worse.format(more=f"{after - before} more {what}", change=f"{before} -> {after}")
        yield CounterChange(counter, before, after, True, message)
    elif before != after:
        yield CounterChange(counter, before, after, False, f"{before} -> {after} {what}.")


def _bytes(number: int) -> str:
    return f"{number:,} bytes"
