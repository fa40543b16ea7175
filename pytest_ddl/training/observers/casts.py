"""Record the casts of a program to half precision types, and what it computes in float32 within float64."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.run_facts import RunFacts
from pytest_ddl.training import adapter
from pytest_ddl.training.observer import Observer
from pytest_ddl.training.replacing import Replacements


class Casts(Observer):
    """Observer that fills ``RankRecord.casts`` and ``RankRecord.casts_around``.

    TensorFlow converts no type automatically. So a value in half precision comes from a cast, or from a variable
    or data of that type. Variables are recorded with their types.

    The same holds for float32 in a run in float64. ``facts["single"]`` has the number of casts by which float32 may
    round what a step computes. It also has the checksums of constants, of TensorFlow or NumPy, that were rounded to
    float32 and become float64. ``facts["narrowed"]`` is true if a step casts float64 to float32.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._running = 0
        self._within: Counter[str] = Counter()
        self._around: Counter[str] = Counter()
        self._dispatched = False
        self._single = 0
        self._narrowed = False
        self._constants: set[int] = set()
        with Replacements() as replaced:
            for module, name in adapter.cast_functions():
                replaced.put(module, name, self._noting(getattr(module, name)))
            for module, name in adapter.cast_functions(constants=True):
                replaced.put(module, name, self._noting_constants(getattr(module, name)))
            yield

    def before_dispatch(self, traced: bool) -> None:
        self._running += 1
        self._dispatched = True

    def after_dispatch(self) -> None:
        self._running -= 1

    def end_run(self) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"casts": dict(self._within), "casts_around": dict(self._around)}
        if self._single or self._constants:
            facts["facts"] = RunFacts(single=(self._single, sorted(self._constants)), narrowed=self._narrowed)
        return facts

    def _noting(self, original: Any) -> Any:
        import tensorflow as tf

        half = (tf.float16, tf.bfloat16)

        def cast(x: Any, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("DstT")
            result = original(x, *args, **kwargs)
            if {getattr(x, "dtype", None), result.dtype} == {tf.float32, tf.float64} and self._belongs_to_a_step():
                self._note_single(x, result.dtype)
            # In a wider precision, the run replaces the type.
            if target in half and getattr(x, "dtype", None) != target == result.dtype:
                (self._within if self._running > 0 else self._around)[tf.as_dtype(target).name] += 1
            return result

        return cast

    def _noting_constants(self, original: Any) -> Any:
        import numpy as np
        import tensorflow as tf

        def convert(value: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            if dtype == tf.float64 and getattr(value, "dtype", None) == np.float32 and self._belongs_to_a_step():
                self._note(float(value) if np.ndim(value) == 0 else None)
            return original(value, dtype, *args, **kwargs)

        return convert

    def _belongs_to_a_step(self) -> bool:
        """Return whether a cast may be one of a step. Casts of a dataset give both runs the same data."""
        import tensorflow as tf

        if self._running > 0:
            return True
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        return self._dispatched and not str(getattr(graph, "name", "")).startswith("Dataset_")

    def _note_single(self, x: Any, target: Any) -> None:
        """Note a cast between float32 and float64."""
        import tensorflow as tf

        self._narrowed = self._narrowed or target == tf.float32
        value = tf.get_static_value(x) if target == tf.float64 and x.shape.rank == 0 else None
        self._note(None if value is None else float(value))

    def _note(self, value: float | None) -> None:
        """Note a number that was float32 and becomes float64; ``None`` if a step computed it."""
        import numpy as np

        if value is None:
            self._single += 1
        elif not _is_short(value):
            # Only a constant that one of the runs does not have makes a difference, for example 1 / replicas.
            self._constants.add(zlib.crc32(np.float32(value).tobytes()))


_SHORT = 12
"""Bits of a number that was hardly rounded to the 24 bits of float32: an integer, or a fraction like 0.75."""


def _is_short(value: float) -> bool:
    return not math.isfinite(value) or (math.frexp(value)[0] * 2**_SHORT).is_integer()
