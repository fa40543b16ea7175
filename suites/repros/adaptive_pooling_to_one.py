"""Show that pooling to one maximum ends the process with a floating point exception.

Expected:
The layer returns the maximum of each channel, as GlobalMaxPooling1D does.
"""

import subprocess
import sys

PROGRAM = """
import keras, numpy as np
print(keras.layers.AdaptiveMaxPooling1D(1)(np.ones((2, 5, 3), "float32")))
"""

ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True)
if ended.returncode != 0:
    sys.exit(f"the process ended with status {ended.returncode}")
