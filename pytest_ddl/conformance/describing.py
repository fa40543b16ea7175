"""Find out on one device what an object is: its kind, its tags, and the examples that it takes. Runs in a rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pytest_ddl.conformance.cases import Case
from pytest_ddl.conformance.comparing import flat
from pytest_ddl.conformance.data import INPUTS, PAIRS, VALUES, Data, weights
from pytest_ddl.conformance.kinds import KINDS, flavor_of, kind_of, package_of, prepared
from pytest_ddl.conformance.layers import training_argument
from pytest_ddl.conformance.registry import Subject, Tags

_PRECISIONS = ("float64", "float32")
"""The wider one comes first, because its rounding is far smaller than the effect of any defect."""


_DRAWS = ("Random", "Rng", "Multinomial", "StatefulStandardNormal", "StatefulUniform")
"""Parts of the names of operations that draw random numbers, or read the state of a generator."""


class CaseError(Exception):
    """A case that cannot be checked. The message is one line."""


def describe(cases: Sequence[Case]) -> list[Subject | str]:
    """Return what each case is, or why it cannot be checked."""
    described: list[Subject | str] = []
    for case in cases:
        try:
            described.append(_described(case))
        except CaseError as error:
            described.append(str(error))
    return described


def _described(case: Case) -> Subject:
    """Return the subject of a case.

    :raises CaseError: if it cannot be checked.
    """
    first, second = _made(case), _made(case)
    name = case.name or _name(case.factory, first)
    if first is second and not inspect.isfunction(first):
        raise CaseError(
            f"{name}: the factory returns the same object twice; it must make a new one for each strategy and check"
        )
    kind = case.kind or kind_of(first)
    if kind is None:
        raise CaseError(
            f"{name}: a {type(first).__module__}.{type(first).__qualname__} is no layer, metric, loss, optimizer or "
            f"callback of Keras; valid: Case(..., kind=...) with one of {', '.join(KINDS)}"
        )
    subject = Subject(case.factory, name, kind, flavor_of(first), "float64", Tags(), case.data)
    errors: list[str] = []
    for precision in _PRECISIONS:
        with prepared(subject.flavor, precision):
            for data in (case.data,) if case.data else _DATA[kind](first):
                attempt = replace(subject, precision=precision, data=data)
                try:
                    tags = _FINDERS[kind](attempt)
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {_line(error)}")
                else:
                    return replace(attempt, tags=case.tags.over(tags))
    given = " with the data of its Case" if case.data else " with common examples, so give data= in a Case"
    given = given if kind in ("layer", "metric", "loss") else ""
    raise CaseError(f"{name}: this {kind} cannot be used on one device{given}: {errors[0]}")


def _made(case: Case) -> Any:
    """Call the factory.

    :raises CaseError: if it raises.
    """
    try:
        return case.factory()
    except Exception as error:
        name = case.name or getattr(case.factory, "__name__", repr(case.factory))
        raise CaseError(f"{name}: the factory raises {type(error).__name__}: {_line(error)}") from error


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else ""


def _name(factory: Callable[[], Any], made: Any) -> str:
    name = getattr(factory, "__name__", "")
    of_object = made.__name__ if inspect.isfunction(made) else type(made).__name__
    return str(of_object) if name in ("", "<lambda>") else name


def _takes(function: Any, argument: str) -> bool:
    named = inspect.signature(function).parameters
    return argument in named or any(one.kind is one.VAR_KEYWORD for one in named.values())


# ----- examples that may fit, by kind -----


def _of_metric(metric: Any) -> Sequence[Data]:
    named = [name for name in inspect.signature(metric.update_state).parameters if name != "sample_weight"]
    return (*VALUES, *PAIRS) if len(named) == 1 else (*PAIRS, *VALUES)


def _none(_made: Any) -> Sequence[Data | None]:
    return (None,)


_DATA: dict[str, Callable[[Any], Sequence[Data | None]]] = {
    "layer": lambda _made: INPUTS,
    "metric": _of_metric,
    "loss": lambda _made: PAIRS,
    "optimizer": _none,
    "callback": _none,
}


# ----- tags, found by a use on one device -----


def _of_layer(subject: Subject) -> Tags:
    import tensorflow as tf

    layer = subject.make()
    arrays = [tf.constant(one) for one in subject.arrays(8)]
    outputs = flat(tf.nest.flatten(layer(*arrays, **training_argument(layer, False))))
    if not all(np.isfinite(one).all() for one in outputs if one.dtype.kind == "f"):
        raise ValueError("the outputs are not finite")
    traced = tf.function(lambda *given: layer(*given, **training_argument(layer, True)), autograph=False)
    graph = traced.get_concrete_function(*arrays).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    random = any(part in node.op for node in nodes for part in _DRAWS)
    return Tags(random=random, state=bool(layer.non_trainable_weights), sparse_gradients=False, sample_weights=False)


def _of_results(subject: Subject) -> Tags:
    metric = subject.make()
    results = []
    weighted = _takes(metric.update_state, "sample_weight")
    for rows in (8, 12):
        metric.reset_state()
        given = {"sample_weight": weights(rows).astype(subject.precision)} if weighted else {}
        metric.update_state(*subject.arrays(rows), **given)
        results.append(flat(metric.result()))
    if not all(np.isfinite(one).all() for result in results for one in result):
        raise ValueError("the result is not finite")
    if all(np.array_equal(one, other) for one, other in zip(*results, strict=True)):
        raise ValueError("the result is the same for all examples")
    return Tags(random=False, state=True, sparse_gradients=False, sample_weights=weighted)


def _of_loss(subject: Subject) -> Tags:
    import tensorflow as tf

    loss = subject.make()
    weighted = _takes(loss if inspect.isfunction(loss) else type(loss).__call__, "sample_weight")
    labels, predicted = map(tf.constant, subject.arrays(8))
    with tf.GradientTape() as tape:
        tape.watch(predicted)
        value = tf.reduce_sum(loss(labels, predicted))
    gradient = tape.gradient(value, predicted)
    if gradient is None or not np.isfinite([*np.asarray(gradient).ravel(), value]).all() or not np.any(gradient):
        raise ValueError("the loss or its gradient is not finite, or zero")
    return Tags(random=False, state=False, sparse_gradients=False, sample_weights=weighted)


def _of_optimizer(subject: Subject) -> Tags:
    import tensorflow as tf

    keras = package_of(subject.flavor)
    variables = []
    for _ in range(2):
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
        variables.append(layer.kernel)
    taken: list[Any] = []
    gradient = tf.ones((3, 2), subject.precision)
    for variable, given in zip(
        variables, (gradient, tf.IndexedSlices(gradient, [0, 1, 1], tf.constant([3, 2]))), strict=True
    ):
        optimizer = subject.make()
        if hasattr(optimizer, "build"):
            optimizer.build([variable])
        try:
            optimizer.apply_gradients([(given, variable)])
        except Exception:
            if not taken:
                raise
        else:
            taken.append(variable)
    own = optimizer.variables
    slots = len(list(own() if callable(own) else own)) > 1
    return Tags(random=False, state=slots, sparse_gradients=len(taken) == 2, sample_weights=False)


def _of_callback(subject: Subject) -> Tags:
    subject.make()
    return Tags(random=False, state=False, sparse_gradients=False, sample_weights=False)


_FINDERS: dict[str, Callable[[Subject], Tags]] = {
    "layer": _of_layer,
    "metric": _of_results,
    "loss": _of_loss,
    "optimizer": _of_optimizer,
    "callback": _of_callback,
}
