#!/bin/bash
# Ends this host at its deadline. Runs at every boot, since a restart forgets a planned shutdown.
#   fuse.sh MINUTES     the first run sets the deadline; later ones keep it
set -u

folder=${ATOMO_ROOT:-}/etc/atomo
deadline=$folder/deadline
minutes=${1:?minutes until the end}

mkdir -p "$folder"
now=$(date +%s)
[ -s "$deadline" ] || echo $((now + minutes * 60)) >"$deadline"
left=$((($(cat "$deadline") - now) / 60))
[ "$left" -ge 0 ] || left=0
shutdown -h "+$left" "atomo: the fuse of this cluster"
