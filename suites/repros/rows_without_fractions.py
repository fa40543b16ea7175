"""Show that SpectralNormalization rounds the rows of an Embedding to whole numbers.

Expected:
The layer returns the rows of the Embedding that it wraps. Its documentation says that it takes an Embedding.
"""

import sys

import keras
import numpy as np

inner = keras.layers.Embedding(4, 2, embeddings_initializer="uniform")
found = np.asarray(keras.layers.SpectralNormalization(inner)(np.array([1, 2])))
if (found != np.asarray(inner(np.array([1, 2])))).any():
    sys.exit(f"it returns {found.tolist()} of the rows {np.asarray(inner.embeddings)[1:3].tolist()}")
