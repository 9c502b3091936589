#!/bin/bash
# The fuse of a host that EC2 is to stop does not burn until it is started again (fuse.sh).
#   pause.sh pause     notes what the fuse has left, and prints it, in seconds
#   pause.sh go_on     forgets that, where the host runs on
# A supervisor would take a stopped cluster for an idle one when it wakes: it ends with the pause.
set -eu

folder=${ATOMO_ROOT:-}/etc/atomo
supervisor=atomo-supervisor

case ${1:?pause or go_on} in
  pause)
    if [ ! -s "$folder/deadline" ]; then
      echo "this host has no fuse that could wait" >&2
      exit 1
    fi
    left=$(($(cat "$folder/deadline") - $(date +%s)))
    if [ "$left" -lt 300 ]; then
      echo "the fuse of this host has $left s left; \`extend\` it first" >&2
      exit 1
    fi
    rm -f "$folder/supervised"
    if systemctl is-active --quiet "$supervisor"; then
      systemctl disable --quiet --now "$supervisor"
      touch "$folder/supervised"
    fi
    echo "$left" >"$folder/paused.new"
    mv "$folder/paused.new" "$folder/paused"
    echo "$left"
    ;;
  go_on)
    rm -f "$folder/paused"
    if [ -e "$folder/supervised" ]; then
      systemctl enable --quiet --now "$supervisor"
      rm "$folder/supervised"
    fi
    ;;
esac
