# shellcheck shell=bash
# Sourced by the scripts at the top: makes .venv on first use, and again only when pyproject.toml
# has changed. Afterwards $ATOMO_PYTHON is its Python.
#
#   ATOMO_VENV    where the environment lies (default: .venv beside the scripts)
#   ATOMO_EXTRAS  extras to install as well, e.g. "dev"
#   ATOMO_INSTALL "no": fail where something would have to be installed, as on virtual hosts, which
#                 have no network, and whose environment is that of the machine

set -euo pipefail

atomo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
atomo_venv=${ATOMO_VENV:-$atomo_root/.venv}
ATOMO_PYTHON=$atomo_venv/bin/python

atomo_find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "atomo: Python 3.10 or newer is needed, and none is on the PATH" >&2
  return 2
}

atomo_install() {
  local python log
  python=$(atomo_find_python)
  log=$atomo_venv/install.log
  echo "atomo: installing into $atomo_venv (once; PyTorch is large, this takes some minutes) ..." >&2
  if [ ! -x "$ATOMO_PYTHON" ]; then
    "$python" -m venv "$atomo_venv" || {
      echo "atomo: '$python -m venv' failed; on Debian and Ubuntu: apt install python3-venv" >&2
      return 2
    }
  fi
  # pip would compile some 19,000 files one by one, a good minute, of which few are ever imported.
  "$ATOMO_PYTHON" -m pip install --disable-pip-version-check --quiet --no-compile \
    --editable "$atomo_root${ATOMO_EXTRAS:+[$ATOMO_EXTRAS]}" >"$log" 2>&1 || {
    cat "$log" >&2
    echo "atomo: the installation failed; its output is above and in $log" >&2
    return 2
  }
  # What every rank imports is compiled here, once: ranks would each do so, and a user who may not
  # write here every time.
  env -u PYTHONDONTWRITEBYTECODE "$ATOMO_PYTHON" -c "import atomo.cli.rank" >>"$log" 2>&1 || {
    cat "$log" >&2
    echo "atomo: what was installed cannot be imported; why is above and in $log" >&2
    return 2
  }
}

# What was installed: the dependencies and extras that the stamp names.
atomo_wanted="$(cksum <"$atomo_root/pyproject.toml") ${ATOMO_EXTRAS:-}"
atomo_stamp=$atomo_venv/installed
if ! { [ -x "$ATOMO_PYTHON" ] && [ -f "$atomo_stamp" ] && grep -qxF "$atomo_wanted" "$atomo_stamp"; }; then
  if [ "${ATOMO_INSTALL:-yes}" = no ]; then
    echo "atomo: $atomo_venv is not what pyproject.toml asks for, and ATOMO_INSTALL=no; give any of the scripts with --help where it may be installed" >&2
    return 2
  elif [ -x "$ATOMO_PYTHON" ] && ! [ -w "$atomo_venv" ]; then
    # As in a container that runs as another user than the one that made it.
    echo "atomo: $atomo_venv was made for another pyproject.toml or other extras, and you may not write there: used as it is" >&2
  else
    atomo_install
    echo "$atomo_wanted" >>"$atomo_stamp"
  fi
fi
