"""Import TensorFlow in a process of its own, and list its devices: the probe that takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pytest_ddl.doctor.findings import DoctorFinding, ok, problem

SECONDS = 60.0
_MARK = "pytest-ddl-devices:"
# An import may hang, so it must not go on after the command was killed.
_BEGIN = "import sys\nfrom pytest_ddl.bench.launching.processes import die_with\ndie_with(int(sys.argv[1]))\n"
_LIST = (
    "import json, tensorflow as tf\n"
    "devices = [device.name.split(':', 1)[1] for device in tf.config.list_physical_devices()]\n"
    f"print('{_MARK}' + json.dumps([tf.__version__, devices]))\n"
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
    version, devices = json.loads(said[0].removeprefix(_MARK))
    return ok(f"TensorFlow {version} can be imported, and sees {', '.join(devices)}")
