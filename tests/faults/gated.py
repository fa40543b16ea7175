"""Program that changes files while the gate is open, for test_write_gate.py: FOLDER FAULT..."""

import os
import sys
from pathlib import Path

from pytest_ddl.faults.rank.fault import Fault
from pytest_ddl.faults.rank.point_log import Points
from pytest_ddl.faults.rank.write_gate import WriteGate

folder = Path(sys.argv[1])
points = Points(folder / ".points-1-0", [Fault.parse(text) for text in sys.argv[2:]])
with WriteGate(points, str(folder)) as gate:
    points.begin("save")
    gate.open()
    try:
        with open(folder / "new", "wb", buffering=0) as file:
            file.write(b"x" * 1000)
            file.write(b"y" * 10)
        (folder / "new").read_bytes()
        with open(folder.parent / "elsewhere", "wb", buffering=0) as file:
            file.write(b"not of this run")
        os.rename(folder / "new", folder / "old")
        (folder / "made").mkdir()
        (folder / "old").unlink()
    except OSError as error:
        print(error.errno, flush=True)
    gate.close()
    points.end("save")
with open(folder / "later", "wb", buffering=0) as file:
    file.write(b"after the save")
print("ended", flush=True)
