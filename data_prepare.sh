#!/usr/bin/env bash
# Downloads and verifies data sets.
# `bash data_prepare.sh --help` lists the options.
set -euo pipefail
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/tools/environment.sh"
exec "$ATOMO_PYTHON" -m atomo prepare "$@"
