#!/usr/bin/env bash
# Passes the tests, on all cores: sets everything up on first use.
#   bash tests/run.sh                   all but the slow ones, of which it says how many there are
#   bash tests/run.sh --all             the slow ones too: what CI runs
#   bash tests/run.sh --long            and the long ones, for which CI has no time
#   bash tests/run.sh tests/codecs -x   arguments go to pytest
# ATOMO_DATA names a folder with the real MNIST and CIFAR-10 (docs/data.md); without it the tests
# that need them say that they were skipped.
set -euo pipefail
export ATOMO_EXTRAS=dev
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tools/environment.sh"
cd "$atomo_root"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # tests start several processes on few cores
unset PYTHONDONTWRITEBYTECODE # hundreds of processes would each compile every file they import
exec "$ATOMO_PYTHON" -m pytest -n auto --maxprocesses 8 "$@"
