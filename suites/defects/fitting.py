"""Defects of fit and of callbacks, in Keras 3 or in tf_keras, whichever a test uses."""

from __future__ import annotations

from typing import Any

from suites.defects.registry import defect, replace, skip, twice


def _doubled(logs: Any) -> Any:
    return {name: value * 2 for name, value in logs.items()} if logs else logs


@defect(
    r"test_callbacks\.py::test_(logs|callback_has)|test_callback_files\.py::test_events"
    r"|test_fit_options\.py::test_(epochs_of|the_last)"
)
def logs_are_doubled() -> None:
    """Callbacks get twice the value of each log, at the end of batches, epochs and tests."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            *others, logs = [*args, *kwargs.values()]
            return original(self, *others, _doubled(logs))

        return call

    for name in ("on_epoch_end", "on_train_batch_end", "on_test_end"):
        replace(keras.callbacks.CallbackList, name, make)


@defect(r"test_callbacks\.py::test_hooks")
def tests_do_not_begin() -> None:
    """Callbacks do not learn that a test begins."""
    from tensorflow import keras

    skip(keras.callbacks.CallbackList, "on_test_begin")


@defect(r"test_callbacks\.py::test_training_ends_at")
def training_goes_on_with_infinite_losses() -> None:
    """TerminateOnNaN does nothing."""
    from tensorflow import keras

    skip(keras.callbacks.TerminateOnNaN, "on_batch_end")


@defect(r"test_callback_parameters\.py::test_a_callback_of")
def callbacks_remember_the_training_before() -> None:
    """EarlyStopping and ReduceLROnPlateau do not begin anew."""
    from tensorflow import keras

    for kind in (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau):
        replace(
            kind, "on_train_begin", lambda original: lambda self, logs=None: vars(self).get("best") or original(self)
        )


@defect(r"test_callback_files\.py::test_checkpoints_hold")
def checkpoints_of_another_epoch() -> None:
    """ModelCheckpoint counts one epoch more."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        return lambda self, epoch, *args, **kwargs: original(self, epoch + 1, *args, **kwargs)

    replace(keras.callbacks.ModelCheckpoint, "_save_model", make)


@defect(r"test_callback_files\.py::test_training_goes_on")
def training_begins_anew() -> None:
    """BackupAndRestore does not restore."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        def begin(self: Any, logs: Any = None) -> None:
            import shutil

            shutil.rmtree(self.backup_dir, ignore_errors=True)
            original(self, logs)

        return begin

    replace(keras.callbacks.BackupAndRestore, "on_train_begin", make)


@defect(r"test_callback_files\.py::test_(averages|a_model_has)")
def averages_are_not_swapped() -> None:
    """SwapEMAWeights does not swap weights and averages."""
    from tensorflow import keras

    skip(keras.callbacks.SwapEMAWeights, "_swap_variables")


@defect(r"test_fit_options\.py::test_examples_are_shuffled")
def fit_does_not_shuffle() -> None:
    """Model.fit takes the examples in their order."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: original(self, *args, **{**kwargs, "shuffle": False})

    replace(keras.Model, "fit", make)


@defect(r"test_fit_options\.py::test_a_model_says_how.*(in_tf_keras|sum)")
def logs_of_the_first_replica() -> None:
    """A step returns the logs of the first replica."""
    import tf_keras.src.engine.training as training

    def make(original: Any) -> Any:
        return lambda values, strategy, reduction: original(values, strategy, "first")

    replace(training, "reduce_per_replica", make)


@defect(r"test_fit_options\.py::test_progress")
def progress_is_one_step_ahead() -> None:
    """The progress of fit has one step more."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        return lambda self, current, *args, **kwargs: original(self, current + 1, *args, **kwargs)

    replace(keras.utils.Progbar, "update", make)


@defect(r"test_steps_of_fit\.py::test_predictions|test_models_of_users\.py::test_fewer")
def predictions_in_reverse() -> None:
    """Model.predict returns the rows in reverse order."""
    import tensorflow as tf
    from tensorflow import keras

    def make(original: Any) -> Any:
        def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
            return tf.nest.map_structure(lambda rows: rows[::-1], original(self, *args, **kwargs))

        return predict

    replace(keras.Model, "predict", make)


@defect(r"test_steps_of_fit\.py::test_evaluation.*in_tf_keras")
def evaluations_are_doubled() -> None:
    """Model.evaluate returns twice the loss and the metrics."""
    from tensorflow import keras

    def make(original: Any) -> Any:
        return lambda self, *args, **kwargs: _doubled(original(self, *args, **kwargs))

    replace(keras.Model, "evaluate", make)


@defect(r"test_preprocessing\.py::test_arrays_of")
def fit_changes_its_inputs() -> None:
    """Model.fit adds 1 to the arrays that it gets."""
    from suites.subject import keras

    def make(original: Any) -> Any:
        def fit(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
            found = original(self, x, *args, **kwargs)
            if hasattr(x, "__iadd__"):
                x += 1
            return found

        return fit

    replace(keras.Model, "fit", make)


@defect(r"test_callback_parameters\.py::test_epochs_without")
def epochs_without_a_number_count() -> None:
    """EarlyStopping takes a number that is not there for a large one."""
    from suites.subject import keras

    replace(
        keras.callbacks.EarlyStopping,
        "get_monitor_value",
        lambda original: lambda self, logs: original(self, {self.monitor: 1e9, **(logs or {})}),
    )


@defect(r"test_callback_parameters\.py::test_training_stops")
def callbacks_wait_longer() -> None:
    """EarlyStopping waits for one more epoch than it is told."""
    from suites.subject import keras

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **given: Any) -> None:
            original(self, *args, **given)
            self.patience += 1

        return init

    replace(keras.callbacks.EarlyStopping, "__init__", make)


@defect(r"test_callback_parameters\.py::test_a_table")
def rows_are_written_twice() -> None:
    """CSVLogger writes each row two times."""
    from suites.subject import keras

    twice(keras.callbacks.CSVLogger, "on_epoch_end")
