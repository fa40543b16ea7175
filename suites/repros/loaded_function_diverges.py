"""Show that a function of a SavedModel lets the components of a mirrored variable diverge without an error.

Expected:
All components have one value, or the function is refused on several replicas with an error.
"""

import sys, tempfile  # noqa: E401, I001
import tensorflow as tf

cpu, folder = tf.config.list_physical_devices("CPU")[0], tempfile.mkdtemp()
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy, module = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), tf.Module()
module.v = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
module.add = tf.function(lambda own: module.v.assign_add(own), input_signature=[tf.TensorSpec([])])
tf.saved_model.save(module, folder)
with strategy.scope():
    loaded = tf.saved_model.load(folder)
own = strategy.experimental_distribute_values_from_function(lambda context: context.replica_id_in_sync_group + 1.0)
strategy.run(lambda value: loaded.add(value), args=(own,))
if len(found := {float(part) for part in strategy.experimental_local_results(loaded.v)}) > 1:
    sys.exit(f"components of one mirrored variable: {found}")
