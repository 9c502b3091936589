#!/bin/bash
# Waits for EC2's two-minute notice that it takes this spot instance back, then makes the job write
# a checkpoint and end.
#   spot_watch.sh USER     USER owns the job
set -u

metadata=${ATOMO_METADATA:-http://169.254.169.254}/latest
user=${1:?the user who owns the job}
leave=$(dirname "$0")/leave_job.sh

metadata_of() { # PATH
  local token
  token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/api/token") &&
    curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/$1"
}

until metadata_of spot/instance-action; do
  sleep "${ATOMO_POLL_S:-5}"
done
id=$(metadata_of instance-id || true)
echo ": EC2 takes this host back in two minutes; the job is told to leave"
if [ "$(id -un)" = "$user" ]; then
  exec bash "$leave" "$id"
fi
exec runuser -u "$user" -- bash "$leave" "$id"
