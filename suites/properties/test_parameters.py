"""Every public parameter of what training touches is varied by a property, or an entry says why not."""

from __future__ import annotations

import pytest

from suites.parameters import table


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("optimizer.iterations", "metric.Mean", "loss.reductions", shows="behavior")
def test_every_parameter_is_varied_or_has_an_entry(ddl_strategy):
    """A version of Keras or TensorFlow that brings a parameter fails here until a property varies it."""
    missing = [line.name for line in table.lines() if line.state == "missing"]
    assert not missing, f"no property varies {', '.join(missing)}, and no entry of {table.FILE.name} says why"
