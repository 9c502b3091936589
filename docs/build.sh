#!/usr/bin/env bash
# Builds the site of the pages into build/site: open build/site/index.html in a browser.
# A broken link, a page that no menu has, and any other warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ATOMO_EXTRAS=${ATOMO_EXTRAS:-docs}
python=${ATOMO_VENV:-.venv}/bin/python
if ! "$python" -c "import furo, myst_parser" 2>/dev/null; then
  # shellcheck source=tools/environment.sh
  source tools/environment.sh
fi
"$python" -m sphinx --quiet --fail-on-warning --keep-going -b html -c docs . "${1:-build/site}"
