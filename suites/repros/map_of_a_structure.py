"""Show that ops.map of a dictionary of KerasTensors raises.

Expected:
The function gets a dictionary, as for tensors.
"""

import sys

import keras

try:
    keras.ops.map(lambda row: row["a"], {"a": keras.KerasTensor((3, 4))})
except Exception as error:
    sys.exit(f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
