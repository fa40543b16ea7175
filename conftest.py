"""What all tests of the project share; the fixtures of one area are in that area's own conftest."""

pytest_plugins = ["pytester"]
