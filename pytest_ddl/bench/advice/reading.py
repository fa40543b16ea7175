"""Read the launches of an evaluation, or of a matrix that was saved, as evidence for the rules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_ddl.bench.advice.facts.evidence import AdviceEvidence
from pytest_ddl.bench.advice.facts.gains import from_share
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.bench.metrics.estimates import estimate
from pytest_ddl.bench.metrics.of_pair import UNSCALED

NEEDS_PROGRAM = "give MODULE:FUNCTION too, and it is measured"


class EvaluationFileError(ValueError):
    """Raised if a file has no launches. The message is one line that says what is wrong."""


def read(path: Path) -> Matrix:
    """Read the matrix of an evaluation (key ``matrix``), or a matrix that ``Matrix.save`` wrote.

    :raises EvaluationError: if the file cannot be read, or holds neither.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EvaluationFileError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise EvaluationFileError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    given = data.get("matrix", data) if isinstance(data, dict) else data
    try:
        matrix = Matrix.from_json(given)
    except (KeyError, TypeError, AttributeError) as error:
        raise EvaluationFileError(
            f"{path} holds no evaluation and no matrix ({type(error).__name__}: {error}): give a file of "
            "pytest-ddl evaluate, or of Matrix.save"
        ) from None
    if not matrix.launches:
        raise EvaluationFileError(f"{path} has no launches: nothing was measured")
    refused = _refused(matrix, data.get("verdicts", {}) if isinstance(data, dict) else {})
    kept = tuple(one for one in matrix.launches if one.strategy not in refused)
    if not kept:
        raise EvaluationFileError(f"{path} has no launch to give advice on: {next(iter(refused.values()))}")
    return replace(matrix, launches=kept, skipped={**matrix.skipped, **refused})


def _refused(matrix: Matrix, verdicts: dict[str, Any]) -> dict[str, str]:
    """Return the variants of a matrix on which no advice is given, wrong or asynchronous ones, with the reason."""
    refused = {}
    for variant in matrix.variants:
        verdict = verdicts.get(variant, {}).get("verdict", "pass")
        if verdict not in ("pass", "known"):
            refused[variant] = f"{variant} is not shown to be correct (verdict of the evaluation: {verdict})"
        elif variant.partition("[")[0] in UNSCALED and variant.startswith("parameter_server"):
            refused[variant] = f"{variant}: {UNSCALED['parameter_server']}"
    return refused


def evidence_of(matrix: Matrix, variant: str) -> AdviceEvidence:
    """Return the evidence that a matrix has on one of its variants: counts, and the share of communication."""
    launch = matrix.of(variant)[0]
    found = estimate("communication_share", matrix, variant)
    without = None
    if found.value is not None:
        low = found.value if found.low is None else found.low
        high = found.value if found.high is None else found.high
        without = from_share(found.value, low, high)
    return AdviceEvidence(launch, communication_of_matrix=without)
