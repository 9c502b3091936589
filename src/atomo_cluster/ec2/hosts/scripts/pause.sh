#!/bin/bash
# Pauses the fuse of a host that EC2 will stop, until the host starts again (fuse.sh).
#   pause.sh pause     records the seconds that the fuse has left, and prints them
#   pause.sh go_on     deletes the record, if the host runs on
# `pause` also ends the supervisor: after the start it would take the cluster for an idle one.
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
