"""Find the steps of a script's own training loop.

A step is an eager call of a ``tf.function``, or of ``strategy.run``, after which an optimizer has counted an update. It
is recorded when the next such call begins, so that a ``strategy.reduce`` after it gives its loss.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from pytest_ddl.training import environment, values
from pytest_ddl.training.replacing import Replacements, named_like
from pytest_ddl.trying.found import EnoughSteps, Found, NotSeenError, place
from pytest_ddl.trying.objects import Objects
from pytest_ddl.trying.remainder import ActiveLine, active_lines, unrun_training
from pytest_ddl.trying.rewriting import distributed_loop

_CALL_OF_RUN = 0
"""Key of an eager ``strategy.run`` among the functions; the others are ids of objects."""


_VALUES = (
    "a training step after values from a function is not comparable, because one device has one replica. Give the "
    "batches with strategy.experimental_distribute_dataset(dataset)"
)


class Steps:
    """Recorder of the steps of custom loops."""

    def __init__(self, run: Any, objects: Objects, found: Found, limit: int, code: str) -> None:
        """Prepare the recorder.

        :param limit: maximum number of steps of each function.
        :param code: code of a script without a strategy, whose own loops cannot be compared; empty for any other.
        """
        self._run, self._objects, self._found, self._limit = run, objects, found, limit
        self._without_strategy = code
        self._thread = threading.get_ident()
        self._function: int | None = None
        """Key of the outermost call that is running."""
        self._trains: set[int] = set()
        self._reduces: set[int] = set()
        self._before: tuple[int, ...] = ()
        self._pending = False
        self._loss: Any = None
        self._taken: Counter[int] = Counter()
        """Steps of each function."""
        self._ran: set[ActiveLine] = set()
        """Lines of the script that were active in a step."""
        self._begun = False
        self._calls_run = False
        self._values_at = ""
        """Place of the script that made values from a function; empty if there is none."""
        self.paused = 0
        """More than 0 while Keras or TensorFlow runs code of its own that this object must not see."""

    def install(self, put: Replacements) -> None:
        """Observe functions, ``strategy.run``, ``strategy.reduce`` and gradient tapes."""
        import tensorflow as tf

        unconverted = tf.autograph.experimental.do_not_convert
        strategy = self._run.strategy
        run, reduce = strategy.run, strategy.reduce
        enter, leave = unconverted(self._enter), unconverted(self._leave)

        def observed_run(fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            entered = enter(_CALL_OF_RUN)
            try:
                result = run(fn, args=args, kwargs=kwargs, options=options)
            finally:
                leave(entered, None)
            return result

        def observed_reduce(*args: Any, **kwargs: Any) -> Any:
            self.paused += 1
            try:
                value = args[1] if len(args) > 1 else kwargs.get("value")
                # Only the default strategy of TensorFlow takes a plain number.
                plain = self._found.wants_default and type(value) in (int, float)
                result = tf.convert_to_tensor(value) if plain else reduce(*args, **kwargs)
            finally:
                self.paused -= 1
            # A metric's result() reads its variables by the same method.
            if not isinstance(value, tf.Variable):
                self._reduced(result)
            return result

        values_from_function = strategy.experimental_distribute_values_from_function

        def observed_values(value_fn: Any) -> Any:
            self._values_at = self._values_at or place()
            return values_from_function(value_fn)

        put.put(strategy, "experimental_distribute_values_from_function", observed_values)
        put.put(strategy, "run", named_like(run, observed_run))
        put.put(strategy, "reduce", unconverted(observed_reduce))
        kind: Any = type(tf.function(lambda: None))
        put.put(kind, "__call__", unconverted(self._observed_call(kind.__call__)))
        gradient = tf.GradientTape.gradient

        def observed_gradient(tape: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.paused and self._function is not None:
                self._trains.add(self._function)
            return gradient(tape, *args, **kwargs)

        put.put(tf.GradientTape, "gradient", unconverted(observed_gradient))

    def _observed_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed_call(function: Any, *args: Any, **kwargs: Any) -> Any:
            entered = self._enter(id(function))
            result, failed = None, False
            try:
                result = call(function, *args, **kwargs)
            except Exception as error:
                failed = True
                if entered and self.has_steps and is_end_of_data(error):
                    self.tell_end(active_lines())
                    raise EnoughSteps from error
                raise
            finally:
                self._leave(entered, result, failed)
            return result

        return observed_call

    def _enter(self, function: int) -> bool:
        """Handle the begin of a call, and return True if it is an outermost one."""
        import tensorflow as tf

        if self.paused:
            return False
        self._calls_run |= function == _CALL_OF_RUN
        if self._function is not None or threading.get_ident() != self._thread:
            return False
        if not tf.executing_eagerly():
            return False
        self.flush()
        if function in self._trains and self._taken[function] >= self._limit:
            self.tell_end(active_lines())
            raise EnoughSteps
        self._objects.watch()
        self._objects.watch_metrics()
        if not self._begun:
            self._run._listener.begin_loop()
            self._begun = True
        self._before = self._objects.updates()
        self._function = function
        return True

    def _leave(self, entered: bool, result: Any, failed: bool = False) -> None:
        if not entered:
            return
        function, self._function = self._function, None
        assert function is not None
        if failed:
            return  # a graph that ends by an error may have made any part of its updates
        if self._objects.updates() != self._before:
            if self._without_strategy and not self._calls_run:
                raise NotSeenError(no_strategy_advice(self._without_strategy))
            if self._values_at:
                raise NotSeenError(f"{self._values_at}: {_VALUES}")
            self._taken[function] += 1
            self._ran.update(active_lines())
            self._pending, self._loss = True, _scalar(result) if function in self._reduces else None
            self._found.add("loops", f"a loop of the script's own, around {place()}")
        elif function not in self._trains:
            self._run._listener.end_without_step()  # an evaluation

    def _reduced(self, result: Any) -> None:
        import tensorflow as tf

        if self.paused:
            return
        if not tf.executing_eagerly():
            if self._function is not None:
                self._reduces.add(self._function)
        elif self._pending and self._loss is None:
            self._loss = _scalar(result)

    @property
    def has_steps(self) -> bool:
        """True if the script's own loop has run a step."""
        return self._taken.total() > 0

    def tell_end(self, active: list[ActiveLine]) -> None:
        """Add to what was found that the script was ended, and which training has not run.

        :param active: lines of the script that were active at its end.
        """
        self._found.add("ended", f"after {self._taken.total()} steps of the script's own loop")
        unrun = unrun_training(active, self._ran)
        if unrun is not None:
            self._found.unrun = f"{unrun.file}:{unrun.line}"

    def flush(self) -> None:
        """Record the step that has run, if there is one."""
        if self._pending:
            self._pending = False
            self._run.record(self._loss)


def no_strategy_advice(code: str) -> str:
    """Say what a script without a strategy has to change for its own loop.

    :param code: code of the script.
    """
    why = f"{place()}: this loop applies gradients without a strategy, so nothing in it is distributed"
    # The loss objects of tf_keras divide by nothing, and refuse to be called in a replica.
    lines = distributed_loop(code) if len(environment.keras_modules()) == 1 else ""
    if lines:
        return f"{why}. With these lines it is, and can be compared:\n{lines}"
    return (
        f"{why}. Add `strategy = tf.distribute.MirroredStrategy()`, create the model and the optimizer in "
        "`with strategy.scope():`, and call the step as `strategy.run(train_step, args=(batch,))` with batches of "
        "`strategy.experimental_distribute_dataset(dataset)`. Divide the sum of the losses by the global batch size"
    )


def _scalar(result: Any) -> Any:
    first = result[0] if isinstance(result, list | tuple) and result else result
    dtype = getattr(first, "dtype", None)
    if dtype is None or not getattr(dtype, "is_floating", False) or values.scalar(first) is None:
        return None
    return first


def is_end_of_data(error: Exception) -> bool:
    """Return whether a script has asked for more batches than there are."""
    import tensorflow as tf

    return isinstance(error, StopIteration | tf.errors.OutOfRangeError)
