#!/usr/bin/env bash
# Trains: sets everything up on first use. With no options, LeNet on the embedded digits with ATOMO.
# `bash run_pytorch.sh --help` lists the options.
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/environment.sh"
exec "$ATOMO_PYTHON" -m atomo train "$@"
