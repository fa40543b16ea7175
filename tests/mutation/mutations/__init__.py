"""All mutations, by what they are a mistake in."""

from __future__ import annotations

from tests.mutation.mutant import Mutation
from tests.mutation.mutations import aggregation, inputs, losses, updates

MUTATIONS: tuple[Mutation, ...] = tuple(
    found
    for module in (aggregation, updates, inputs, losses)
    for found in vars(module).values()
    if isinstance(found, Mutation)
)
"""A mutation is added by one function in one of these modules."""
