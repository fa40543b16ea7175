"""The steps of an optimizer of ``pytest_ddl.conformance``, for the tests of the suite."""

from pytest_ddl.conformance.steps import NAMES as NAMES
from pytest_ddl.conformance.steps import WEIGHTS as WEIGHTS
from pytest_ddl.conformance.steps import Steps as Steps
from pytest_ddl.conformance.steps import follow as follow
from pytest_ddl.conformance.steps import total as total
