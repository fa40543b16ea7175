"""Say what a state belongs to, so that one cause on unrelated states gives a finding for each."""

from __future__ import annotations

import re

from pytest_ddl.records import TrainingRecord, VariableRecord

_NUMBER = re.compile(r"_\d+$")


def owner_of(record: TrainingRecord, variable: VariableRecord) -> str:
    """Return the type of the layer that a state belongs to, or the name of what holds it.

    Two layers of one type have the same owner, and so have two objects whose names differ only in a number that Keras
    has added.
    """
    components = [_NUMBER.sub("", part) for part in variable.name.split("/")]
    types = {_NUMBER.sub("", layer.name): layer.type for rank in record.ranks[:1] for layer in rank.layers}
    known = next((types[part] for part in components if part in types), None)
    return known or "/".join(components[:-1] or components)
