"""Test scatter operations, conversions, creation, reads, operators and moving averages of distributed variables."""

from __future__ import annotations

import copy
import itertools
import operator
from typing import Any

import numpy as np
import pytest

from pytest_ddl import current_strategy
from suites.models.variables import AGGREGATIONS, aggregate
from suites.properties.variables import has_one_copy, local_replicas

ONE_EACH = ["mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"]
"""One variant of each strategy."""
pytestmark = pytest.mark.ddl(strategies=ONE_EACH)
HOW = pytest.mark.parametrize("how", ["eager", "function"])


def called(how: str, function: Any) -> Any:
    """Return the result of a function that is called eagerly or as a ``tf.function``."""
    import tensorflow as tf

    return tf.function(function, autograph=False)() if how == "function" else function()


def variable(strategy: Any, initial: Any, dtype: str = "float32", **options: str) -> Any:
    """Create a variable in the strategy's scope, from names of its synchronization and aggregation."""
    import tensorflow as tf

    synchronization = tf.VariableSynchronization[options.get("synchronization", "AUTO")]
    aggregation = tf.VariableAggregation[options.get("aggregation", "NONE")]
    value = initial if callable(initial) else tf.constant(initial, dtype)
    with strategy.scope():
        return tf.Variable(
            value, dtype=dtype, trainable=False, synchronization=synchronization, aggregation=aggregation
        )


def components(strategy: Any, one: Any) -> list[Any]:
    """Return the values of a variable's components on this rank."""
    return [part.read_value().numpy() for part in strategy.experimental_local_results(one)]


def replica_id() -> Any:
    import tensorflow as tf

    return tf.distribute.get_replica_context().replica_id_in_sync_group


HEIGHT, ROWS = 5, np.array([3, 1])
TABLE = np.arange(1.0, 2 * HEIGHT + 1).reshape(HEIGHT, 2) * 64
SCATTERED = {
    "scatter_add": np.add,
    "scatter_sub": np.subtract,
    "scatter_mul": np.multiply,
    "scatter_div": np.divide,
    "scatter_min": np.minimum,
    "scatter_max": np.maximum,
    "scatter_update": lambda _, new: new,
}
COMBINING = ("scatter_add", "scatter_sub", "scatter_mul", "scatter_div")
"""Operations that can be applied to the sum or the mean of what the replicas give."""


def rows_of(replica: int) -> np.ndarray[Any, Any]:
    """Return new rows, whose sum and mean over 2 or 3 replicas divide without rounding errors."""
    return np.array([[0.5, 1.0], [2.0, 4.0]]) * (1 if replica == 0 else 2 ** (replica - 1)) * 3


def scatter(one: Any, name: str, rows: Any, indices: Any = ROWS) -> None:
    import tensorflow as tf

    getattr(one, name)(tf.IndexedSlices(tf.cast(rows, one.dtype), tf.constant(indices), tf.constant([HEIGHT, 2])))


def scattered(name: str, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    expected = TABLE.copy()
    expected[ROWS] = SCATTERED[name](expected[ROWS], rows)
    return expected


CASES = {
    "sums": (("scatter_add", "scatter_sub"), AGGREGATIONS),
    "own_products": (("scatter_mul", "scatter_div"), ("NONE", "ONLY_FIRST_REPLICA")),
    "reduced_products": (("scatter_mul", "scatter_div"), ("SUM", "MEAN")),
    "choices": (("scatter_min", "scatter_max", "scatter_update"), AGGREGATIONS),
}


@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]", "multi_worker_mirrored", "central_storage"])
@pytest.mark.ddl_item("variables.scatter.on_write")
@HOW
@pytest.mark.parametrize("case", CASES)
def test_scatter_by_replicas(case, how, ddl_cluster):
    ddl_cluster.run(check_scatter_by_replicas, *CASES[case], how)


def check_scatter_by_replicas(names: tuple[str, ...], aggregations: tuple[str, ...], how: str) -> None:
    """Compare rows with the operation on the dense form of what the replicas give, reduced as the aggregation says."""
    import tensorflow as tf

    strategy = current_strategy()
    by_replica = np.stack([rows_of(replica) for replica in range(strategy.num_replicas_in_sync)])
    for name, aggregation in itertools.product(names, aggregations):
        one = variable(strategy, TABLE, "float64", aggregation=aggregation)

        def step(name: str = name, one: Any = one) -> Any:
            return strategy.run(lambda: scatter(one, name, tf.gather(tf.constant(by_replica), replica_id())))

        if aggregation in ("SUM", "MEAN") and name not in COMBINING:
            with pytest.raises(NotImplementedError):
                called(how, step)
            continue
        called(how, step)
        parts = components(strategy, one)
        for replica, found in zip(local_replicas(strategy)[: len(parts)], parts, strict=True):
            rows = by_replica[replica] if aggregation == "NONE" else aggregate(by_replica, aggregation)
            # A mean is one division, and the operation another one: at most two rounding errors in each direction.
            np.testing.assert_allclose(found, scattered(name, rows), rtol=4 * np.finfo("float64").eps)


@pytest.mark.ddl_item("variables.scatter.on_write")
@HOW
@pytest.mark.parametrize("name", COMBINING)
@pytest.mark.ddl(strategies=["mirrored", "mirrored[replicas=3]"])
def test_scatter_in_cross_replica_context(name, how, ddl_strategy):
    one = variable(ddl_strategy, TABLE, "float64", aggregation="SUM")

    def step():
        with ddl_strategy.scope():
            scatter(one, name, rows_of(1))

    called(how, step)
    for found in components(ddl_strategy, one):
        np.testing.assert_array_equal(found, scattered(name, rows_of(1)))


@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
@pytest.mark.ddl_item("variables.scatter.on_read")
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_scatter_on_read_is_refused(aggregation, ddl_strategy):
    """The components, which differ, keep their values."""
    import tensorflow as tf

    one = variable(ddl_strategy, TABLE, "float64", synchronization="ON_READ", aggregation=aggregation)
    ddl_strategy.run(lambda: one.assign(TABLE * tf.cast(replica_id() + 1, "float64")))
    for name in SCATTERED:
        with pytest.raises(NotImplementedError):
            ddl_strategy.run(lambda name=name: scatter(one, name, rows_of(1)))
        with ddl_strategy.scope(), pytest.raises(NotImplementedError):
            scatter(one, name, rows_of(1))
    for replica, found in zip(local_replicas(ddl_strategy), components(ddl_strategy, one), strict=True):
        np.testing.assert_array_equal(found, TABLE * (replica + 1))


GIVEN = {
    "Python float": lambda tf: 2.5,
    "Python int": lambda tf: 3,
    "NumPy float64": lambda tf: np.float64(4.5),
    "bool": lambda tf: True,
    "tensor of int32": lambda tf: tf.constant(7),
    "tensor of float64": lambda tf: tf.constant(8.5, "float64"),
    "another shape": lambda tf: tf.constant([9.0]),
}


@pytest.mark.ddl_item("variables.dtype_conversion", shows="parity")
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("context", ["replica", "cross"])
def test_what_is_assigned_is_converted_as_by_a_variable_without_strategy(dtype, context, ddl_strategy):
    import tensorflow as tf

    def outcome(assign, one, given):
        try:
            assign(one, given)
        except (TypeError, ValueError) as error:
            return type(error)
        return one.numpy()

    def by_replicas(one, given):
        ddl_strategy.run(lambda: one.assign(given))

    def in_scope(one, given):
        with ddl_strategy.scope():
            one.assign(given)

    for name, give in GIVEN.items():
        given = give(tf)
        plain = tf.Variable(tf.constant(1, dtype))
        one = variable(ddl_strategy, 1, dtype, aggregation="ONLY_FIRST_REPLICA")
        found = outcome(by_replicas if context == "replica" else in_scope, one, given)
        assert found == outcome(type(plain).assign, plain, given), name
        assert one.dtype == plain.dtype


NUMBERS = {"float": lambda: float("0.5"), "integers": lambda: np.array(5)}


@pytest.mark.ddl_item("variables.dtype_conversion")
@pytest.mark.ddl(strategies=["mirrored", "central_storage"])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("aggregation", ["MEAN", "ONLY_FIRST_REPLICA"])
def test_equal_numbers_that_each_replica_makes(aggregation, number, ddl_cluster):
    ddl_cluster.run(check_equal_numbers, aggregation, number)


def check_equal_numbers(aggregation: str, number: str) -> None:
    """Assign a number that is no tensor, and not the same object on all replicas; ``tf.Variable`` takes it."""
    strategy = current_strategy()
    one = variable(strategy, 1, aggregation=aggregation)
    strategy.run(lambda: one.assign(NUMBERS[number]()))
    assert {float(found) for found in components(strategy, one)} == {float(NUMBERS[number]())}


@pytest.mark.ddl_item("variables.creation.function", "strategy.mwms.variable_init")
@HOW
@pytest.mark.parametrize("lazy", [True, False])
def test_replicas_start_with_equal_values(lazy, how, ddl_strategy):
    """Give each rank and each call another initial value. All components must have the first rank's first value."""
    import tensorflow as tf

    rank = local_replicas(ddl_strategy)[0]
    calls = []

    def initial():
        calls.append(None)
        return tf.fill((2,), 10.0 * rank + len(calls))

    made = []

    def make():
        if not made:
            made.append(variable(ddl_strategy, initial if lazy else initial()))

    called(how, make) if lazy or how == "eager" else make()
    assert len(calls) == 1
    expected = 1.0 if how == "eager" or not lazy else components(ddl_strategy, made[0])[0]
    assert float(np.ravel(expected)[0]) < 10, "the value of another rank than the first"
    for found in components(ddl_strategy, made[0]):
        np.testing.assert_array_equal(found, np.broadcast_to(expected, (2,)))


@pytest.mark.ddl_item("variables.creation.function")
def test_a_replica_function_creates_one_variable(ddl_strategy):
    """Create a variable at the first call of a replica function, and add to it on each replica in each call."""
    import tensorflow as tf

    made = []

    @tf.function
    def step():
        def replica_function():
            if not made:
                options = {"trainable": False, "aggregation": tf.VariableAggregation.SUM}
                made.append(tf.Variable(lambda: tf.constant(100.0), **options))
            made[0].assign_add(tf.cast(replica_id() + 1, "float32"))
            return made[0].read_value()

        return ddl_strategy.run(replica_function)

    total = sum(range(1, ddl_strategy.num_replicas_in_sync + 1))
    for number in (1, 2):
        for found in ddl_strategy.experimental_local_results(step()):
            assert float(found) == 100 + number * total
    assert len({id(one) for one in made}) == 1, "the replicas have variables of their own"


@pytest.mark.ddl_item("variables.creation.errors", shows="behavior")
@pytest.mark.ddl(strategies=["mirrored"])
def test_wrong_arguments_of_a_variable_are_refused(ddl_strategy):
    import tensorflow as tf

    sync = tf.VariableSynchronization
    with ddl_strategy.scope():
        for arguments in (
            {"synchronization": sync.NONE},
            {"synchronization": "on read"},
            {"aggregation": "sum"},
        ):
            with pytest.raises(ValueError, match=r"(synchronization|aggregation) mode"):
                tf.Variable(1.0, **arguments)

    def by_replica():
        context = tf.distribute.get_replica_context()
        return tf.Variable(1.0, name=f"own{context.replica_id_in_sync_group}")

    with pytest.raises(RuntimeError):
        ddl_strategy.run(by_replica)


@pytest.mark.ddl_item("variables.read.contexts")
@pytest.mark.parametrize("aggregation", ["SUM", "MEAN"])
@HOW
def test_every_way_to_read_gives_the_same(aggregation, how, ddl_strategy):
    import tensorflow as tf

    strategy = ddl_strategy
    one = variable(strategy, 0, synchronization="ON_READ", aggregation=aggregation)
    strategy.run(lambda: one.assign(tf.cast(replica_id() * replica_id() * 6 + 12, "float32")))
    values = np.array([12.0 + 6 * replica**2 for replica in range(strategy.num_replicas_in_sync)])
    whole = aggregate(values, aggregation)
    ways = {
        "read_value": lambda: one.read_value(),
        "value": lambda: one.value(),
        "identity": lambda: tf.identity(one),
        "convert": lambda: tf.convert_to_tensor(one),
        "operator": lambda: one + 0.0,
    }

    def in_scope():
        with strategy.scope():
            return {name: way() for name, way in ways.items()}

    def out_of_scope():
        return {name: way() for name, way in ways.items()}

    def on_replicas():
        return strategy.run(out_of_scope)

    for name, found in {**called(how, in_scope), "numpy": one.numpy()}.items():
        assert float(found) == whole, f"{name} in scope"
    for name, found in called(how, out_of_scope).items():
        assert float(found) == whole, f"{name} out of scope"
    expected = [whole] * len(values) if has_one_copy(strategy) else values
    for name, found in called(how, on_replicas).items():
        results = [float(part) for part in strategy.experimental_local_results(found)]
        assert results == [expected[replica] for replica in local_replicas(strategy)], f"{name} by replicas"


@pytest.mark.ddl_item("variables.out_of_scope")
@pytest.mark.ddl(strategies=["mirrored", "central_storage"])
def test_a_variable_out_of_its_scope_and_in_that_of_another(ddl_strategy):
    import tensorflow as tf

    one = variable(ddl_strategy, 1, aggregation="SUM")
    one.assign(5.0)
    one.assign_add(2.0)
    assert set(components(ddl_strategy, one)) == {7.0}
    ddl_strategy.run(lambda: one.assign_add(tf.cast(3 ** replica_id(), "float32")))
    whole = 7.0 + sum(3**replica for replica in range(ddl_strategy.num_replicas_in_sync))
    assert set(components(ddl_strategy, one)) == {whole}
    other = tf.distribute.MirroredStrategy(["CPU:0"])
    with other.scope():
        with pytest.raises((RuntimeError, ValueError)):
            one.assign(6.0)
        with pytest.raises((RuntimeError, ValueError)):
            other.run(lambda: one.assign_add(1.0))
        foreign = tf.Variable(1.0)
    with ddl_strategy.scope(), pytest.raises(ValueError, match="colocate_vars_with"):
        ddl_strategy.extended.colocate_vars_with(foreign).__enter__()
    assert one.numpy() == whole


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge")


@pytest.mark.ddl_item("variables.operators")
def test_operators_use_the_own_component(ddl_strategy):
    """Apply each operator on both sides, in cross-replica context and on replicas with different components."""
    import tensorflow as tf

    strategy, own = ddl_strategy, not has_one_copy(ddl_strategy)
    one = variable(strategy, [3.0, 5.0], aggregation="NONE" if own else "ONLY_FIRST_REPLICA")
    strategy.run(lambda: one.assign_add(tf.cast([replica_id(), 2 * replica_id()], "float32")))
    expected = np.array([3.0, 5.0])
    other = np.array([2.0, 7.0])

    def results():
        found = {name: getattr(operator, name)(one, tf.constant(other, "float32")) for name in BINARY}
        found |= {f"r{name}": getattr(operator, name)(tf.constant(other, "float32"), one) for name in BINARY}
        return {**found, "neg": -one, "abs": abs(one), "slice": one[1:], "matmul": one[None] @ one[:, None]}

    def model(mine):
        found = {name: getattr(operator, name)(mine, other) for name in BINARY}
        found |= {f"r{name}": getattr(operator, name)(other, mine) for name in BINARY}
        return {**found, "neg": -mine, "abs": abs(mine), "slice": mine[1:], "matmul": mine[None] @ mine[:, None]}

    by_replica = strategy.run(results)
    for position, replica in enumerate(local_replicas(strategy)):
        step = replica if own else 0
        for name, wanted in model(expected + step * np.array([1, 2])).items():
            found = strategy.experimental_local_results(by_replica[name])[position]
            np.testing.assert_allclose(found.numpy(), wanted, rtol=3 * np.finfo("float32").eps, err_msg=name)
    first = local_replicas(strategy)[0] if own else 0
    for name, wanted in model(expected + first * np.array([1, 2])).items():
        np.testing.assert_allclose(results()[name], wanted, rtol=3 * np.finfo("float32").eps, err_msg=name)


@pytest.mark.ddl_item("variables.operators", shows="behavior")
@pytest.mark.ddl(strategies=["mirrored", "multi_worker_mirrored"])
def test_a_variable_is_compared_hashed_and_copied_like_one_without_strategy(ddl_strategy):
    import tensorflow as tf

    strategy = ddl_strategy
    one = variable(strategy, [3.0, 5.0])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    assert one.ref() == one.ref()
    assert (one == tf.constant([3.0, 4.0])).numpy().tolist() == [True, False]
    assert [float(part) for part in one] == [3.0, 5.0]
    with strategy.scope():
        copied = copy.deepcopy(one)
    one.assign([1.0, 2.0])
    assert all(part.tolist() == [3.0, 5.0] for part in components(strategy, copied))
    copied.assign_add([1.0, 1.0])
    assert all(part.tolist() == [1.0, 2.0] for part in components(strategy, one))
    assert type(copied) is type(one)


@pytest.mark.ddl_item("variables.ema")
@HOW
def test_moving_average_of_what_replicas_give(how, ddl_strategy):
    """Apply it to a variable that is the mean of what replicas assign."""
    import tensorflow as tf

    strategy, decay = ddl_strategy, 0.75
    with strategy.scope():
        average = tf.train.ExponentialMovingAverage(decay)
        one = tf.Variable(tf.zeros((2,), "float64"), aggregation=tf.VariableAggregation.MEAN)
        average.apply([one])

    def step(number):
        def replica_function():
            one.assign(tf.cast([replica_id() + number, 2 * replica_id() - number], "float64"))
            average.apply([one])

        strategy.run(replica_function)

    expected = np.zeros(2)
    for number in (1, 2, 3):
        called(how, lambda number=number: step(number))
        values = [[replica + number, 2 * replica - number] for replica in range(strategy.num_replicas_in_sync)]
        expected = decay * expected + (1 - decay) * np.mean(values, axis=0)
    for found in components(strategy, average.average(one)):
        # Three steps with three operations each, and a mean over three replicas.
        np.testing.assert_allclose(found, expected, rtol=0, atol=20 * np.finfo("float64").eps * 4)
