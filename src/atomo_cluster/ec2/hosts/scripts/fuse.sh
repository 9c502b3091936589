#!/bin/bash
# Ends this host at its deadline. Runs at every boot, since a restart forgets a planned shutdown.
#   fuse.sh MINUTES     the first run sets the deadline; later runs keep it
# An image made of a host contains that host's deadline: a host with another id sets a new one.
# The time that a paused fuse has left (pause.sh) counts from the next start.
set -u

folder=${ATOMO_ROOT:-}/etc/atomo
deadline=$folder/deadline
minutes=${1:?minutes until the end}

mkdir -p "$folder"
host=$(cat "${ATOMO_ROOT:-}/var/lib/cloud/data/instance-id" 2>/dev/null || true)
if [ -n "$host" ]; then
  [ ! -s "$folder/host" ] || [ "$(cat "$folder/host")" = "$host" ] || rm -f "$deadline" "$folder/paused"
  echo "$host" >"$folder/host"
fi
now=$(date +%s)
if [ -s "$folder/paused" ]; then
  echo $((now + $(cat "$folder/paused"))) >"$deadline.new"
  mv "$deadline.new" "$deadline" && rm "$folder/paused"
fi
[ -s "$deadline" ] || echo $((now + minutes * 60)) >"$deadline"
left=$((($(cat "$deadline") - now) / 60))
[ "$left" -ge 0 ] || left=0
shutdown -h "+$left" "atomo: the fuse of this cluster"
