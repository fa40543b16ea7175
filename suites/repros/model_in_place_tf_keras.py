"""Show that tf_keras writes a model to the file of its final name, which is broken if the program ends meanwhile.

Expected:
The model is written to another file, which is then renamed, so that a file of the final name is always complete.
"""

import os
import sys
import tempfile
import zipfile

import tf_keras

path, seen = os.path.join(tempfile.mkdtemp(), "model.keras"), []
write = zipfile.ZipFile.writestr
zipfile.ZipFile.writestr = lambda *given, **options: seen.append(os.path.exists(path)) or write(*given, **options)
tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(1,))]).save(path)
if any(seen):
    sys.exit(f"{os.path.basename(path)} exists before its content is written")
