"""Real GPUs: replicas compute there, training matches one device, and memory, energy and profiles are read.

Without a GPU, each test is skipped with the reason.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddl import Equivalence, current_rank
from suites.loops import train_in_a_loop
from suites.workloads import WORKLOADS

pytestmark = pytest.mark.gpu
EVERYWHERE = pytest.mark.ddl(strategies="all", device="gpu")


def placed(tensor: Any) -> str:
    return str(tensor.device).rpartition("device:")[2]


@pytest.mark.virtual_gpus(3, memory_mb=512)
def test_a_gpu_is_split(virtual_gpus: list[str]) -> None:
    import tensorflow as tf

    assert virtual_gpus == ["GPU:0", "GPU:1", "GPU:2"]
    for name in virtual_gpus:
        with tf.device(name):
            product = tf.matmul(tf.ones([4, 3]), tf.ones([3, 4]))
        assert placed(product) == name
        assert float(tf.reduce_sum(product)) == 48


@pytest.mark.ddl(strategies=["one_device", "mirrored", "multi_worker_mirrored", "central_storage"], device="gpu")
def test_replicas_compute_on_gpus(ddl_strategy: Any) -> None:
    """One step of each replica is a product of matrices, which has no reason to run elsewhere."""
    import tensorflow as tf

    assert current_rank().device == "gpu"
    product = tf.function(lambda: ddl_strategy.run(lambda: tf.matmul(tf.ones([8, 8]), tf.ones([8, 8]))))()
    for value in ddl_strategy.experimental_local_results(product):
        assert placed(value).startswith("GPU:")
        assert float(value[0, 0]) == 8


@EVERYWHERE
@pytest.mark.parametrize("name", WORKLOADS)
def test_training_matches_one_device(name: str, ddl_equivalence: Equivalence) -> None:
    workload = WORKLOADS[name]
    train = partial(train_in_a_loop, workload=workload, examples=workload.load().first(21))
    ddl_equivalence(train, global_batch_size=8)


READ_BY_THE_FIRST = "rank 0 reads the energy of the whole machine"


def cnn(run: Any) -> None:
    workload = WORKLOADS["cnn"]
    train_in_a_loop(run, workload, workload.load().first(1024))


def test_a_launch_has_memory_and_energy() -> None:
    from pytest_ddl.bench import measure

    variants = {"one_device": 1, "mirrored[replicas=2]": 2, "multi_worker_mirrored[workers=2,replicas=1]": 1}
    found = measure(cnn, list(variants), device="gpu", batch_per_replica=64, energy=True, seconds=2.0)
    for variant, devices in variants.items():
        (launch,) = found.of(variant)
        assert launch.device == "gpu"
        assert launch.machine["gpu"]
        for rank in launch.ranks:
            assert len(rank.device_peak_bytes) == devices
            # This is the size of the images of one batch.
            assert min(rank.device_peak_bytes.values()) > 64 * 64 * 4
        first, *others = (rank.energy for rank in launch.ranks)
        assert first.source == "nvml: 1 GPU", first.reason
        assert first.joules
        # The counter is that of the GPU, which all ranks share.
        assert {(one.joules, one.source, one.reason) for one in others} <= {(None, "", READ_BY_THE_FIRST)}


@pytest.mark.ddl(strategies="mirrored", device="gpu")
def test_a_profile_says_how_long_the_gpu_was_busy(ddl_strategy: Any, tmp_path: Path) -> None:
    """Replicas on one GPU exchange gradients without a kernel of a collective, so that no communication is exposed."""
    import tensorflow as tf

    from pytest_ddl.bench.profiles import exposed_communication

    @tf.function
    def step() -> Any:
        def replica_step() -> Any:
            product = tf.matmul(tf.ones([512, 512]), tf.ones([512, 512]))
            return tf.distribute.get_replica_context().all_reduce("SUM", product)

        return ddl_strategy.run(replica_step)

    step()
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(4):
        step()
    tf.profiler.experimental.stop()
    found = exposed_communication(tmp_path, steps=4)
    assert found.devices >= 1
    assert 0 <= found.seconds <= found.communication <= found.busy
    assert found.busy > 0
