"""Show that ctc_decode in beams takes a wrong mask if mask_index is -1.

Expected:
It is the last class, as with the number of this class.
"""

import sys

import keras
import numpy as np

scores = np.random.default_rng(1).normal(size=(2, 4, 3)).astype("float32")
given = {"sequence_lengths": np.int32([4, 4]), "strategy": "beam_search"}
back, front = (np.asarray(keras.ops.ctc_decode(scores, mask_index=at, **given)[0]) for at in (-1, 2))
if not np.array_equal(back, front):
    sys.exit(f"{back.tolist()} with -1, {front.tolist()} with 2")
