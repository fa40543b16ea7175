"""Draws of generators, shrinking to the simplest value, and refusal of wrong arguments."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from pytest_ddl import check_training, generators
from pytest_ddl.generators import ModelSpec, OptimizerSpec, TrainingSpec
from pytest_ddl.strategies.registry import StrategyRegistry

PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
QUIET = settings(derandomize=True, max_examples=300, database=None, **PATIENT)
ANYTHING = st.one_of(generators.models(), generators.optimizers())


def simplest(generator, condition=lambda _: True):
    return find(generator, condition, settings=QUIET)


@given(ANYTHING)
@settings(derandomize=True, database=None, **PATIENT)
def test_a_spec_survives_pickling_and_its_repr_can_be_pasted(spec):
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert eval(repr(spec), {"ModelSpec": ModelSpec, "OptimizerSpec": OptimizerSpec}) == spec
    assert isinstance(hash(spec), int)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (lambda spec: True, ModelSpec(inputs=1)),
        (lambda spec: spec.widths, ModelSpec(inputs=1, widths=(1,), activations=("linear",))),
        (lambda spec: spec.frozen, ModelSpec(inputs=1, widths=(1,), activations=("linear",), frozen=(0,))),
        (lambda spec: spec.tied, ModelSpec(inputs=1, widths=(1,), activations=("linear",), tied=True)),
        (lambda spec: spec.vocabulary, ModelSpec(inputs=1, vocabulary=2, embedding_width=1)),
    ],
)
def test_models_shrink_to_the_simplest_with_the_feature(condition, expected):
    assert simplest(generators.models(), condition) == expected


def test_the_first_optimizer_dtype_and_cluster_are_the_simplest():
    assert simplest(generators.optimizers()) == OptimizerSpec("SGD")
    assert simplest(generators.optimizers(["adam", "momentum"])).settings == {"momentum": 0.9}
    assert simplest(generators.dtypes()) == "float32"
    assert simplest(generators.cluster_shapes()) == "one_device"
    assert simplest(generators.cluster_shapes(["model_parallel"])) == "model_parallel[mesh=batch:1;model:1]"


@pytest.mark.parametrize(
    ("replicas", "kinds", "sizes"),
    [
        (2, ["even"], {2, 4, 6, 8}),
        (2, ["uneven"], {3, 5, 7}),
        (4, ["smaller"], {1, 2, 3}),
        (1, generators.BATCH_KINDS, {1, 2, 3, 4}),
    ],
)
def test_global_batch_sizes_are_of_the_kinds_asked_for(replicas, kinds, sizes):
    drawn = set()

    @given(generators.global_batch_sizes(replicas, kinds))
    @QUIET
    def draw(size):
        drawn.add(size)

    draw()
    assert drawn == sizes
    assert simplest(generators.global_batch_sizes(replicas, kinds)) == min(sizes)


@given(generators.cluster_shapes(max_replicas=4, max_workers=3))
@settings(derandomize=True, database=None, **PATIENT)
def test_cluster_shapes_are_variants_that_exist(text):
    spec = StrategyRegistry().parse_variant(text)
    assert all(int(size) <= 4 for size in spec.shape.values() if isinstance(size, int))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: generators.models(max_layers=-1), r"max_layers=-1 must be a whole number, at least 0"),
        (lambda: generators.models(["embeding"]), r"inputs has no 'embeding' \(did you mean 'embedding'\?\)"),
        (lambda: generators.models(activations="relu"), r"activations='relu' must be a collection of names"),
        (lambda: generators.optimizers([]), r"kinds is empty, so nothing could be drawn; valid: sgd, momentum"),
        (lambda: generators.optimizers(["Adam"]), r"kinds has no 'Adam' \(did you mean 'adam'\?\)"),
        (lambda: generators.dtypes(["float8"]), r"names has no 'float8'"),
        (lambda: generators.global_batch_sizes(0), r"num_replicas=0 must be a whole number, at least 1"),
        (lambda: generators.global_batch_sizes(True), r"num_replicas=True must be a whole number"),
        (lambda: generators.global_batch_sizes(1, ["smaller"]), r"no batch of 1 replica\(s\) .* add 'even'"),
        (lambda: generators.cluster_shapes(["miror"]), r"strategies has no 'miror' \(did you mean 'mirrored'\?\)"),
        (lambda: generators.cluster_shapes(max_workers=0), r"max_workers=0 must be"),
        (lambda: ModelSpec(widths=(2,)), r"widths=\(2,\) and activations=\(\) must be equally long"),
        (lambda: ModelSpec(frozen=(0,)), r"there is no hidden layer 0 of 0"),
        (lambda: ModelSpec(widths=(2,), activations=("relu",), tied=True), r"as wide as its input: .* over 4 features"),
        (lambda: OptimizerSpec(learning_rate=0), r"learning_rate=0 must be a positive number"),
        (lambda: ModelSpec().examples(-1), r"number=-1 must be"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_valid(call, told):
    with pytest.raises(ValueError, match=told):
        call()


def test_the_public_names_exist():
    assert all(hasattr(generators, name) for name in generators.__all__)


def built_by(program, name):
    names = {}
    exec(program, names)
    return names[name]


def without_names(config):
    """The configuration without the numbers that Keras counts up over a process."""
    return re.sub(r"(dense|embedding|flatten|input_layer|functional)_?\d*", r"\1", str(config))


@given(generators.models())
@settings(derandomize=True, database=None, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
def test_a_model_is_what_its_program_says(spec):
    model = spec.build()
    assert without_names(model.get_config()) == without_names(built_by(spec.program(), "model").get_config())
    inputs, targets = spec.examples(3)
    assert model(inputs).shape == targets.shape
    trained = len(spec.widths) - len(spec.frozen) + 1
    assert len(model.trainable_variables) == 2 * trained + (spec.vocabulary is not None)


@pytest.mark.parametrize("kind", generators.OPTIMIZERS)
def test_an_optimizer_is_what_its_program_says(kind):
    spec = generators.OPTIMIZERS[kind]
    built, written = spec.build(), built_by(spec.program(), "optimizer")
    assert type(built) is type(written)
    assert {**built.get_config(), "name": ""} == {**written.get_config(), "name": ""}


def test_an_optimizer_that_keras_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"name='Sgdd' is not a class of keras\.optimizers"):
        OptimizerSpec("Sgdd").build()


def test_trainings_shrink_to_the_simplest():
    found = simplest(generators.trainings(batches=["even"]))
    assert found == TrainingSpec(ModelSpec(inputs=1), OptimizerSpec("SGD"), batch=2, steps=1)
    assert eval(repr(found), {"ModelSpec": ModelSpec, "TrainingSpec": TrainingSpec}) == found


@given(generators.trainings())
@settings(derandomize=True, database=None, deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
def test_examples_are_what_their_program_says(spec):
    names = {}
    exec(compile(spec.program(), "program", "exec"), names)
    for written, expected in zip(names["examples"](), spec.model.examples(spec.batch), strict=True):
        np.testing.assert_array_equal(written, expected)
        assert written.dtype == expected.dtype


CLIPPED = TrainingSpec(
    ModelSpec(inputs=3, vocabulary=4, widths=(6, 6), activations=("tanh", "relu"), frozen=(0,), tied=True),
    OptimizerSpec("SGD", settings={"momentum": 0.9, "clipnorm": 0.01}),
    batch=4,
)
"""Fails under several replicas: Keras clips on each of them."""


@pytest.mark.slow
@pytest.mark.usefixtures("warm_sessions")
def test_a_printed_program_reproduces_what_was_found(tmp_path):
    report = check_training(CLIPPED, "mirrored", global_batch_size=CLIPPED.batch)
    assert report.verdict == "fail"
    file = tmp_path / "found.py"
    file.write_text(CLIPPED.program("mirrored"))
    printed = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=600, check=True).stdout
    assert numbers_of(printed) == numbers_of(str(report))
    assert len(numbers_of(printed)) > 3


def numbers_of(text):
    """The lines that show what was found, with every digit."""
    found = ("gradient-", "ACTUAL:", "DESIRED:", "difference:", "ratio:", "cause:")
    return [line for line in text.splitlines() if line.strip().startswith(found)]
