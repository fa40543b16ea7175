"""Plant a mutant: give the functions of the imported Keras the code of the changed source."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterator
from types import CodeType, FunctionType

from suites.defects.registry import put
from suites.mutants import making
from suites.mutants.making import Function, Mutant, find, source


def plant(name: str) -> None:
    """Plant a mutant until it is removed.

    :raises KeyError: if the installed Keras has no such mutant.
    """
    mutant = find(name)
    file = str(making.root() / mutant.file)
    module = ".".join(("keras.src", *mutant.file.removesuffix(".py").split("/")))
    importlib.import_module(module.removesuffix(".__init__"))
    code = code_of(mutant)
    gc.unfreeze()  # a zygote hides what it has imported from the collector
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and _is_at(one.__code__, file, mutant):
            if mutant.kind == "default":
                _put_defaults(one, mutant)
            else:
                put(one, "__code__", code)


def _is_at(code: CodeType, file: str, mutant: Mutant) -> bool:
    name = mutant.function.rpartition(".")[2]
    return code.co_firstlineno == mutant.first and code.co_filename == file and code.co_name == name


def code_of(mutant: Mutant) -> CodeType:
    """Return the code of the changed function.

    :raises ValueError: if it cannot take the place of the original.
    """
    file = str(making.root() / mutant.file)
    found = [_code(text, file, mutant) for text in (source(mutant.file).decode(), mutant.mutated())]
    if found[0].co_freevars != found[1].co_freevars:
        raise ValueError(f"{mutant.name} uses other variables of its class")
    return found[1]


def _code(text: str, file: str, mutant: Mutant) -> CodeType:
    every = _codes(compile(text, file, "exec", dont_inherit=True))
    return next(one for one in every if _is_at(one, file, mutant))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def is_possible(mutant: Mutant) -> bool:
    """Return whether the code of a mutant can take the place of the original, and differs from it."""
    try:
        code = code_of(mutant)
    except (ValueError, SyntaxError):
        return False
    original = _code(source(mutant.file).decode(), str(making.root() / mutant.file), mutant)
    return mutant.kind == "default" or code != original


def _put_defaults(function: FunctionType, mutant: Mutant) -> None:
    """Give a function the default values that are constants in the changed source."""
    nodes = (one for one in ast.walk(ast.parse(mutant.mutated())) if isinstance(one, Function))
    at = function.__code__.co_firstlineno
    node = next(one for one in nodes if min([one.lineno, *(each.lineno for each in one.decorator_list)]) == at)
    given = zip(node.args.defaults, function.__defaults__ or (), strict=True)
    put(function, "__defaults__", tuple(_value(default, earlier) for default, earlier in given))
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    named = {one.arg: default for one, default in pairs if default}
    known = function.__kwdefaults__ or {}
    put(function, "__kwdefaults__", {name: _value(default, known[name]) for name, default in named.items()})


def _value(node: ast.expr, earlier: object) -> object:
    """Return the value of a number in the source, and otherwise the earlier value."""
    if not isinstance(earlier, bool | int | float):
        return earlier
    try:
        return ast.literal_eval(node)
    except ValueError:
        return earlier
