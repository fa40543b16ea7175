"""What all tests of the project share; the fixtures of one area are in that area's own conftest."""

from importlib.util import find_spec

pytest_plugins = ["pytester"]
# Generators are for Hypothesis, which the plugin itself does not need.
collect_ignore_glob = [] if find_spec("hypothesis") else ["tests/generators/*"]
