"""Show that a SeedGenerator that is read from its configuration has another name.

Expected:
The name is that of the first one.
"""

import sys

import keras

made = keras.random.SeedGenerator(3, name="mine")
found = keras.random.SeedGenerator.from_config(made.get_config()).name
if found != "mine":
    sys.exit(f"the name is {found}")
