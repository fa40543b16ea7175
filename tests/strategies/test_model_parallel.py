"""``model_parallel``: the mesh as text, the layout map, and training equal to one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl.strategies.base import Machine
from pytest_ddl.strategies.model_parallel import ModelParallel, parse_mesh
from pytest_ddl.strategies.model_parallel_layout import LayoutMap
from pytest_ddl.strategies.spec import StrategySpec

SCRIPT = Path(__file__).with_name("model_parallel_training.py")
ROOT = Path(__file__).parents[2]
ROUNDING = 1e-12
"""float64; the defects that this file guards against are at least 1e-3."""


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("batch:2;model:2", {"batch": 2, "model": 2}),
        ("batch:1", {"batch": 1}),
        (" model:4 ; batch:2 ", {"model": 4, "batch": 2}),
    ],
)
def test_mesh_is_parsed_in_order(text: str, axes: dict[str, int]) -> None:
    assert list(parse_mesh(text).items()) == list(axes.items())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not an axis"),
        ("batch", "not an axis"),
        ("batch=2", "write name:size"),
        ("batch:2,model:2", "not an axis"),
        ("batch:-1", "not an axis"),
        ("batch:0", "smallest is 1"),
        ("batch:2;batch:2", "twice"),
        ("unsharded:2", "another axis name"),
    ],
)
def test_wrong_mesh_is_refused_with_a_remedy(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_mesh(text)
    problem = ModelParallel().check(StrategySpec("model_parallel", {"mesh": text}))
    assert problem is not None
    assert part in problem


def test_topology_is_one_process_with_a_device_per_place() -> None:
    definition, spec = ModelParallel(), StrategySpec("model_parallel", {"mesh": "batch:2;model:3"})
    assert definition.topology(spec).devices_per_process == 6
    assert definition.num_replicas(spec) == 1
    assert definition.unavailable(spec, "cpu", Machine()) is None
    assert "6 physical GPUs" in (definition.unavailable(spec, "gpu", Machine(gpus=1)) or "")


def test_layout_map_takes_the_first_match_and_lays_slots_as_their_variable() -> None:
    layouts = LayoutMap({"batch": 2, "model": 2})
    layouts["dense/kernel"] = (None, "model")
    layouts["kernel"] = ("model", None)
    assert layouts.spec_for("sequential/dense/kernel", (8, 4)) == (None, "model")
    assert layouts.spec_for("adam/sequential_dense_kernel_velocity", (8, 4)) == (None, "model")
    assert layouts.spec_for("sequential/dense_1/kernel", (8, 4)) == ("model", None)
    assert layouts.spec_for("sequential/dense/bias", (4,)) == (None,)
    assert layouts.used == {"dense/kernel", "kernel"}


@pytest.mark.parametrize(
    ("spec", "part"),
    [((None, "row"), "no axis 'row'"), (("model", "model"), "one dimension"), ("model", "one entry")],
)
def test_layout_map_refuses_a_wrong_rule(spec: Any, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        LayoutMap({"batch": 2, "model": 2})["kernel"] = spec


@pytest.mark.parametrize(("shape", "part"), [((4, 3), "does not divide"), ((4,), "narrow the pattern")])
def test_layout_map_refuses_a_variable_that_does_not_fit(shape: tuple[int, ...], part: str) -> None:
    layouts = LayoutMap({"model": 2})
    layouts["kernel"] = (None, "model")
    with pytest.raises(ValueError, match=part):
        layouts.spec_for("dense/kernel", shape)


def training_report(mesh: str, *arguments: str) -> Any:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(SCRIPT), mesh, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")] or [None]
    assert line is not None, done.stderr[-4000:]
    return json.loads(line.removeprefix("REPORT "))


def assert_equal_to_one_device(report: Any) -> None:
    wrong = {name: case["error"] for name, case in report.items() if not case["error"] <= ROUNDING}
    assert not wrong
    assert {name: case["drift"] for name, case in report.items() if case["drift"] != 0.0} == {}


@pytest.mark.slow
def test_momentum_trains_a_replicated_bias_behind_a_sharded_kernel() -> None:
    report = training_report("batch:1;model:2", "sharded", "momentum")
    assert_equal_to_one_device(report)
    layouts = report["momentum"]["layouts"]
    assert layouts["sequential/dense/kernel"]["spec"] == ["unsharded", "model"]
    assert layouts["sequential/dense/kernel"]["shard_shape"] == [8, 4]
    assert layouts["sequential/dense/bias"]["shard_shape"] == [8]
    # A replicated slot would be gathered in every step, and need as much memory as without sharding.
    assert layouts["sgd/sequential_dense_kernel_momentum"]["shard_shape"] == [8, 4]
    assert layouts["sgd/sequential_dense_bias_momentum"]["shard_shape"] == [8]


# Long programs: one strategy or one model runs for each commit.
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "layout"), [("batch:2", "replicated"), ("batch:2;model:2", "sharded")])
def test_training_is_that_of_one_device(mesh: str, layout: str) -> None:
    assert_equal_to_one_device(training_report(mesh, layout))
