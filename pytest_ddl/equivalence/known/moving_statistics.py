"""Recognize the moving statistics of batch normalization that Keras 3 never combines."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_ddl.equivalence.evidence.arrays import same
from pytest_ddl.equivalence.evidence.observe import read_locally
from pytest_ddl.equivalence.findings import Finding
from pytest_ddl.records import LayerRecord, TrainingRecord, VariableKind, VariableRecord

CAUSE = "state-not-aggregated"
_STATISTICS = ("moving_mean", "moving_variance")


def is_moving_statistics(finding: Finding, reference: TrainingRecord, distributed: TrainingRecord) -> bool:
    """Return whether all state that differs between replicas is that of Keras' own unsynchronized normalization.

    It is not recognized if batch normalization was synchronized, because nothing may differ then.
    """
    if finding.cause != CAUSE or "normalization" in distributed.neutralized or not finding.step:
        return False
    plain = [layer for rank in distributed.ranks[:1] for layer in rank.layers if _is_plain(layer)]
    apart = list(_apart(distributed))
    return bool(apart) and all(_is_of(variable, plain) for variable in apart)


def _is_plain(layer: LayerRecord) -> bool:
    settings = layer.settings
    trains = bool(settings.get("trainable", True))
    return trains and bool(settings.get("of_keras")) and settings.get("synchronized") is False


def _is_of(variable: VariableRecord, layers: list[LayerRecord]) -> bool:
    *path, name = variable.name.split("/")
    return name in _STATISTICS and bool(path) and any(layer.name == path[-1] for layer in layers)


def _apart(record: TrainingRecord) -> Iterator[VariableRecord]:
    """Yield the state whose copies differ after some step."""
    for variable in record.variables:
        if variable.kind is not VariableKind.STATE or read_locally(variable):
            continue
        for step in range(1, record.num_steps + 1):
            copies = [value for _rank, _replica, value in record.components(variable.index, step)]
            if any(not same(copy, copies[0]) for copy in copies[1:]):
                yield variable
                break
