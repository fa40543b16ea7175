"""Show that ops.istft of KerasTensors tells another length than the one that is asked for.

Expected:
The shape is (2, 20).
"""

import sys

import keras

both = (keras.KerasTensor((2, 9, 4)), keras.KerasTensor((2, 9, 4)))
found = keras.ops.istft(both, sequence_length=6, sequence_stride=3, fft_length=6, length=20)
if found.shape != (2, 20):
    sys.exit(f"the shape is {found.shape}")
