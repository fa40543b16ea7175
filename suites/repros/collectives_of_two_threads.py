"""Show that MirroredStrategy mixes the numbers of two threads that run functions with a reduction at the same time.

Expected:
Each thread gets the sum over its own replicas. The keys of collectives are counted by device, without a lock that a
call of a function holds.
"""

import sys
import threading

import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy, wrong = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), []


def train(own, context=tf.distribute.get_replica_context):
    sums = lambda: context().all_reduce("SUM", tf.constant(own))  # noqa: E731
    step = tf.function(lambda: strategy.run(sums), autograph=False)
    wrong.extend(value for _ in range(5000) for value in map(float, step().values) if value != 2 * own and not wrong)


sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=train, args=(own,)) for own in (1.0, 10.0)]
_ = [thread.start() for thread in threads], [thread.join() for thread in threads]
sys.exit(f"a thread gets {wrong[0]} in place of 2.0 or 20.0" if wrong else 0)
