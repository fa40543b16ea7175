"""All checks of objects: this module imports the file of each kind, which registers its checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_ddl.conformance import callbacks, layers, losses, metrics, optimizers
from pytest_ddl.conformance.kinds import KINDS
from pytest_ddl.conformance.registry import REGISTERED, ConformanceCheck

_HOMES = (layers, metrics, losses, optimizers, callbacks)

CONFORMANCE_CHECKS: Mapping[str, ConformanceCheck] = MappingProxyType(
    {name: check for kind in KINDS for name, check in REGISTERED.items() if check.kind == kind}
)
"""All checks of objects, by name."""
