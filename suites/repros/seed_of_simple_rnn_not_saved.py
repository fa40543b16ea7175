"""Show that SimpleRNN that is read from its configuration has another seed, although LSTM and GRU keep theirs.

Expected:
The configuration has the seed.
"""

import sys

import keras

found = {
    kind: getattr(keras.layers, kind)(2, dropout=0.5, seed=3).get_config().get("seed") for kind in ("GRU", "SimpleRNN")
}
if found["SimpleRNN"] != found["GRU"]:
    sys.exit(f"the seeds in the configurations are {found}")
