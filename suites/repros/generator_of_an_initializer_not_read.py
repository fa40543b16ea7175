"""Show that an initializer whose seed is a SeedGenerator cannot be read from its configuration.

Expected:
It is read, and draws numbers.
"""

import sys

import keras

made = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(3))
try:
    keras.initializers.RandomNormal.from_config(made.get_config())((2,))
except (TypeError, ValueError) as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
