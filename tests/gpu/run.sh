#!/usr/bin/env bash
# All checks that need a GPU, in at most 9 minutes, and a table of them: tests/gpu/run.sh FOLDER [PART...]
# Without parts, all of them run. The logs and the figures of each part are kept in FOLDER.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:?the folder for logs and figures}")
shift
parts=${*:-doctor tests smoke core planted speed gate}
mkdir -p "$out"
python=${PYTHON:-python3}
pytest="$python -m pytest -q -p no:benchmark -p no:cacheprovider --durations=15"
one_gpu="one_device,mirrored,multi_worker_mirrored,parameter_server,central_storage"

# part NAME SECONDS COMMAND...: run a command with a limit, and add a line to the table.
part() {
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    timeout --signal=INT --kill-after=15 "$limit" "$@" >"$out/$name.log" 2>&1
    local status=$?
    printf '%-8s status %3d %4d s  %s\n' "$name" "$status" $((SECONDS - begun)) \
        "$(grep -v '^ *$' "$out/$name.log" | tail -n 1 | cut -c1-150)" >>"$out/table.txt"
}

: >"$out/table.txt"
part doctor 60 pytest-ddl doctor --tensorflow
part tests 110 $pytest -n 4 tests/strategies/test_gpus.py &
part smoke 110 $pytest -n 4 suites --ddl-tier=smoke --ddl-device=gpu --ddl-strategy=$one_gpu &
wait
part core 250 $pytest -n 7 suites --ddl-device=gpu --ddl-strategy=$one_gpu &
part planted 250 $python -m tests.evaluation --only planted --processes 7 --minutes 3.3 --results "$out/evaluation" &
wait
# Times are worth something only while nothing else runs.
part speed 70 $python asv_bench/harness.py --device gpu --only starts tests equivalence \
    --rounds 5 --tests 50 --json "$out/speed.json"
part gate 90 $python asv_bench/gate_power.py --launches 20 --cell one_device --minutes 1.3 --results "$out/gate"
cat "$out/table.txt"
! grep -qv 'status   0' "$out/table.txt"
