#!/usr/bin/env bash
# Runs the tests on all cores; sets up the environment on first use.
#   bash tests/run.sh                   all tests but the slow tests; prints the number of those left out
#   bash tests/run.sh --all             slow tests too, as in CI
#   bash tests/run.sh --long            long tests too, for which CI has no time
#   bash tests/run.sh tests/codecs -x   arguments go to pytest
# ATOMO_DATA names a folder with the real MNIST and CIFAR-10 (docs/data.md); without it the tests
# that need them are reported as skipped.
set -euo pipefail
export ATOMO_EXTRAS=dev
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tools/environment.sh"
cd "$atomo_root"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # tests start several processes on few cores
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would each compile every file they import
exec "$ATOMO_PYTHON" -m pytest -n auto --maxprocesses 8 "$@"
