"""Record the casts of a program to half precision types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_ddl.training import adapter
from pytest_ddl.training.observers.base import Observer
from pytest_ddl.training.replacing import Replacements


class Casts(Observer):
    """Observer that fills ``RankRecord.casts`` and ``RankRecord.casts_around``.

    TensorFlow converts no type automatically. So a value in half precision comes from a cast, or from a variable
    or data of that type. Variables are recorded with their types.
    """

    @contextmanager
    def installed(self) -> Iterator[None]:
        self._running = 0
        self._within: Counter[str] = Counter()
        self._around: Counter[str] = Counter()
        with Replacements() as replaced:
            for module, name in adapter.cast_functions():
                replaced.put(module, name, self._noting(getattr(module, name)))
            yield

    def before_dispatch(self, traced: bool) -> None:
        self._running += 1

    def after_dispatch(self) -> None:
        self._running -= 1

    def end_run(self) -> Mapping[str, Any]:
        return {"casts": dict(self._within), "casts_around": dict(self._around)}

    def _noting(self, original: Any) -> Any:
        import tensorflow as tf

        half = (tf.float16, tf.bfloat16)

        def cast(x: Any, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("DstT")
            result = original(x, *args, **kwargs)
            # In a wider precision, the run replaces the type.
            if target in half and getattr(x, "dtype", None) != target == result.dtype:
                (self._within if self._running > 0 else self._around)[tf.as_dtype(target).name] += 1
            return result

        return cast
