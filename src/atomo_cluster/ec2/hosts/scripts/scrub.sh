#!/bin/bash
# Removes the files of the cluster and of its jobs from this host before an image is made of it.
# `bootstrap` writes the cluster's files again. Environment, data sets and checkout stay. Hosts
# launched from the image must not have this cluster's key.
#   scrub.sh CHECKOUT
set -euo pipefail

checkout=$HOME/${1:?the checkout, below the home folder}
ssh_folder=$HOME/.ssh

if [ ! -x "$checkout/.venv/bin/python" ]; then
  echo "there is no environment in $checkout yet; \`bootstrap\` makes it" >&2
  exit 1
fi
if [ -s "$ssh_folder/atomo_cluster.pub" ] && [ -s "$ssh_folder/authorized_keys" ]; then
  grep -vF "$(cat "$ssh_folder/atomo_cluster.pub")" "$ssh_folder/authorized_keys" >"$ssh_folder/authorized_keys.new" || true
  chmod 600 "$ssh_folder/authorized_keys.new"
  mv "$ssh_folder/authorized_keys.new" "$ssh_folder/authorized_keys"
fi
rm -f "$ssh_folder"/atomo_cluster "$ssh_folder"/atomo_cluster.pub "$ssh_folder"/atomo_config \
  "$ssh_folder"/atomo_known_hosts "$HOME/.bash_history"
rm -rf "$HOME/.atomo" "$checkout/jobs" "$checkout/train.log" "$checkout/runs/.commands"
rm -f "$checkout"/hosts "$checkout"/hosts_alias "$checkout"/hosts_address
sync
