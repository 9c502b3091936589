#!/bin/bash
# Has the cluster's job write a checkpoint and end, as Ctrl-C would. The job is on the master,
# whichever host this is; bootstrap has written down which that is.
#   leave_job.sh [ID]     the host that is taken back, for the supervisor to replace
set -u

# The brackets keep the pattern from matching the shell that looks for it.
job=${ATOMO_JOB:-'[-]m atomo train'}
id=${1:-}
notice="mkdir -p ~/.atomo && echo $id >>~/.atomo/notices; "
[[ $id =~ ^[a-z0-9-]+$ ]] || notice=
master=$(cat "$HOME/.atomo/master" 2>/dev/null || true)

if [ -n "$master" ]; then
  ssh -F "$HOME/.ssh/config" -o BatchMode=yes -o ConnectTimeout=10 "$master" \
    "${notice}pkill -TERM -f -- '$job'" && exit 0
fi
bash -c "$notice"
pkill -TERM -f -- "$job"
