"""Import TensorFlow in a process of its own, list its devices, and compute on its GPUs. This takes seconds."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from collections.abc import Mapping

from pytest_ddl.doctor.examination import DoctorFinding, ok, problem, warning
from pytest_ddl.doctor.gpu_state import NODES
from pytest_ddl.installing import install_line

SECONDS = 60.0
_MARK = "pytest-ddl-devices:"
# An import may hang, so it must not go on after the command was killed.
_BEGIN = "import sys\nfrom pytest_ddl.bench.launching.processes import die_with\ndie_with(int(sys.argv[1]))\n"
_LIST = (
    "import json, tensorflow as tf\n"
    "from pytest_ddl.strategies import gpu_check\n"
    "devices = [device.name.split(':', 1)[1] for device in tf.config.list_physical_devices()]\n"
    "gpus = [f'GPU:{number}' for number in range(sum('GPU' in name for name in devices))]\n"
    "wrong = [f'{gpu} {found}' for gpu in gpus if (found := gpu_check.wrong_on(gpu))]\n"
    "told = gpu_check.libraries() if gpus or sys.argv[2:] else {}\n"
    f"print('{_MARK}' + json.dumps([tf.__version__, devices, wrong, gpu_check.built_for(), told]))\n"
)
_NEEDED = ("cudart", "cublas", "cudnn", "cufft", "cusolver", "cusparse")
"""Libraries of CUDA without which TensorFlow registers no GPU."""


def tensorflow() -> DoctorFinding:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    has_gpu = bool(glob.glob(NODES))
    command = [sys.executable, "-c", _BEGIN + _LIST, str(os.getpid()), *(["gpu"] if has_gpu else [])]
    fix = 'see what `python -c "import tensorflow"` says; pip install --force-reinstall may mend it'
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environ, errors="replace")
    except subprocess.TimeoutExpired:
        return problem(f"importing TensorFlow did not end within {SECONDS:.0f} s", fix)
    said = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if result.returncode != 0 or not said:
        last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return problem(f"importing TensorFlow ended with status {result.returncode}: {last}", fix)
    version, devices, wrong, libraries, loaded = json.loads(said[0].removeprefix(_MARK))
    unfit = misfit(loaded)
    if wrong:
        return problem(f"{wrong[0]}; {unfit}" if unfit else wrong[0], libraries)
    if has_gpu and not any("GPU" in device for device in devices):
        missing = [f"lib{name}" for name in _NEEDED if name not in loaded]
        why = unfit or (f"it could not load {', '.join(missing)}" if missing else "")
        text = f"TensorFlow {version} can be imported, and sees no GPU although the driver has one"
        return warning(f"{text}: {why}" if why else text, install_line("gpu"))
    if unfit:
        return problem(unfit, install_line("gpu"))
    with_cuda = ", ".join(f"{name} {number}" for name, number in sorted(loaded.items()) if number)
    told = f"TensorFlow {version} can be imported, and sees {', '.join(devices)}"
    return ok(f"{told} (CUDA: {with_cuda})" if with_cuda else told)


def misfit(loaded: Mapping[str, str]) -> str:
    """Return why the driver or the runtime of CUDA does not fit the build of TensorFlow, or an empty text.

    :param loaded: what ``gpu_check.libraries`` returns. Libraries other than the runtime may be of another version.
    """
    built, driver, runtime = (loaded.get(name, "") for name in ("built", "driver", "cudart"))
    if built and driver and _major(driver) < _major(built):
        return f"this TensorFlow is built for CUDA {built}, and the driver supports CUDA {driver}: update the driver"
    if built and runtime and _major(runtime) != _major(built):
        return (
            f"this TensorFlow is built for CUDA {built}, and has loaded the runtime {runtime}, with which its kernels "
            "fail without an error: look at LD_LIBRARY_PATH"
        )
    return ""


def _major(version: str) -> int:
    return int(version.partition(".")[0])
