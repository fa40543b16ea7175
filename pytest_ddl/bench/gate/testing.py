"""The gate in a test: what the fixture ``ddl_gate`` does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_ddl.bench.gate import report
from pytest_ddl.bench.gate.gating import gate
from pytest_ddl.bench.gate.result import GateResult
from pytest_ddl.bench.gate.verdict import Verdict
from pytest_ddl.bench.gate.worktrees import GateUsageError
from pytest_ddl.bench.launching.remote import source_of


class GateFailedError(AssertionError):
    """It was not shown that nothing regressed; the message is the whole report."""

    def __init__(self, message: str, verdict: Verdict = Verdict.ERROR) -> None:
        super().__init__(message)
        self.verdict = verdict.value
        """The worst of all cells."""


def gate_in_test(
    versions: str, root: Path, target: Callable[[Any], Any] | str, strategies: Sequence[str] | str, **options: Any
) -> GateResult:
    """Gate one training function.

    :param versions: ``BASE..HEAD``.
    :param root: a folder in the repository.
    :param target: the function itself, from a file of the repository, or ``module:function``.
    :raises GateFailedError: for a regression, where none could be ruled out, and for what cannot be gated.
    """
    base, _dots, head = versions.partition("..")

    def tell(line: str) -> None:
        sys.stderr.write(line + "\n")

    try:
        named = target if isinstance(target, str) else name_of(target, root)
        result = gate(base, head, named, strategies, tell=tell, repository=root, **options)
    except GateUsageError as error:
        raise GateFailedError(f"ddl_gate: {error}") from None
    if not result.passed:
        raise GateFailedError(report.text(result), result.verdict)
    sys.stdout.write(report.text(result))
    return result


def name_of(function: Callable[[Any], Any], root: Path) -> str:
    """A function as a target: by its module where that is found from ``root``, else by its file.

    :raises GateUsageError: for one that has no name there, such as a lambda or an inner function.
    """
    file, name = Path(source_of(function)), getattr(function, "__qualname__", "")
    if not name.isidentifier():
        raise GateUsageError(
            f"{function!r} cannot be found by its name in another version; give a function of a module, or "
            "'module:function'"
        )
    module = str(getattr(function, "__module__", ""))
    tail = Path(*module.split(".")).with_suffix(".py")
    if any((folder / tail).is_file() and (folder / tail).samefile(file) for folder in (root, root / "src")):
        return f"{module}:{name}"
    from pytest_ddl.bench.gate.worktrees import Repository

    top = Repository(root).root
    if not file.is_relative_to(top):
        raise GateUsageError(f"{name} comes from {file}, which is not in the repository {top}")
    return f"{file.relative_to(top)}:{name}"
