"""Warnings of calls in other processes: the filters of this process decide on them, there and here."""

from __future__ import annotations

import warnings

import pytest

from pytest_ddl.cluster.call_warnings import caught, current_filters, pickled, unpickled, warn_again
from pytest_ddl.cluster.protocol import RankWarning


class LocalWarning(UserWarning):
    """Warning whose instances cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not this one")


def of_an_error_filter() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = current_filters()
    assert found is not None
    return found


def test_filters_of_another_process_are_applied():
    filters = of_an_error_filter()
    with pytest.raises(UserWarning, match="as an error"), caught(filters):
        warnings.warn("as an error", stacklevel=1)


def test_warnings_are_recorded_and_issued_again_once():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with caught(current_filters()) as found:
            warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
    assert [(type(unpickled(one.message)), one.filename) for one in found] == [(DeprecationWarning, __file__)]
    with pytest.warns(DeprecationWarning, match="deprecated") as issued:
        warn_again([*found, *found])
    assert len(issued) == 1
    assert (issued[0].filename, issued[0].lineno) == (__file__, found[0].lineno)


def test_filters_are_put_back():
    before = list(warnings.filters)
    with caught(of_an_error_filter()):
        assert warnings.filters[0][0] == "error"
    assert warnings.filters == before


def test_a_call_without_filters_records_nothing():
    with pytest.warns(UserWarning, match="its own"), caught(None) as found:
        warnings.warn("its own", stacklevel=1)
    assert found == []


def test_a_warning_that_cannot_be_sent_is_sent_as_text():
    sent = RankWarning(pickled(LocalWarning("told anyway")), "train.py", 7)
    with pytest.warns(UserWarning, match="told anyway"):
        warn_again([sent])


def test_a_warning_of_an_unknown_class_says_so():
    assert "cannot be shown here" in str(unpickled(b"cnowhere\nWarning\n."))
