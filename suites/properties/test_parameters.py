"""Every public parameter of what training touches is varied by a property, or an entry says why not."""

from __future__ import annotations

import pytest

from suites.parameters import table
from suites.proofs import all_tests

OPEN = 30
"""Parameters that still need a property or a reason. The number may only become smaller."""
_FILES = ("properties/test_*.py", "test_*.py")


@pytest.mark.ddl(strategies=["one_device"])
@pytest.mark.ddl_item("optimizer.iterations", "metric.Mean", "loss.reductions", shows="behavior")
def test_every_parameter_is_varied_or_has_an_entry(ddl_strategy):
    """A version of Keras or TensorFlow that brings a parameter fails here until a property varies it."""
    lines = table.lines()
    missing = [line.name for line in lines if line.state == "missing"]
    assert not missing, f"no property varies {', '.join(missing)}, and no entry of {table.FILE.name} says why"
    assert table.counts(lines)["open"] <= OPEN, "parameters are open that had a property or a reason"
    known = {name for test in all_tests((*_FILES, "regressions/test_*.py")) for name in (test, test.partition("::")[0])}
    lost = [test for entry in table.left_out() for test in entry.tests if test not in known]
    assert not lost, f"{table.FILE.name} names tests that do not exist: {', '.join(lost)}"
