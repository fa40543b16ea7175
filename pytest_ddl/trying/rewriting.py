"""Write the lines that distribute a loop of a script without a strategy, with the names of the script."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_ddl.trying.source import bodies_of, mentioned, reached

_APPLIES = {"apply", "apply_gradients"}
_COUNT = "strategy.num_replicas_in_sync"


@dataclass(frozen=True)
class _LoopStep:
    """Training step: what the body of a loop does, or the function that a loop calls."""

    tape: ast.With
    """Statement in which the last loss is computed."""
    losses: list[str]
    builds: list[str]
    """Calls that make the variables of the optimizers."""


def distributed_loop(code: str) -> str:
    """Return the lines that the innermost training loop of a script needs under a strategy; empty for other shapes.

    The loop must iterate over a dataset, and compute gradients itself or in one function that it calls.
    """
    tree = ast.parse(code)
    bodies = bodies_of(tree.body)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and _trains(node.body, bodies)]
    loop = next((one for one in loops if not any(_inside(other, one) for other in loops)), None)
    if loop is None or _is_counted(loop.iter):
        return ""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and _called(node) in functions]
    calls = [node for node in calls if _trains([functions[_called(node)]], bodies)]
    body = functions[_called(calls[0])].body if calls else loop.body
    step = _step_of(body)
    if step is None or len(calls) > 1:
        return ""
    lines = [
        "strategy = tf.distribute.MirroredStrategy()",
        "with strategy.scope():",
        "    ...  # your lines that make the models, the metrics and the optimizers",
        "    # A model without weights must be called once before this:",
        *(f"    {build}" for build in step.builds),
        "",
        *_of_losses(step, tree, bodies),
        *(_called_step(calls[0], loop) if calls else _inline_step(step, loop)),
    ]
    return textwrap.indent("\n".join(lines), "    ")


def _of_losses(step: _LoopStep, tree: ast.Module, bodies: Mapping[str, set[str]]) -> list[str]:
    """Return what the losses of one replica need. A loss object of Keras 3 divides by the number of replicas itself."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    made = {name for node in nodes if _makes_loss(node.value) for name in _targets(node)}
    values = [node.value for node in nodes if set(_targets(node)) & {*step.losses}]
    objects = sorted(reached(values, bodies) & made)
    if objects:
        lines = [f"# {' and '.join(objects)} divides its mean by {_COUNT}. Divide other terms of a loss, too."]
    else:
        lines = [f"# the last lines inside of the tape, after line {step.tape.end_lineno}:"]
        lines += [f"{loss} = {loss} / {_COUNT}" for loss in step.losses]
    means = " and ".join(f"{loss} * {_COUNT}" for loss in step.losses)
    return [*lines, "# A metric, and what is printed of a replica, needs its mean:", f"#     {means}", ""]


def _called_step(call: ast.Call, loop: ast.For) -> list[str]:
    arguments = [ast.unparse(one) for one in call.args]
    comma = "," if len(arguments) == 1 else ""
    options = "".join(f", {one.arg}={ast.unparse(one.value)}" for one in call.keywords if one.arg)
    kwargs = f", kwargs=dict({options[2:]})" if options else ""
    run = f"strategy.run({_called(call)}, args=({', '.join(arguments)}{comma}){kwargs})"
    used = next((node for node in ast.walk(loop) if isinstance(node, ast.Assign) and node.value is call), None)
    target = f"{', '.join(_targets(used))} = " if used is not None else ""
    return [_for(loop), f"    {target}{_reduced(run) if used is not None else run}"]


def _inline_step(step: _LoopStep, loop: ast.For) -> list[str]:
    names = [*_names(_batch(loop))]
    returned = ", ".join(step.losses)
    run = f"strategy.run(train_step, args=({', '.join(names)}{',' if len(names) == 1 else ''}))"
    return [
        "@tf.function",
        f"def train_step({', '.join(names)}):",
        f"    ...  # from line {step.tape.lineno}, all lines that use the batch or what is computed from it",
        f"    return {returned}",
        "",
        _for(loop),
        f"    {returned} = {_reduced(run)}",
    ]


def _reduced(run: str) -> str:
    return f'strategy.reduce("SUM", {run}, axis=None)'


def _for(loop: ast.For) -> str:
    given = loop.iter
    inner = given.args[0] if isinstance(given, ast.Call) and _is_enumeration(given) else given
    target = ast.unparse(loop.target)
    target = target[1:-1] if isinstance(loop.target, ast.Tuple) else target
    whole = f"strategy.experimental_distribute_dataset({ast.unparse(inner)})"
    return f"for {target} in {f'enumerate({whole})' if inner is not given else whole}:"


def _batch(loop: ast.For) -> ast.expr:
    """Return what a loop calls a batch, without the number that ``enumerate`` adds."""
    target = loop.target
    return target.elts[1] if _is_enumeration(loop.iter) and isinstance(target, ast.Tuple) else target


def _is_enumeration(given: ast.expr) -> bool:
    return isinstance(given, ast.Call) and _called(given) == "enumerate" and bool(given.args)


def _is_counted(given: ast.expr) -> bool:
    return isinstance(given, ast.Call) and _called(given) in ("range", "trange", "zip")


def _step_of(body: list[ast.stmt]) -> _LoopStep | None:
    """Return the step in some statements, unless they update weights in a way that has no plain rewriting."""
    nodes = [part for node in body for part in ast.walk(node)]
    tapes = [node for node in nodes if isinstance(node, ast.With) and "GradientTape" in mentioned(node.items)]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    calls.sort(key=lambda call: call.lineno)
    gradients = [call.args for call in calls if _called(call) == "gradient" and len(call.args) > 1]
    updates = [call.func.value for call in calls if _called(call) in _APPLIES and isinstance(call.func, ast.Attribute)]
    losses = [loss.id for loss, *_more in gradients if isinstance(loss, ast.Name)]
    if not len(losses) == len(gradients) == len(updates):
        return None
    pairs = zip(updates, gradients, strict=True)
    builds = [f"{ast.unparse(optimizer)}.build({ast.unparse(weights)})" for optimizer, (_, weights, *_more) in pairs]
    return _LoopStep(max(tapes, key=lambda tape: tape.lineno), losses, builds)


def _trains(nodes: list[ast.stmt], bodies: Mapping[str, set[str]]) -> bool:
    names = reached(nodes, bodies)
    return "GradientTape" in names and bool(names & _APPLIES)


def _inside(node: ast.For, other: ast.For) -> bool:
    return node is not other and other.lineno <= node.lineno and (node.end_lineno or 0) <= (other.end_lineno or 0)


def _targets(node: ast.Assign) -> list[str]:
    return [name for target in node.targets for name in _names(target)]


def _names(target: ast.expr) -> Iterator[str]:
    yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def _makes_loss(value: ast.expr) -> bool:
    """Return whether an expression makes a loss object of Keras: a class of ``losses``, or one named like them."""
    if not isinstance(value, ast.Call) or any(keyword.arg == "reduction" for keyword in value.keywords):
        return False
    name = _called(value)
    return name[:1].isupper() and ("losses" in mentioned([value.func]) or name.endswith(("entropy", "Error")))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
