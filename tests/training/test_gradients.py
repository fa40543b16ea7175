"""Gradients as they are recorded: what the tape gave, what the optimizer was handed, and that nothing changes by it."""

from __future__ import annotations

import numpy as np
import pytest
import tape_programs as programs

from pytest_ddl.records import GradientStage
from pytest_ddl.training.settings import GradientInjection

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8, "steps": 2}
COMPUTED, APPLIED = GradientStage.COMPUTED, GradientStage.APPLIED


def calls(records, stage, step=1):
    """Replica -> the gradients of each call of a stage."""
    found = {}
    for record in records:
        for gradient in record.steps[step - 1].gradients:
            if gradient.stage is stage:
                assert gradient.call == len(found.setdefault(gradient.replica, []))
                found[gradient.replica].append(gradient)
    return found


def summed(records, stage, call=0, step=1):
    """The sum over replicas of what they put into one call."""
    parts = [gradients[call].values for gradients in calls(records, stage, step).values()]
    return {index: sum(part[index] for part in parts) for index in parts[0]}


def assert_all_close(left, right):
    assert left.keys() == right.keys()
    for index, value in left.items():
        np.testing.assert_allclose(value, right[index], rtol=1e-5, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "replicas"),
    [
        ("mirrored", [0, 1]),
        ("central_storage", [0, 1]),
        ("multi_worker_mirrored", [0, 1]),
        ("parameter_server", [0]),
    ],
)
def test_replicas_add_up_to_one_device_and_explain_the_update(ranks, strategy, replicas):
    reference = ranks("one_device", programs.plain, **GIVEN)
    found = ranks(strategy, programs.plain, **GIVEN)
    for step in (1, 2):
        assert sorted(calls(found, COMPUTED, step)) == replicas
        assert_all_close(summed(found, COMPUTED, step=step), summed(reference, COMPUTED, step=step))
        assert_all_close(summed(found, APPLIED, step=step), summed(found, COMPUTED, step=step))
    before, after = (found[0].steps[step].snapshot for step in (0, 1))
    for index, gradient in summed(found, APPLIED, step=2).items():
        np.testing.assert_allclose(after[index][0] - before[index][0], -0.1 * gradient, rtol=1e-4, atol=1e-6)
    assert all(record.notes == () for record in found)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "program",
    ["eager", "fits", "fits_tf_keras", "fits_legacy", "penalty"],
)
def test_however_the_program_steps(ranks, program):
    (record,) = ranks("mirrored", getattr(programs, program), **GIVEN)
    for stage in GradientStage:
        for step in (1, 2):
            found = calls([record], stage, step)
            assert sorted(found) == [0, 1]
            assert all(len(gradients) == 1 and len(gradients[0].values) >= 2 for gradients in found.values())
    assert record.notes == ()


@pytest.mark.nightly
def test_what_is_done_on_the_way_shows(ranks):
    found = ranks("mirrored", programs.halved_on_the_way, **GIVEN)
    assert_all_close(summed(found, APPLIED), {index: value / 2 for index, value in summed(found, COMPUTED).items()})


@pytest.mark.nightly
def test_two_tapes_and_a_variable_without_gradient(ranks):
    (record,) = ranks("mirrored", programs.two_tapes, **GIVEN)
    for gradients in calls([record], COMPUTED).values():
        assert [sorted(gradient.values) for gradient in gradients] == [[0, 1, 2, 3], [2], [3]]
        first = gradients[0].values
        assert first[0] is not None
        assert first[2] is None
    for gradients in calls([record], APPLIED).values():
        assert [sorted(gradient.values) for gradient in gradients] == [[0, 1], [2, 3]]


@pytest.mark.nightly
def test_loops_in_the_graph_and_updates_by_hand(ranks):
    reference = ranks("one_device", programs.micro_batches, **GIVEN)
    found = ranks("mirrored", programs.micro_batches, **GIVEN)
    assert calls(found, APPLIED) == {}
    assert [len(gradients) for gradients in calls(found, COMPUTED).values()] == [2, 2]
    both = [summed(found, COMPUTED, call) for call in (0, 1)]
    ours = [summed(reference, COMPUTED, call) for call in (0, 1)]
    assert_all_close({i: both[0][i] + both[1][i] for i in both[0]}, {i: ours[0][i] + ours[1][i] for i in ours[0]})


def test_an_optimizer_class_of_the_program_is_watched_and_still_converted_by_autograph(ranks):
    (record,) = ranks("one_device", programs.own_optimizer, **GIVEN)
    assert_all_close(summed([record], APPLIED), summed([record], COMPUTED))  # before the class doubles it
    before, after = (record.steps[step].snapshot for step in (0, 1))
    for index, gradient in summed([record], APPLIED, step=2).items():
        np.testing.assert_allclose(after[index][0] - before[index][0], -0.2 * gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
def test_the_optimizer_within_a_loss_scale_optimizer_is_not_told_apart(ranks):
    (record,) = ranks("mirrored", programs.scales_its_loss, **GIVEN)
    assert [len(gradients) for gradients in calls([record], APPLIED).values()] == [1, 1]


@pytest.mark.nightly
def test_sparse_gradients_are_densified_for_the_record_alone(ranks):
    reference = ranks("one_device", programs.sparse, **GIVEN)
    found = ranks("mirrored", programs.sparse, **GIVEN)
    assert all(gradients[0].sparse == {0} for gradients in calls(found, COMPUTED).values())
    assert_all_close(summed(found, COMPUTED), summed(reference, COMPUTED))


def test_a_gradient_that_is_differentiated_again(ranks):
    plain, watched = (
        ranks("one_device", programs.second_order, observe=observe, **GIVEN)[0] for observe in (False, True)
    )
    assert len(calls([watched], COMPUTED)[0]) == 2
    for index, (value,) in plain.steps[-1].snapshot.items():
        np.testing.assert_allclose(watched.steps[-1].snapshot[index][0], value, rtol=1e-6)


@pytest.mark.nightly
def test_within_xla_nothing_is_recorded_and_nothing_breaks(ranks):
    (record,) = ranks("one_device", programs.compiled_gradients, **GIVEN)
    assert calls([record], COMPUTED) == {}
    assert any("jit_compile" in note for note in record.notes)
    assert record.steps[0].batches, "what is outside the compiled function is observed all the same"


@pytest.mark.nightly
def test_too_large_gradients_are_left_out_with_a_note(ranks):
    from pytest_ddl.training.consumption import LARGEST

    (record,) = ranks("one_device", programs.large, global_batch_size=2, steps=1)
    assert record.steps[0].snapshot[0][0].nbytes > LARGEST
    assert record.steps[0].gradients == ()
    assert any("too large" in note for note in record.notes)


@pytest.mark.nightly
def test_planted_infinities_reach_one_replica_in_one_step(ranks):
    planted = (GradientInjection(step=2, replica=1, variable=2, value=float("inf")),)
    (record,) = ranks("mirrored", programs.plain, inject=planted, **GIVEN)
    assert all(np.isfinite(value).all() for value in summed([record], COMPUTED, step=1).values())
    for replica, (gradient,) in calls([record], COMPUTED, step=2).items():
        finite = {index: bool(np.isfinite(value).all()) for index, value in gradient.values.items()}
        assert finite == {index: (replica, index) != (1, 2) for index in range(4)}
    for part in record.steps[1].snapshot[2]:
        assert not np.isfinite(part).any()


def test_planted_infinities_in_the_gradient_of_one_device(ranks):
    planted = (GradientInjection(step=1, replica=1, variable=0, value=float("inf")),)
    (record,) = ranks("one_device", programs.plain, inject=planted, **GIVEN)
    assert not np.isfinite(record.steps[0].snapshot[0][0]).any()
