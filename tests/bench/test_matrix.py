"""Several launches together: arguments that are refused, variants that cannot run, and the way to JSON and back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from pytest_ddl.bench import BenchSpec, measure
from pytest_ddl.bench.launching.ranks import BenchError
from pytest_ddl.bench.matrix import Matrix
from pytest_ddl.strategies.registry import UnknownStrategyError
from tests.bench import made


def train(run):
    """Never called."""


def test_launches_are_found_by_their_variant_in_their_order():
    launches = [made.launch("mirrored[replicas=2]", 0.1), made.launch("one_device", 0.2)]
    launches.append(made.launch("mirrored[replicas=2]", 0.3))
    both = Matrix(tuple(launches), {"tpu": "no TPU"}, "weak")
    assert both.variants == ["mirrored[replicas=2]", "one_device"]
    assert both.of("mirrored[replicas=2]") == [launches[0], launches[2]]


def test_a_variant_that_was_not_measured_says_why_or_what_there_is():
    one = Matrix((made.launch("one_device", 0.2),), {"tpu": "no TPU here"})
    with pytest.raises(KeyError, match="tpu was not measured: no TPU here"):
        one.of("tpu")
    with pytest.raises(KeyError, match="no mirrored; measured: one_device"):
        one.of("mirrored")


def test_a_matrix_comes_back_from_its_file(tmp_path):
    one = Matrix((made.launch("one_device", 0.2, batch=8),), {"tpu": "no TPU here"}, "strong")
    one.save(tmp_path / "matrix.json")
    assert Matrix.from_json(json.loads((tmp_path / "matrix.json").read_text())) == one


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": 3}, r"train=3 must be a function that takes the run"),
        ({"launches": 0}, "launches=0 must be at least 1"),
        ({"spec": BenchSpec(), "blocks": 3}, "give spec=, or blocks=, not both"),
        ({"blocks": 0}, "blocks=0 must be a whole number"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_anything_starts(given, words):
    with pytest.raises(ValueError, match=words):
        measure(**{"train": train, **given})


def test_an_unknown_variant_is_refused():
    with pytest.raises(UnknownStrategyError):
        measure(train, ["mirored"])


def test_an_unknown_setting_is_refused():
    with pytest.raises(TypeError, match="bloks"):
        measure(train, bloks=3)


@pytest.fixture
def harness(monkeypatch):
    """A machine on which the variants in ``missing`` cannot run; launches are made up."""
    from pytest_ddl import harness as module

    real = module.process_harness()
    missing: dict[str, str] = {}
    fake = SimpleNamespace(
        registry=real.registry,
        unavailable=lambda spec, _mark: missing.get(spec.name),
        over_hosts=False,
        missing=missing,
        launched=[],
        failing=(),
    )

    def launch(_harness, _train, spec, _bench, *, cores_per_replica=0, **_given):
        fake.launched.append((str(spec), cores_per_replica))
        if spec.name in fake.failing:
            raise BenchError("it went wrong")
        return made.launch(str(spec), 0.1)

    monkeypatch.setattr(module, "process_harness", lambda: fake)
    monkeypatch.setattr("pytest_ddl.bench.launching.launch.launch", launch)
    return fake


def test_variants_take_turns_launch_by_launch(harness):
    found = measure(train, ["one_device", "mirrored"], launches=2)
    names = [name for name, _cores in harness.launched]
    assert names == [found.variants[0], found.variants[1]] * 2


def test_a_variant_that_cannot_run_here_is_skipped_with_its_reason(harness):
    harness.missing["tpu"] = "no TPU here"
    found = measure(train, ["one_device", "tpu"], batch_per_replica=8)
    assert found.skipped == {"tpu": "no TPU here"}
    assert [name for name, _cores in harness.launched] == ["one_device"]
    assert found.scaling == "weak"


def test_it_is_an_error_if_no_variant_can_run(harness):
    harness.missing["tpu"] = "no TPU here"
    with pytest.raises(BenchError, match="none of the variants can run here: tpu: no TPU here"):
        measure(train, ["tpu"])


def test_pinned_variants_all_get_the_cores_that_the_largest_leaves(harness, monkeypatch):
    import os

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    measure(train, ["one_device", "mirrored[replicas=4]"], pin=True)
    assert [cores for _name, cores in harness.launched] == [2, 2]


def test_a_launch_that_fails_ends_it_all_or_its_own_variant(harness):
    harness.failing = ("mirrored",)
    with pytest.raises(BenchError, match="it went wrong"):
        measure(train, ["one_device", "mirrored"])
    found = measure(train, ["one_device", "mirrored"], launches=2, go_on=True)
    assert found.variants == ["one_device"]
    assert list(found.failed.values()) == ["it went wrong"]
    assert Matrix.from_json(json.loads(json.dumps(found.as_json()))) == found
