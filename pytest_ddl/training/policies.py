"""Replace the dtype policies of Keras, so that lower precision becomes float64 or float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.training.replacing import Replacements

_HALF = ("float16", "bfloat16")
_WIDENED = (*_HALF, "float32")
_PROPERTIES = ("compute_dtype", "variable_dtype")


class WidePolicies(Replacements):
    """Replacement of dtype policies, which keep their names and use a wider type while the context is open.

    A program that chooses ``mixed_float16`` overrides the ``floatx`` of the run, so the policies must be replaced too.
    Their names stay, because ``compile`` decides by the name whether to scale the loss. So the program keeps its
    optimizer and its variables.
    """

    def __init__(self, dtype: str) -> None:
        """Prepare the replacement.

        :param dtype: ``float64`` or ``float32``.
        """
        super().__init__()
        self._dtype = dtype
        self.names: set[str] = set()
        """Names of the half precision policies that the program used."""

    def widen(self, module: Any) -> None:
        """Widen the policies of one flavor of Keras."""
        owner = getattr(module, "DTypePolicy", None) or module.mixed_precision.Policy
        for name in _PROPERTIES:
            self.put(owner, name, property(self._widened(getattr(owner, name).fget)))

    def _widened(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def dtype(policy: Any) -> Any:
            found = original(policy)
            if found not in _WIDENED:
                return found
            if any(half in str(policy.name) for half in _HALF):
                self.names.add(str(policy.name))
            return self._dtype

        return dtype
