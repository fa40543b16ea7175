"""The record describes traced graphs, executed collectives and reductions of the program."""

from __future__ import annotations

import pytest
import training_programs as programs

from pytest_ddl.training import collective_log

pytestmark = pytest.mark.slow

GIVEN = {"global_batch_size": 8, "steps": 3}


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_a_graph_is_counted_once_and_per_replica(ranks, strategy):
    record = ranks(strategy, programs.custom_loop, **GIVEN)[0]
    (graph,) = record.graphs
    assert graph.step == 1
    assert graph.nodes > 100
    packed = [item for item in graph.collectives if item.kind == "all_reduce" and item.dtype.startswith("float")]
    trainable = [item for item in record.variables if item.kind == "trainable"]
    elements = sum(int(record.initial[item.index][0].size) for item in trainable)
    # Keras packs all gradients into one; what the loop itself reduces adds scalars under several workers.
    assert packed[0].shape == (elements,)
    assert packed[0].op == "SUM"
    assert graph.reduced_bytes >= elements * 4
    assert [step.eager for step in record.steps] == [False, None, None]


def test_counts_are_deterministic(ranks):
    first, second = (ranks("mirrored", programs.custom_loop, **GIVEN)[0].graphs for _ in range(2))
    assert first == second


def test_one_device_reduces_nothing(ranks):
    (record,) = ranks("one_device", programs.custom_loop, **GIVEN)
    assert [graph.collectives for graph in record.graphs] == [()]
    assert record.collectives == ()


def test_division_of_a_sparse_gradient_is_no_test_for_nan(ranks):
    (record,) = ranks("one_device", programs.embedding_with_adagrad, **GIVEN)
    assert "IsNan" not in record.graphs[0].operations


def test_executed_collectives_are_the_same_in_memory_and_in_the_file(ranks, tmp_path):
    found = ranks("multi_worker_mirrored", programs.custom_loop, **GIVEN)
    assert len(found) == 2
    for record in found:
        assert collective_log.read(collective_log.path_of(str(tmp_path), 1, record.rank)) == record.collectives
        assert {item.step for item in record.collectives} >= {0, 1, 2}
        in_program = [item for item in record.collectives if "training_programs.py:" in item.where]
        assert in_program
    assert [item.where for item in found[0].collectives] == [item.where for item in found[1].collectives]


def test_a_log_that_was_cut_off_is_read_up_to_there(tmp_path):
    path = tmp_path / "log"
    path.write_text(
        '{"kind": "broadcast", "op": "", "shape": null, "dtype": "", "where": "a.py:1"}\n[0, 0]\n[0, 1]\n[0'
    )
    assert [item.step for item in collective_log.read(path)] == [0, 1]
    # On a host with a copy of the program, its paths are changed.
    assert {item.where for item in collective_log.read(path, lambda text: text.replace("a.py", "b.py"))} == {"b.py:1"}
    assert collective_log.read(tmp_path / "none") == ()
