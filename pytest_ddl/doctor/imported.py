"""Import TensorFlow in a process of its own, list its devices, and compute on its GPUs. This takes seconds."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys

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
    f"print('{_MARK}' + json.dumps([tf.__version__, devices, wrong, gpu_check.built_for()]))\n"
)


def tensorflow() -> DoctorFinding:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", _BEGIN + _LIST, str(os.getpid())]
    fix = 'see what `python -c "import tensorflow"` says; pip install --force-reinstall may mend it'
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environ, errors="replace")
    except subprocess.TimeoutExpired:
        return problem(f"importing TensorFlow did not end within {SECONDS:.0f} s", fix)
    said = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    if result.returncode != 0 or not said:
        last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return problem(f"importing TensorFlow ended with status {result.returncode}: {last}", fix)
    version, devices, wrong, libraries = json.loads(said[0].removeprefix(_MARK))
    if wrong:
        return problem(wrong[0], libraries)
    if glob.glob(NODES) and not any("GPU" in device for device in devices):
        found = f"TensorFlow {version} can be imported, and sees no GPU although the driver has one"
        return warning(found, install_line("gpu"))
    return ok(f"TensorFlow {version} can be imported, and sees {', '.join(devices)}")
