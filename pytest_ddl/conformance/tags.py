"""Capability tags of an object, which decide which checks apply to it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, kw_only=True)
class Tags:
    """Capabilities of an object. ``None`` stands for what pytest-ddl finds out by itself.

    ``needs_whole_batch`` is only ever declared: an object that needs the whole batch by design does the same as one
    that divides by the wrong number.
    """

    random: bool | None = None
    """A layer draws random numbers in training. Found in the graph of its call."""
    state: bool | None = None
    """A layer has weights that are not trained, or an optimizer has slots. Found from the variables."""
    sparse_gradients: bool | None = None
    """An optimizer takes ``tf.IndexedSlices``. Found by an attempt on one device."""
    sample_weights: bool | None = None
    """A metric or a loss takes ``sample_weight``. Found from its signature."""
    needs_whole_batch: bool = False
    """The value of an example depends on the other examples of the batch, as in batch normalization."""

    def over(self, found: Tags) -> Tags:
        """Return these tags. The found ones fill in those that were not declared."""
        declared = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(found, **{name: value for name, value in declared.items() if value is not None})
