"""Show that ops.istft without a window adds up the frames that overlap.

Expected:
The inverse of a transform with the same arguments is the sound, as documented.
"""

import sys

import keras
import numpy as np

sound = np.ones(24, "float32")
given = {"sequence_length": 6, "sequence_stride": 3, "fft_length": 6, "window": None}
found = np.asarray(keras.ops.istft(keras.ops.stft(sound, **given), **given))
if not np.allclose(found, sound, atol=1e-4):
    sys.exit(f"the sound of ones becomes {found[:4]}")
