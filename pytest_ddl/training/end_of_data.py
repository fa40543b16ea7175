"""Take back what Keras counts in the call that finds the end of the data."""

from __future__ import annotations

from typing import Any

from pytest_ddl.training import values
from pytest_ddl.training.keras_objects import metric_variables, variables_of


def is_unseen(*data: Any) -> bool:
    """Return whether Keras learns the length of any of its data only from the error at their end."""
    import tensorflow as tf

    datasets = (item for item in data if isinstance(item, tf.data.Dataset))
    return any(int(item.cardinality()) == tf.data.UNKNOWN_CARDINALITY for item in datasets)


def counting_back(model: Any, strategy: Any, callback: type) -> Any:
    """Return a callback of ``fit`` and ``evaluate`` that restores counters after the call in which the data ended.

    This call fails. TensorFlow does not order its operations that need no data before or after the failure: the count
    of updates, the states of seeds, and the counts of metrics if a batch has a static size. They run or not by chance,
    on one device too. Without this, two runs of one program differ in the metrics of the first epoch, and in updates
    from the second epoch on.

    :param callback: class of callbacks of the model's Keras.
    """

    def replaced(name: str) -> Any:
        def replace(_self: Any, *_given: Any, **_logs: Any) -> None:
            setattr(model, name, _CountingBack(getattr(model, name), model, strategy))

        return replace

    def put_back(name: str) -> Any:
        def put(_self: Any, *_given: Any, **_logs: Any) -> None:
            setattr(model, name, getattr(model, name).function)

        return put

    # Keras makes the functions before it calls these, and keeps them for later calls of fit and evaluate.
    methods = {
        "on_train_begin": replaced("train_function"),
        "on_train_end": put_back("train_function"),
        "on_test_begin": replaced("test_function"),
        "on_test_end": put_back("test_function"),
    }
    return type("CountingBackCallback", (callback,), methods)()


class _CountingBack:
    """Function of Keras that trains or evaluates with the next batch of an iterator."""

    def __init__(self, function: Any, model: Any, strategy: Any) -> None:
        self.function = function
        self._model = model
        self._strategy = strategy

    def __call__(self, iterator: Any) -> Any:
        import tensorflow as tf

        before = [(variable, values.read(self._strategy, variable)) for variable in _counters(self._model)]
        try:
            return self.function(iterator)
        except tf.errors.OutOfRangeError:
            for variable, counted in before:
                for part, value in zip(values.components(self._strategy, variable), counted, strict=True):
                    # The raw operation, so that no observer takes it for an assignment of the program.
                    tf.raw_ops.AssignVariableOp(resource=part.handle, value=tf.constant(value, part.dtype))
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def _counters(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    known = [*model.variables, *(variables_of(optimizer) if optimizer is not None else ())]
    integers = (variable for variable in map(values.backing, known) if variable.dtype.is_integer)
    metrics = map(values.backing, metric_variables(model))
    distinct = {id(variable): variable for variable in (*integers, *metrics)}.values()
    return [variable for variable in distinct if not values.is_sharded_by_layout(variable)]
