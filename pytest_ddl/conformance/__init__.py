"""Run the properties of this project's suite on your own layers, metrics, losses, optimizers and callbacks.

The public names are loaded on first use: the ranks import the user's test file too, and need none of them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddl.lazy import loaded_on_use

if TYPE_CHECKING:
    from pytest_ddl.conformance.cases import Case, parametrize_with_ddl_checks
    from pytest_ddl.conformance.checks import CONFORMANCE_CHECKS
    from pytest_ddl.conformance.registry import ConformanceCheck, Tags

_HOMES = {
    "CONFORMANCE_CHECKS": "pytest_ddl.conformance.checks",
    "Case": "pytest_ddl.conformance.cases",
    "ConformanceCheck": "pytest_ddl.conformance.registry",
    "Tags": "pytest_ddl.conformance.registry",
    "parametrize_with_ddl_checks": "pytest_ddl.conformance.cases",
}

__all__ = ["CONFORMANCE_CHECKS", "Case", "ConformanceCheck", "Tags", "parametrize_with_ddl_checks"]

__getattr__, __dir__ = loaded_on_use(__name__, _HOMES)
