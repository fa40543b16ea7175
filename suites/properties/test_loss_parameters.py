"""Compare each loss, with all of its parameters, ranks of weights and dtypes, with NumPy on the part of a replica."""

from __future__ import annotations

import numpy as np
import pytest

from suites.parameters.replicas import on_replicas
from suites.parameters.spaces import Wrong
from suites.running import replicas_of
from suites.tables.loss_values import FORMS, LOSSES, OF_ROWS, WHOLE, examples, is_flat, labels_of, reduced, weights_of

pytestmark = pytest.mark.usefixtures("float64")

BOTH = ("one_device", "mirrored")
SPACES = dict.fromkeys((loss.space for loss in LOSSES), BOTH)
"""Spaces of the properties of this file -> their strategies."""

ROWS = 6
"""Examples of each replica. All have the same number: a replica divides by its own."""
SINGLE = {"float64": 0.0, "float32": 2e-5}
"""Relative bound by dtype, beside that of the loss: some ten roundings of 6e-8, and differences of near numbers."""


@pytest.mark.ddl(strategies=["one_device", "mirrored"])
@pytest.mark.ddl_item("loss.reductions")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.space.name)
def test_a_loss_is_its_definition(loss, ddl_strategy):
    """A reduction that is a mean is divided by the number of replicas, because gradients are added up."""
    replicas, wrong = replicas_of(ddl_strategy), Wrong()
    forms = OF_ROWS if loss.data == "embeddings" else WHOLE if loss.whole else FORMS
    cases = loss.space.cases(weights=forms, labels=labels_of(loss.data))
    given, made = [], []
    for case in cases:
        options = {name: case[name] for name in loss.space.varied() if name not in ("reduction", "name", "dtype")}
        flat, logits = is_flat(case["weights"]), options.get("from_logits", False)
        arrays = examples(loss.data, ROWS * replicas, logits=logits, axis=options.get("axis", -1), flat=flat)
        parts = [tuple(array[ROWS * n : ROWS * (n + 1)] for array in arrays) for n in range(replicas)]
        values = [loss.model(*part, **options) for part in parts]
        weights = [weights_of(case["weights"], np.shape(one)) for one in values]
        typed = [(truth.astype(case["labels"]), predicted) for truth, predicted in parts]
        given.append((case, typed, values, weights))
        with ddl_strategy.scope():
            made.append(loss.space.make(case))
    calls = [
        lambda number, one=one, parts=parts, weights=weights: one(*parts[number], sample_weight=weights[number])
        for one, (_, parts, _, weights) in zip(made, given, strict=True)
    ]
    found = on_replicas(ddl_strategy, calls)
    for one, (case, parts, values, weights), results in zip(made, given, found, strict=True):
        mean = case["reduction"] not in ("sum", "none", None) and np.ndim(values[0])
        with wrong.of(case):
            assert one.name == case.get("name", one.name)
            for number, result in results.items():
                counts = loss.counts(parts[number][0], values[number], case)
                expected = reduced(values[number], weights[number], case["reduction"], counts)
                result = result.reshape(np.shape(expected)) if result.size == np.size(expected) else result
                assert result.dtype == case.get("dtype", "float64")
                bound = loss.rtol + SINGLE[case.get("dtype", "float64")]
                np.testing.assert_allclose(result, expected / (replicas if mean else 1), rtol=bound, atol=bound)
    wrong.check()
    assert cases or not loss.space.exists()
