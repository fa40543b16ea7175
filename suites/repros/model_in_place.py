"""Show that a model is written to the file of its final name, which is broken if the program ends meanwhile.

Expected:
The model is written to another file, which is then renamed, so that a file of the final name is always complete.
"""

import os
import sys
import tempfile
import zipfile

import keras

path, seen = os.path.join(tempfile.mkdtemp(), "model.keras"), []
write = zipfile.ZipFile.writestr
zipfile.ZipFile.writestr = lambda *given, **options: seen.append(os.path.exists(path)) or write(*given, **options)
keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(path)
if any(seen):
    sys.exit(f"{os.path.basename(path)} exists before its content is written")
