"""Data types that collectives and training are tried with."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import strategies as st

from pytest_ddl.generators.arguments import some_of

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
"""Names of TensorFlow dtypes that every strategy on CPUs reduces, the usual one first."""


def dtypes(names: Collection[str] = DTYPES) -> st.SearchStrategy[str]:
    """Generate the name of a dtype, as ``tf.as_dtype`` understands it; shrinks towards ``float32``.

    :param names: which of ``DTYPES`` may be drawn.
    :raises ValueError: for a name that is not among them.
    """
    return st.sampled_from(some_of("names", names, DTYPES))
