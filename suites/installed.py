"""Find the installed versions of TensorFlow, Keras and tf_keras, whatever name each was installed under."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    "keras": ("keras", "keras-nightly"),
    "tf_keras": ("tf_keras", "tf_keras-nightly"),
}
"""Package that is imported -> names under which it is installed."""


@cache
def version_of(package: str) -> str | None:
    """Return the installed version of one of these packages, or ``None``. It is not imported."""
    for name in DISTRIBUTIONS[package]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
