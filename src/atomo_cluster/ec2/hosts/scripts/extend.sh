#!/bin/bash
# Moves the fuse of this host. The file is replaced as a whole, and the planned shutdown by the new
# one: at no moment is there none.
#   extend.sh SECONDS     the new deadline, in seconds since 1970
set -eu

root=${ATOMO_ROOT:-}
deadline=$root/etc/atomo/deadline
if [ ! -s "$deadline" ]; then
  echo "this host has no fuse that could be moved" >&2
  exit 1
fi
before=$(cat "$deadline")
set_to() {
  echo "$1" >"$deadline.new" &&
    mv "$deadline.new" "$deadline" &&
    bash "$root/usr/local/lib/atomo/fuse.sh" 0
}
set_to "${1:?the new deadline}" && exit
code=$?
set_to "$before" || true # a deadline that the planned shutdown does not follow would be a lie
exit "$code"
