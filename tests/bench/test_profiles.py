"""Exposed communication out of profiles, made up and real."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddl.bench.metrics import NoNumberError
from pytest_ddl.bench.profiles import exposed_communication, length, merged

MS = 10**9
"""Picoseconds."""


def write_profile(folder: Path, planes: dict[str, dict[str, list[tuple[str, int, int]]]]) -> None:
    """A profile of planes, lines, and events as (name, begin ms, end ms)."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for title, lines in planes.items():
        plane = space.planes.add(name=title)
        for number, (stream, events) in enumerate(lines.items()):
            line = plane.lines.add(name=stream, id=number, timestamp_ns=10**18)
            for name, begin, end in events:
                key = len(plane.event_metadata) + 1
                plane.event_metadata[key].name = name
                line.events.add(metadata_id=key, offset_ps=begin * MS, duration_ps=(end - begin) * MS)
    path = folder / "plugins" / "profile" / "now"
    path.mkdir(parents=True)
    (path / "host.xplane.pb").write_bytes(space.SerializeToString())


def test_what_overlaps_is_not_exposed(tmp_path: Path) -> None:
    write_profile(
        tmp_path,
        {
            "/device:GPU:0": {
                "Stream #13(Compute)": [("gemm", 0, 60), ("relu", 60, 70), ("adam", 90, 100)],
                "Stream #20(NCCL)": [("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 85)],
                "Stream #21(MemcpyH2D)": [("MemcpyH2D", 70, 90)],
                "XLA Modules": [("step", 0, 100)],
            },
            "/host:CPU": {"python": [("AllReduce", 0, 1000)]},
        },
    )
    found = exposed_communication(tmp_path, steps=5)
    # From 70 to 85 ms; the copy is neither, and from 85 to 90 ms nothing else runs.
    assert found.seconds == pytest.approx(0.015 / 5, rel=1e-3)
    assert found.communication == pytest.approx(0.035 / 5, rel=1e-3)
    assert found.busy == pytest.approx(0.095 / 5, rel=1e-3)
    assert found.share == pytest.approx(15 / 95, rel=1e-3)
    assert found.devices == 1


def test_gpu_with_the_most_counts(tmp_path: Path) -> None:
    write_profile(
        tmp_path,
        {
            f"/device:GPU:{number}": {"Stream #1": [("gemm", 0, 10), ("MemcpyP2P", 10, 10 + wait)]}
            for number, wait in enumerate((2, 7, 4))
        },
    )
    found = exposed_communication(tmp_path, steps=1)
    assert found.seconds == pytest.approx(0.007, rel=1e-3)
    assert found.devices == 3


def test_unions_of_spans() -> None:
    assert merged([(3, 4), (0, 2), (1, 2.5), (2.5, 3), (6, 6)]) == [(0, 4)]
    assert merged([(5, 6), (0, 1)]) == [(0, 1), (5, 6)]
    assert length(merged([(0, 1), (0.5, 2)])) == 2


def test_no_profile_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoNumberError, match=r"give the folder of tf\.profiler\.experimental\.start"):
        exposed_communication(tmp_path, 1)
    with pytest.raises(ValueError, match="steps=0"):
        exposed_communication(tmp_path, 0)


@pytest.mark.slow
def test_real_profile_of_a_cpu_gives_the_reason(tmp_path: Path) -> None:
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU, whose profile has numbers")
    with tf.profiler.experimental.Profile(str(tmp_path)):
        tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    with pytest.raises(NoNumberError, match="has no GPU: on CPUs, the profiler does not measure"):
        exposed_communication(tmp_path, 1)
