"""Candidate causes of a wrong update. Each is a function that recomputes the effect of its cause.

To add a cause, add a function to the file of its family and list it in ``CANDIDATES``. The order is from specific and
recomputed causes to causes that are only consistent with the records.
"""

from __future__ import annotations

from pytest_ddl.equivalence.diagnosis.candidates import (
    aggregation,
    clipping,
    data,
    factors,
    layers,
    micro_batches,
    motion,
    parts,
    scaling,
    values,
)
from pytest_ddl.equivalence.diagnosis.case import Candidate

CANDIDATES: list[Candidate] = [
    values.overflow,
    values.not_finite,
    motion.applied_late,
    motion.skipped,
    motion.moved_without_a_gradient,
    motion.of_an_earlier_step,
    motion.standing_still,
    parts.empty_replica,
    data.other_values,
    data.counted_another_number_of_times,
    motion.another_rate,
    clipping.clipped_at_another_size,
    factors.norm_of_another_gradient,
    micro_batches.left_out,
    motion.applied_again,
    factors.rate_by_hand,
    scaling.scaled,
    scaling.unscaled,
    aggregation.handed_over_zeros,
    aggregation.own_gradient,
    aggregation.drifting_apart,
    aggregation.partly_apart,
    aggregation.without_reduction,
    scaling.regularization,
    scaling.data_part_scaled,
    motion.frozen_moved,
    clipping.clipped_parts,
    clipping.unlimited,
    clipping.another_limit,
    clipping.equal_sizes,
    clipping.equal_sizes_by_variable,
    clipping.equal_sizes_of_weights,
    values.sparse_rows,
    scaling.scaled_parts,
    parts.shares_of_examples,
    scaling.scaled_sum,
    scaling.scaled_variables,
    parts.normalised_by_its_part,
    parts.mean_term,
    parts.coupled,
    aggregation.from_slices,
    motion.optimizer_itself,
    clipping.by_updates,
    scaling.penalised_variables,
    scaling.scaled_beside_randomness,
    motion.state_of_the_update,
    parts.masking,
    parts.mean_of_means,
    layers.random_streams,
    layers.normalization,
]
