"""Show that BatchNormalization of tf_keras that is read from its configuration is not synchronized any more.

Expected:
The configuration says that the layer is synchronized.
"""

import sys

import tf_keras

config = tf_keras.layers.BatchNormalization(synchronized=True).get_config()
if not config.get("synchronized"):
    sys.exit(f"the configuration has {sorted(config)}")
