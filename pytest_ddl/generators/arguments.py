"""Check the arguments of generators. Errors contain the name, the value and the valid values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytest_ddl.messages import did_you_mean


def at_least(name: str, value: object, least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``least``.

    :raises ValueError: otherwise; the message contains the name, the value and the least value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number, at least {least}")
    return value


def some_of(name: str, values: object, valid: Collection[str]) -> tuple[str, ...]:
    """Return the chosen names once each, in the order of ``valid``: generators shrink towards the first.

    :raises ValueError: for a single string, an empty choice or an unknown name.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}={values!r} must be a collection of names, for example ({next(iter(valid))!r},)")
    chosen = list(values)
    if not chosen:
        raise ValueError(f"{name} is empty, so nothing could be drawn; valid: {', '.join(valid)}")
    for value in chosen:
        if value not in valid:
            raise ValueError(f"{name} has no {value!r}{did_you_mean(value, valid)}; valid: {', '.join(valid)}")
    return tuple(known for known in valid if known in chosen)
