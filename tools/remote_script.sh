#!/usr/bin/env bash
# Runs one step of the setup of a host. `tools/pytorch_ec2.py bootstrap` runs the steps over ssh. Each
# step can be repeated at any time and deletes nothing.
#
#   remote_script.sh key                    on the master: makes and prints the key of the cluster
#   remote_script.sh join                   installs the key and the addresses of the other hosts, from a
#                                           tar archive on standard input
#   remote_script.sh check                  on the master: logs in to each host of standard input
#   remote_script.sh nfs ADDRESS MOUNT OUT  mounts the shared folder, and makes OUT for this user; `lustre`
#                                           instead of `nfs` mounts a file system of FSx
#   remote_script.sh serve MOUNT OUT        on the master: exports MOUNT from its disk to the hosts of
#                                           standard input, and makes OUT for this user
#   remote_script.sh links [CIDR]           on the master: prints the speed of MPI over each link; with CIDR,
#                                           MPI uses only its addresses
#   remote_script.sh fuse                   fails if no fuse is set
#   remote_script.sh supervise              on the master: starts the supervisor with the files of the tar
#                                           archive on standard input
set -euo pipefail

ssh_folder=$HOME/.ssh
key=$ssh_folder/atomo_cluster
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "$1" >&2
  exit 1
}

make_key() {
  (umask 077 && mkdir -p "$ssh_folder")
  [ -f "$key" ] || ssh-keygen -q -t ed25519 -N '' -C atomo-cluster -f "$key"
  cat "$key"
}

join() {
  local fresh
  (umask 077 && mkdir -p "$ssh_folder" "$HOME/.atomo")
  fresh=$(mktemp -d "$ssh_folder/atomo_join.XXXXXX")
  tar -xf - -C "$fresh"
  authorize "$fresh"
  connect "$fresh"
  mv "$fresh/master" "$HOME/.atomo/master"
  mv "$fresh"/hosts "$fresh"/hosts_alias "$fresh"/hosts_address "$checkout/"
  rmdir "$fresh"
}

authorize() {
  local public admitted=$ssh_folder/authorized_keys
  public=$(ssh-keygen -y -f "$1/key") || fail "the cluster's key is damaged"
  mv "$1/key" "$key"
  echo "$public" >"$key.pub"
  touch "$admitted"
  chmod 600 "$admitted"
  grep -qF "$public" "$admitted" || printf '\n%s\n' "$public" >>"$admitted"
}

connect() {
  local settings=$ssh_folder/atomo_config known=$ssh_folder/atomo_known_hosts line
  sed -i "s|KEY|$key|; s|KNOWN|$known|" "$1/ssh_config"
  mv "$1/ssh_config" "$settings"
  mv "$1/known_hosts" "$known"
  line="Include $settings"
  touch "$ssh_folder/config"
  if ! grep -qxF "$line" "$ssh_folder/config"; then
    # At the start of the file: an Include below a Host line applies to that host only.
    { echo "$line" && cat "$ssh_folder/config"; } >"$1/config"
    mv "$1/config" "$ssh_folder/config"
  fi
  chmod 600 "$ssh_folder/config"
}

check() {
  local host
  while read -r host; do
    ssh -n -F "$ssh_folder/config" -o BatchMode=yes -o ConnectTimeout=15 "$host" true ||
      fail "the master cannot log in to $host with the cluster's key"
  done
}

install_nfs() {
  command -v mount.nfs4 >/dev/null && return
  if command -v apt-get >/dev/null; then
    sudo -n apt-get -qq update && sudo -n apt-get -qq -y install nfs-common
  else
    sudo -n dnf -q -y install nfs-utils
  fi
}

install_lustre() {
  local keys=/usr/share/keyrings/fsx-ubuntu-public-key.gpg repository=https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu
  command -v mount.lustre >/dev/null && return
  if ! command -v apt-get >/dev/null; then
    sudo -n dnf -q -y install lustre-client
    return
  fi
  curl -sSf https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc |
    gpg --dearmor | sudo -n tee "$keys" >/dev/null
  # shellcheck source=/dev/null
  echo "deb [signed-by=$keys] $repository $(. /etc/os-release && echo "$VERSION_CODENAME") main" |
    sudo -n tee /etc/apt/sources.list.d/fsx-lustre.list >/dev/null
  sudo -n apt-get -qq update
  sudo -n apt-get -qq -y install "lustre-client-modules-$(uname -r)" ||
    fail "AWS has no Lustre client for kernel $(uname -r): take an image whose kernel it serves, or storage of EFS"
}

mount_nfs() {
  sudo -n mount -t nfs4 -o nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport "$1" "$2"
}

mount_lustre() {
  sudo -n mount -t lustre -o relatime,flock "$1" "$2"
}

# KIND is nfs or lustre; SOURCE is a source for mount, or the address of an NFS server.
mount_shared() {
  local kind=$1 source=$2 mount=$3 out=$4 there
  [[ $source == */* ]] || source=$source:/
  there=$(findmnt -n -o SOURCE --mountpoint "$mount" || true)
  if [ -z "$there" ]; then
    if [ -d "$mount" ] && [ -n "$(ls -A "$mount")" ]; then
      fail "$mount is not empty: mounting there would hide what is in it; move it away, or choose another nfs_mount_point"
    fi
    "install_$kind"
    sudo -n mkdir -p "$mount"
    "mount_$kind" "$source" "$mount"
  elif [ "$kind" = nfs ] && [ "$there" != "$source" ]; then # Lustre shows addresses instead of names
    fail "$mount has $there mounted, not $source; unmount it, or choose another nfs_mount_point"
  fi
  if [ ! -d "$out" ]; then
    sudo -n mkdir -p "$out"
    sudo -n chown "$(id -u):$(id -g)" "$out"
  fi
}

serve_nfs() {
  local mount=$1 out=$2 host exports="" folder
  [ -z "$(findmnt -n -o SOURCE --mountpoint "$mount" || true)" ] ||
    fail "$mount is mounted from elsewhere; unmount it, or choose another nfs_mount_point"
  command -v exportfs >/dev/null || install_server
  for folder in "$mount" "$out"; do
    [ -d "$folder" ] || { sudo -n mkdir -p "$folder" && sudo -n chown "$(id -u):$(id -g)" "$folder"; }
  done
  while read -r host; do
    exports="$exports $host(rw,sync,fsid=0,no_subtree_check)"
  done
  sudo -n mkdir -p "${ATOMO_ROOT:-}/etc/exports.d"
  echo "$mount$exports" | sudo -n tee "${ATOMO_ROOT:-}/etc/exports.d/atomo.exports" >/dev/null
  sudo -n systemctl enable --quiet --now nfs-server
  sudo -n exportfs -ra
}

install_server() {
  if command -v apt-get >/dev/null; then
    sudo -n apt-get -qq update && sudo -n apt-get -qq -y install nfs-kernel-server
  else
    sudo -n dnf -q -y install nfs-utils
  fi
}

links() {
  local network=${1:-} hosts line python mpirun
  # shellcheck source=tools/environment.sh
  ATOMO_INSTALL=no source "$checkout/tools/environment.sh"
  python=$("$ATOMO_PYTHON" -c 'import sys; print(sys.executable)')
  mpirun=$(dirname "$python")/mpirun
  [ -x "$mpirun" ] || mpirun=mpirun
  hosts=$(sed 's/$/:1/' "$checkout/hosts_address" | paste -sd, -)
  line=(timeout 240 "$mpirun" -n "$(wc -l <"$checkout/hosts_address")" --map-by slot
    --bind-to none --host "$hosts")
  [ "$(id -u)" != 0 ] || line+=(--allow-run-as-root)
  [ -z "$network" ] || line+=(--mca btl_tcp_if_include "$network" --prtemca prte_if_include "$network")
  "${line[@]}" "$python" "$checkout/src/atomo_cluster/ec2/hosts/scripts/measure_links.py" </dev/null
}

supervise() {
  local folder=$HOME/.atomo/supervisor unit=/etc/systemd/system/atomo-supervisor.service
  (umask 077 && mkdir -p "$folder")
  if [ ! -d /run/systemd/system ]; then # replaces a supervisor after the end of its job
    exec 8>>"$folder/lock"
    flock -n 8 || { kill "$(cat "$folder/pid")" && flock -w 60 8; } ||
      fail "a supervisor runs already, and does not end"
  fi
  tar -xf - -C "$folder"
  install_client
  mkdir -p "$folder/$(cluster_name)"
  mv "$folder/hosts.json" "$folder/known_hosts" "$folder/$(cluster_name)/"
  cat >"$folder/start.sh" <<END
export HOME='$HOME' ATOMO_PYTHON='$ATOMO_PYTHON' ATOMO_VENV='$atomo_venv'
echo \$\$ >'$folder/pid'
cd '$checkout' && . '$folder/run.sh'
END
  if [ -d /run/systemd/system ]; then
    sed "s|USER|$(id -un)|; s|HOME|$HOME|" "$checkout/src/atomo_cluster/ec2/hosts/scripts/atomo-supervisor.service" |
      sudo -n tee "$unit" >/dev/null
    sudo -n systemctl daemon-reload
    sudo -n systemctl enable --quiet atomo-supervisor
    sudo -n systemctl restart atomo-supervisor
  else
    setsid nohup bash "$folder/start.sh" >>"$folder/log" 2>&1 </dev/null & # keeps the lock
  fi
}

# Installs the AWS client into the environment of the job.
install_client() {
  # shellcheck source=tools/environment.sh
  source "$checkout/tools/environment.sh"
  if ! "$ATOMO_PYTHON" -c 'import boto3, rich, yaml' 2>/dev/null; then
    (ATOMO_EXTRAS=ec2 && source "$checkout/tools/environment.sh")
  fi
}

cluster_name() {
  # shellcheck disable=SC2031  # a subshell that installs extras sets the same value
  "$ATOMO_PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["name"])' <"$folder/cluster.yaml"
}

case ${1:-} in
  key) make_key ;;
  join) join ;;
  check) check ;;
  supervise) supervise ;;
  links) links "${2:-}" ;;
  serve) serve_nfs "${2:?mount point}" "${3:?output folder}" ;;
  nfs | lustre) mount_shared "$1" "${2:?address}" "${3:?mount point}" "${4:?output folder}" ;;
  fuse)
    [ -s "${ATOMO_ROOT:-}/etc/atomo/deadline" ] ||
      fail "this host has no fuse: its image ran no cloud-init, so it will not end by itself"
    ;;
  *)
    sed -n '2,/^set/{/^#/p}' "$0"
    exit 2
    ;;
esac
