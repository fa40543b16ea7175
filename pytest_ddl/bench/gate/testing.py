"""Run the gate in a test; the fixture ``ddl_gate`` calls this module."""

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
    """Raised if the gate did not pass. The message is the whole report, or the reason why there is none."""

    def __init__(self, message: str, verdict: Verdict = Verdict.ERROR) -> None:
        super().__init__(message)
        self.verdict = verdict.value


def gate_in_test(
    versions: str, root: Path, target: Callable[[Any], Any] | str, strategies: Sequence[str] | str, **options: Any
) -> GateResult:
    """Run the gate on one training function.

    :param versions: ``BASE..HEAD``.
    :param root: a folder in the repository.
    :param target: the function itself, from a file of the repository, or ``module:function``.
    :raises GateFailedError: if there is a regression, if a regression cannot be ruled out, or if the gate cannot run.
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
    """Return a function as a target: by its module if that is found from ``root``, else by its file.

    :raises GateUsageError: if the function has no name there, for example a lambda or an inner function, or if it is
        not in the repository.
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
