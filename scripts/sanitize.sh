#!/bin/sh
# The fused kernels under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.
# Usage: scripts/sanitize.sh [PLAN...]; IMAGES=133 images a run, TOOLS="memcheck ..." to choose.
# Exits with 1 where a tool finds an error or a label is wrong, with 2 where it cannot run.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python3}
IMAGES=${IMAGES:-133}
TOOLS=${TOOLS:-memcheck racecheck initcheck synccheck}
SANITIZER=${SANITIZER:-compute-sanitizer}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

if ! command -v "$SANITIZER" >/dev/null; then
    echo "compute-sanitizer: expected it on PATH (it comes with the CUDA toolkit), found none" >&2
    exit 2
fi
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
# Compiles the kernels, so that no tool watches the compiler.
"$PYTHON" scripts/sanitize_plans.py --images "$IMAGES" "$@"
status=$?
[ $status -le 1 ] || exit 2
[ $status -eq 0 ] || exit 1

status=0
for tool in $TOOLS; do
    options="--tool $tool --error-exitcode 9 --print-limit 20"
    # The bindings ask the driver for functions that it may not have: no error of ours.
    [ "$tool" = memcheck ] && options="$options --report-api-errors no"
    # shellcheck disable=SC2086
    if "$SANITIZER" $options \
        "$PYTHON" scripts/sanitize_plans.py --images "$IMAGES" "$@" >"$log" 2>&1; then
        verdict=clean
    else
        verdict=FAILED
        status=1
        cat "$log"
    fi
    echo "$tool: $verdict; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1)"
done
exit $status
