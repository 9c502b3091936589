#!/bin/bash
# Moves the fuse of this host. File and planned shutdown are each replaced in one step, so the host
# has a fuse at every moment.
#   extend.sh SECONDS     SECONDS is the new deadline, in seconds since 1970
set -eu

root=${ATOMO_ROOT:-}
deadline=$root/etc/atomo/deadline
if [ ! -s "$deadline" ]; then
  echo "this host has no fuse that could be moved" >&2
  exit 1
fi
before=$(cat "$deadline")
set_deadline() { # SECONDS
  echo "$1" >"$deadline.new" &&
    mv "$deadline.new" "$deadline" &&
    bash "$root/usr/local/lib/atomo/fuse.sh" 0
}
set_deadline "${1:?the new deadline}" && exit
code=$?
set_deadline "$before" || true # the file must not differ from the planned shutdown
exit "$code"
