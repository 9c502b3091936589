#!/usr/bin/env bash
# Sets up a cluster from this machine: keys, code, shared folder, environment.
#   tools/local_script.sh PS_IP [OPTION ...]    PS_IP: address of the master, from `get_hosts`
# Options are those of `tools/pytorch_ec2.py bootstrap`. Your private key stays on this machine.
set -euo pipefail
case ${1:---help} in
  -*)
    sed -n '2,4p' "$0"
    exit 2
    ;;
esac
export ATOMO_EXTRAS=${ATOMO_EXTRAS:-ec2}
# shellcheck source=tools/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec "$ATOMO_PYTHON" "$atomo_root/tools/pytorch_ec2.py" bootstrap --master "$@"
