"""float64 runs, and runs moved by one ulp."""

from __future__ import annotations

import numpy as np
import pytest
import tensor_float_programs
import training_programs as programs

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8, "steps": 2}


@pytest.mark.parametrize("program", ["custom_loop", "tf_keras_loop", "batch_norm"])
def test_float64(ranks, program):
    (record,) = ranks("one_device", getattr(programs, program), **GIVEN, precision="float64")
    weights = [item for item in record.variables if item.kind in ("trainable", "slot")]
    assert {item.dtype for item in weights} == {"float64"}


def test_float64_agrees_to_rounding(ranks):
    (reference,) = ranks("one_device", programs.custom_loop, **GIVEN, precision="float64")
    for rank in ranks("multi_worker_mirrored", programs.custom_loop, **GIVEN, precision="float64"):
        for index, (component,) in rank.steps[-1].snapshot.items():
            np.testing.assert_allclose(component, reference.steps[-1].snapshot[index][0], rtol=1e-12, atol=1e-14)


def test_data_is_cast(ranks):
    (plain,) = ranks("one_device", programs.dtypes)
    (wide,) = ranks("one_device", programs.dtypes, precision="float64")
    assert set(plain.steps[0].values) == {"float32"}
    assert set(wide.steps[0].values) == {"float64"}


@pytest.mark.parametrize("precision", ["native", pytest.param("float64", marks=pytest.mark.slow)])
def test_perturbation_moves_by_one_ulp(ranks, precision):
    given = {**GIVEN, "precision": precision}
    (plain,) = ranks("one_device", programs.custom_loop, **given)
    (first,) = ranks("one_device", programs.custom_loop, **given, perturbation=1)
    (again,) = ranks("one_device", programs.custom_loop, **given, perturbation=1)
    (second,) = ranks("one_device", programs.custom_loop, **given, perturbation=2)
    before, moved = plain.initial[0][0], first.initial[0][0]
    assert np.all(np.abs(moved - before) == np.spacing(np.abs(before), dtype=before.dtype)) or np.allclose(
        moved, before, rtol=4 * np.finfo(before.dtype).eps, atol=0
    )
    assert np.all(moved != before)
    np.testing.assert_array_equal(moved, again.initial[0][0])
    assert not np.array_equal(moved, second.initial[0][0])
    assert first.steps[0].batches[0].fingerprints != plain.steps[0].batches[0].fingerprints
    assert first.steps[-1].loss == pytest.approx(plain.steps[-1].loss, rel=1e-4)


def test_products_of_float32_are_not_rounded_to_fewer_bits(ranks, in_rank):
    """A GPU chooses TensorFloat-32 by the size of a product, so replicas would round otherwise than one device."""
    (record,) = ranks("one_device", tensor_float_programs.tensor_float_32)
    assert record.steps[0].values == {"at first": 0.0, "switched on": 0.0}
    assert in_rank("one_device", tensor_float_programs.tensor_float_32_enabled) == [True]
