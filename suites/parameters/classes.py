"""Classes of Keras, and the arguments without which no object of them can be made."""

from __future__ import annotations

import inspect
import re
from typing import Any

from suites.parameters.spaces import find

_SIZES = ("units", "filters", "kernel_size", "pool_size", "output_size", "input_dim", "output_dim", "output_shape", "n")
_SIZES += ("num_heads", "key_dim", "head_dim", "num_query_heads", "num_key_value_heads", "size", "max_number")
_NUMBERS = ("height", "width", "num_classes", "decay_steps", "first_decay_steps")
_SHARES = ("rate", "stddev", "factor", "scale", "height_factor", "width_factor", "specificity", "sensitivity", "recall")
_SHARES += ("precision", "threshold", "initial_learning_rate", "decay_rate")
NEEDED: dict[str, Any] = {
    **dict.fromkeys(_SIZES, 2),
    **dict.fromkeys(_NUMBERS, 4),
    **dict.fromkeys(_SHARES, 0.5),
    **dict.fromkeys(("function", "fn"), abs),
    "dims": (1,),
    "boundaries": [1],
    "normalizer": [1.0],
    "target_shape": (2,),
    "target_class_ids": [0, 1],
    "values": [0.5, 0.25],
    "equation": "ab,bc->ac",
    "activation": "relu",
}
"""Values of parameters without a default."""
OWN = {"CategoryEncoding": {"num_tokens": 4}, "Discretization": {"num_bins": 4}, "RandomPosterization": {"factor": 4}}
"""Class -> values that only it needs."""


def classes(kind: str) -> dict[str, Any]:
    """Return the classes of a module that have a configuration, without other names of the same class."""
    found = {}
    for name, one in vars(find(kind)).items():
        if isinstance(one, type) and hasattr(one, "from_config") and one.__name__ == name:
            found[name] = one
    return found


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class that have a name, also those that it takes out of its further arguments."""
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = {name: one for name, one in inspect.signature(kind).parameters.items() if one.kind not in several}
    source = inspect.getsource(kind.__init__) if inspect.isfunction(kind.__init__) else ""
    for name, default in re.findall(r'= kwargs\.pop\("(\w+)", (True|False)\)', source):
        found[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default == "True")
    return found


def needed(kind: type) -> dict[str, Any]:
    """Return arguments without which no object can be made."""
    known = parameters(kind)
    found = {name: NEEDED[name] for name, one in known.items() if one.default is one.empty and name in NEEDED}
    return found | OWN.get(kind.__name__, {})
