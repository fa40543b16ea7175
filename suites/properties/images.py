"""Find the layers that change images, and the options that they take."""

from __future__ import annotations

import inspect

from suites.parameters.spaces import find


def takes(name: str, option: str) -> bool:
    """Return whether the installed version has an option of a layer, which may be one of its bases."""
    return any(option in inspect.signature(one).parameters for one in inspect.getmro(find(f"layers.{name}"))[:-1])


def image_layers() -> set[str]:
    """Return the names of the layers that change images."""
    mixes = find("layers.MixUp")
    if mixes is None:
        return set()
    base = inspect.getmro(mixes)[1]
    return {name for name, one in vars(find("layers")).items() if isinstance(one, type) and issubclass(one, base)}
