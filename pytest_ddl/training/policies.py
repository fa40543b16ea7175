"""Replace the dtype policies of Keras: what a program computes in less is computed in float64, or in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_ddl.training.replacing import Replacements

_HALF = ("float16", "bfloat16")
_WIDENED = (*_HALF, "float32")
_PROPERTIES = ("compute_dtype", "variable_dtype")


class WidePolicies(Replacements):
    """Dtype policies that keep their names and compute in a wider type, while the context is open.

    A program chooses ``mixed_float16`` after a run has set ``floatx``, and so overrides it. The name stays because
    ``compile`` decides by it whether to scale the loss: the program keeps its optimizer and its variables.
    """

    def __init__(self, dtype: str) -> None:
        """Prepare the replacement.

        :param dtype: ``float64`` or ``float32``.
        """
        super().__init__()
        self._dtype = dtype
        self.names: set[str] = set()
        """Names of the half precision policies whose types were asked for."""

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
