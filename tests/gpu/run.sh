#!/usr/bin/env bash
# All checks that need a GPU, in at most 9 minutes, and a table of them: tests/gpu/run.sh FOLDER [CHECK...]
cd "$(dirname "$0")/../.." && exec "${PYTHON:-python3}" -m tests.gpu.checks "$@"
