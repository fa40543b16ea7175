"""The functions of ``pytest_ddl.conformance`` that run something on every replica, for the tests of the suite."""

from pytest_ddl.conformance.running import HOW as HOW
from pytest_ddl.conformance.running import SIZES as SIZES
from pytest_ddl.conformance.running import components as components
from pytest_ddl.conformance.running import distributed as distributed
from pytest_ddl.conformance.running import each as each
from pytest_ddl.conformance.running import is_coordinator as is_coordinator
from pytest_ddl.conformance.running import padded as padded
from pytest_ddl.conformance.running import replicas_of as replicas_of
from pytest_ddl.conformance.running import split as split
from pytest_ddl.conformance.running import unpadded as unpadded
