"""Regression suite for the installed TensorFlow and Keras. Run it with ``pytest suites --ddl-strategy=all``."""

import os

if os.environ.get("DDL_SUITE_DEFECT"):
    # In every process of a run, before a test uses what has the defect.
    from suites.defects import plant_from_environment

    plant_from_environment()
