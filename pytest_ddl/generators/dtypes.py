"""Generate data types for tests of collectives and training."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import some_of

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
"""Names of TensorFlow dtypes that every strategy can reduce on CPUs; the usual dtype comes first."""


def dtypes(names: Collection[str] = DTYPES) -> st.SearchStrategy[str]:
    """Generate the name of a dtype that ``tf.as_dtype`` accepts; shrink towards ``float32``.

    :param names: names from ``DTYPES`` that may be drawn.
    :raises ValueError: if a name is not one of these.
    """
    return st.sampled_from(some_of("names", names, DTYPES))
