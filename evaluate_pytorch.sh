#!/usr/bin/env bash
# Follows the checkpoints of a run and evaluates each of them.
# `bash evaluate_pytorch.sh --help` lists the options.
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/environment.sh"
exec "$ATOMO_PYTHON" -m atomo evaluate "$@"
