# shellcheck shell=bash
# The scripts in the root folder source this file. It makes .venv at the first use and after a change
# of pyproject.toml, and sets $ATOMO_PYTHON to the environment's Python.
#
#   ATOMO_VENV    folder of the environment (default: .venv next to the scripts)
#   ATOMO_EXTRAS  extras to install besides those of `atomo train`, e.g. "dev"
#   ATOMO_INSTALL "no": fail instead of installing, as on virtual hosts, which have no network and
#                 share the environment of the machine

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
  # Without --no-compile, pip compiles about 19,000 files in about a minute; few are ever imported.
  "$ATOMO_PYTHON" -m pip install --disable-pip-version-check --quiet --no-compile \
    --editable "$atomo_root[train,mpi${ATOMO_EXTRAS:+,$ATOMO_EXTRAS}]" >"$log" 2>&1 || {
    cat "$log" >&2
    echo "atomo: the installation failed; its output is above and in $log" >&2
    return 2
  }
  # Compile the modules of a rank once. Otherwise each rank compiles them, and a user without write
  # access to the folder compiles them in every run.
  env -u PYTHONDONTWRITEBYTECODE "$ATOMO_PYTHON" -c "import atomo.cli.rank" >>"$log" 2>&1 || {
    cat "$log" >&2
    echo "atomo: the installed package cannot be imported; the error is above and in $log" >&2
    return 2
  }
}

# The stamp names the installed dependencies and extras.
atomo_required="$(cksum <"$atomo_root/pyproject.toml") ${ATOMO_EXTRAS:-}"
atomo_stamp=$atomo_venv/installed
if ! { [ -x "$ATOMO_PYTHON" ] && [ -f "$atomo_stamp" ] && grep -qxF "$atomo_required" "$atomo_stamp"; }; then
  if [ "${ATOMO_INSTALL:-yes}" = no ]; then
    echo "atomo: $atomo_venv is not what pyproject.toml asks for, and ATOMO_INSTALL=no; run one of the scripts with --help on a machine that may install" >&2
    return 2
  elif [ -x "$ATOMO_PYTHON" ] && ! [ -w "$atomo_venv" ]; then
    # As in a container that runs as another user than the owner of the environment.
    echo "atomo: $atomo_venv was made for another pyproject.toml or other extras, and is not writable: used without an update" >&2
  else
    atomo_install
    echo "$atomo_required" >>"$atomo_stamp"
  fi
fi
