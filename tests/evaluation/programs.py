"""Correct training functions: what mutations are planted in, and what no check may alarm about."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from suites.known_failures import known_failures
from suites.loops import train_in_a_loop, train_with_fit
from suites.subject import KERAS_3
from suites.test_training import BATCH, NUM_EXAMPLES
from suites.workloads import WORKLOADS
from tests.equivalence import fit_programs, lazy_programs
from tests.equivalence import half_precision_programs as half_precision
from tests.equivalence import uneven_programs as uneven
from tests.evaluation.tutorials import TUTORIALS
from tests.planted.catalogue import PLANTED

ROOT = Path(__file__).parents[2]
FIRST_EXAMPLE = re.compile(r"<!-- example: test_train.py -->\n```python\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Program:
    """A correct training function with the arguments that it is checked with."""

    name: str
    train: Callable[[Any], Any]
    strategies: tuple[str, ...]
    """Names of the strategies under which it is correct with the installed TensorFlow and Keras."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of ``check_training``."""


SYNCHRONOUS = ("mirrored", "multi_worker_mirrored", "central_storage")
EVERY = ("one_device", *SYNCHRONOUS, "parameter_server", "model_parallel")


def suite_programs() -> list[Program]:
    """Workloads x loops x batch sizes of ``suites/``, as its own tests run them."""
    found = []
    for name, workload in WORKLOADS.items():
        for size, number in NUM_EXAMPLES.items():
            examples = workload.load().first(number)
            for train, test in ((train_in_a_loop, "test_custom_loop"), (train_with_fit, "test_fit")):
                if train is train_with_fit and size == "uneven" and name != "mlp":
                    continue
                kind = "loop" if train is train_in_a_loop else "fit"
                found.append(
                    Program(
                        f"{name} {kind} {size}",
                        partial(train, workload=workload, examples=examples),
                        tuple(s for s in EVERY if not _is_known_to_fail(f"{test}[{s}-{name}-{size}]", s)),
                        {"global_batch_size": BATCH},
                    )
                )
    return found


def _is_known_to_fail(test: str, strategy: str) -> bool:
    return any(
        KERAS_3 in entry.subjects and entry.matches(f"suites/test_training.py::{test}", strategy)
        for entry in known_failures()
    )


def readme_program(folder: Path) -> Program:
    """The example of the first steps."""
    match = FIRST_EXAMPLE.search((ROOT / "docs/start.md").read_text(encoding="utf-8"))
    assert match is not None, "docs/start.md has no example test_train.py"
    module = import_text("readme_example", match[1], folder)
    return Program("README", module.train, EVERY, {"global_batch_size": 12, "steps": 4})


def twin_programs() -> list[Program]:
    """The correct twins of the planted bugs."""
    return [
        Program(
            f"twin {entry.name}",
            entry.twin,
            entry.strategies,
            {
                "global_batch_size": entry.batch,
                "steps": entry.steps,
                "expect": dict.fromkeys(entry.expect_of_twin, "the twin is meant to"),
                "timeout": entry.timeout,
            },
        )
        for entry in PLANTED
    ]


def half_precision_programs() -> list[Program]:
    """Mixed precision, casts by hand and loss scales: ``tests/equivalence/half_precision_programs.py``."""
    return [
        Program(f"half precision {name}", train, strategies, {"global_batch_size": 12})
        for name, (train, strategies) in half_precision.RIGHT.items()
    ]


def lazily_built_programs() -> list[Program]:
    """Programs whose models and optimizers the first batch builds, under the strategies that can do that."""
    eager = {"expect": {"eager-step": "the first batch builds the model in eager mode"}}
    one_replica_each = ("one_device", "multi_worker_mirrored", "parameter_server", "model_parallel")
    data_parallel = ("one_device", *SYNCHRONOUS)
    found: list[tuple[Callable[[Any], None], tuple[str, ...], dict[str, Any]]] = [
        (lazy_programs.keras_eager, SYNCHRONOUS, eager),
        (lazy_programs.module, ("mirrored", "multi_worker_mirrored"), eager),
        (lazy_programs.keras_graph, one_replica_each, {}),
        (lazy_programs.keras_called_first, ("one_device", "mirrored", "multi_worker_mirrored"), {}),
        (lazy_programs.tf_keras_graph, (*data_parallel, "parameter_server"), {}),
        (lazy_programs.tf_keras_embedding, ("one_device", "mirrored"), {}),
        (lazy_programs.keras_fit, ("one_device", "mirrored"), {}),
        (lazy_programs.keras_fit_subclassed, ("one_device", "mirrored"), {}),
        (lazy_programs.tf_keras_fit, ("one_device", "mirrored"), {}),
    ]
    return [
        Program(f"lazily built {train.__name__}", train, strategies, {"global_batch_size": 12, "steps": 4, **given})
        for train, strategies, given in found
    ]


def fitted_programs() -> list[Program]:
    """Programs that call ``fit`` with callbacks and validation."""
    found = [
        fit_programs.scheduled,
        fit_programs.stopped_early,
        fit_programs.split,
        fit_programs.scheduled_lazily,
        fit_programs.stopped_early_lazily,
        fit_programs.split_lazily,
        fit_programs.scheduled_in_tf_keras,
        fit_programs.stopped_early_in_tf_keras,
        fit_programs.split_in_tf_keras,
    ]
    return [
        Program(f"fit {train.__name__}", train, ("one_device", "mirrored"), {"global_batch_size": 12})
        for train in found
    ]


def uneven_programs() -> list[Program]:
    """Return programs whose epochs end with an uneven batch."""
    found: list[tuple[str, Callable[[Any], None]]] = [
        ("evaluated", uneven.evaluated),
        ("average in a callback", uneven.averaged_by_a_callback),
        ("average in the program", uneven.averaged_by_the_program),
        ("average of the optimizer", uneven.fitted_with_average),
        *((name, partial(uneven.fitted_with, optimizer=name)) for name in uneven.OPTIMIZERS),
    ]
    made = [Program(f"uneven {name}", train, ("mirrored",), {"global_batch_size": 12}) for name, train in found]
    return [*made, Program("uneven loop", uneven.loop, SYNCHRONOUS, {"global_batch_size": 12})]


def tutorial_programs() -> list[Program]:
    """Return published tutorials, made small, under the strategies that run Keras' ``fit``."""
    return [
        Program(f"tutorial {train.__name__}", train, ("one_device", "mirrored"), {"global_batch_size": 12})
        for train in TUTORIALS
    ]


def import_text(name: str, text: str, folder: Path) -> ModuleType:
    """Write a program to a file and import it, as a person would: ranks find it by its file."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def by_name() -> Mapping[str, Program]:
    """The programs of ``suites/`` by name."""
    return {program.name: program for program in suite_programs()}
