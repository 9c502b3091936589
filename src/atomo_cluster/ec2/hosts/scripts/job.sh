#!/bin/bash
# Runs the cluster's jobs on its master. `pytorch_ec2.py` sends this script over ssh and runs it in
# the checkout.
#
#   job.sh start QUEUE SHOWN FOLDER HOSTS LEAST
#                              starts the script on standard input; prints the job's number and folder.
#                              QUEUE is yes or no; no: exits with 75 if another job runs
#   job.sh list                prints a line per job: number, state, code, three times, folder, SHOWN
#   job.sh log JOB LINES       prints the last lines of its log; +1: all
#   job.sh follow JOB LINES    prints them and all that follow, then exits with the job's code
#   job.sh stop JOB WAIT_S     makes it write a checkpoint and end
#
# A job is a folder jobs/N. All of its processes hold its lock, so the job runs as long as the lock is
# held, whatever was killed. JOB is a number, or `last`: the job that runs, or that ran last.
#
# FOLDER selects the folder of the results. `=DIR` is that folder. `OUT` is its parent: the job
# continues in the folder of the last job with the same options if that is not done, or makes a new
# one. OUT/.commands records the options of each folder, also for another master that shares OUT. The
# script gets the folder in ATOMO_TRAIN_DIR.
#
# HOSTS is the number of hosts, and LEAST the fewest with which the job starts; empty: the script has
# hosts of its own. The script gets the hosts that answer ssh in ATOMO_JOB_HOSTS and ATOMO_JOB_N.
set -u

busy_code=75 # EX_TEMPFAIL of sysexits.h: another job runs
absent_code=66 # EX_NOINPUT: there is no such job
few_code=9 # that of `atomo` with fewer workers than --min-workers
lost_code=70 # the job has no exit code: it was killed by force, or its host ended

is_locked() { ! flock -n "$1/lock" true; }

field() { cat "$1/$2" 2>/dev/null || true; }

numbers() {
  local folder
  for folder in jobs/[0-9]*; do [ -d "$folder" ] && echo "${folder#jobs/}"; done | sort -n
}

state() {
  if is_locked "$1"; then
    if [ -e "$1/stopped" ]; then echo stopping
    elif [ -e "$1/started" ]; then echo running
    else echo queued; fi
  elif [ -e "$1/stopped" ]; then echo stopped
  elif [ ! -e "$1/code" ]; then echo lost
  elif [ "$(field "$1" code)" = 0 ]; then echo "done"
  else echo failed; fi
}

list() {
  local n job
  for n in $(numbers); do
    job=jobs/$n
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$n" "$(state "$job")" "$(field "$job" code)" \
      "$(field "$job" made)" "$(field "$job" started)" "$(field "$job" ended)" \
      "$(field "$job" folder)" "$(field "$job" shown)"
  done
}

pick() { # sets `job`
  local n
  job=
  if [ "$1" = last ]; then
    for n in $(numbers); do
      job=jobs/$n
      [ "$(state "$job")" = running ] && return
    done
  elif [ -d "jobs/$1" ]; then
    job=jobs/$1
  fi
  [ -n "$job" ] && return
  echo "no job ${1/last/has run here yet}; \`jobs\` lists them" >&2
  exit "$absent_code"
}

in_use() { # FOLDER: succeeds if a job waits, runs or is done in it
  local n
  for n in $(numbers); do
    [ "$(field "jobs/$n" folder)" = "$1" ] || continue
    case $(state "jobs/$n") in queued | running | stopping | "done") return 0 ;; esac
  done
  return 1
}

is_complete() { # FOLDER: succeeds if its run took all steps; an interrupted run has a marker too
  grep -q '"reason": "done"' "$1/finished.json" 2>/dev/null
}

folder_of() { # JOB SHOWN FOLDER: prints the folder of the job's results
  local records=$3/.commands name
  case $3 in
    "") return ;;
    =*) echo "${3#=}" && return ;;
  esac
  mkdir -p "$records" 2>/dev/null
  # shellcheck disable=SC2045 # this function makes the names
  for name in $(ls -1t "$records" 2>/dev/null); do # the newest first
    [ "$(field "$records" "$name")" = "$2" ] || continue
    is_complete "$3/$name" || in_use "$3/$name" || { echo "$3/$name" && return; }
    break
  done
  name=job-$1-$(date -u +%Y%m%d-%H%M%S)
  { echo "$2" >"$records/$name"; } 2>/dev/null # on failure the job reports the cause
  echo "$3/$name"
}

start() {
  local n=1
  exec 9>>.train.lock
  [ "$1" = yes ] || flock -n 9 || exit "$busy_code"
  exec 7>>.start.lock
  flock 7 # jobs that start at the same time take different folders
  mkdir -p jobs || exit 1
  until mkdir "jobs/$n" 2>/dev/null; do
    [ -d "jobs/$n" ] || exit 1
    n=$((n + 1))
  done
  exec 8>>"jobs/$n/lock"
  flock 8
  cat >"jobs/$n/script"
  echo "$2" >"jobs/$n/shown"
  date +%s >"jobs/$n/made"
  folder_of "$n" "$2" "$3" >"jobs/$n/folder"
  setsid nohup bash -c "$BASH_EXECUTION_STRING" job run "$n" "$4" "$5" \
    >"jobs/$n/log" 2>&1 </dev/null 7>&- &
  echo $! >"jobs/$n/pid"
  printf '%s\t%s\n' "$n" "$(field "jobs/$n" folder)"
}

answers() { # HOST: succeeds if its sshd accepts the key
  timeout 30 ssh -n -o BatchMode=yes -o ConnectTimeout=10 "$1" true >/dev/null 2>&1 8>&- 9>&-
}

find_hosts() { # JOB LEAST: sets ATOMO_JOB_HOSTS and ATOMO_JOB_N to the hosts that answer
  local hosts host silent="" up=jobs/$1/hosts
  [ -s hosts_address ] || return 0 # `bootstrap` writes it
  mapfile -t hosts <hosts_address
  mkdir "jobs/$1/up"
  : >"jobs/$1/up/${hosts[0]}" # this host
  for host in "${hosts[@]:1}"; do
    { answers "$host" && : >"jobs/$1/up/$host"; } &
  done
  wait
  for host in "${hosts[@]}"; do
    if [ -e "jobs/$1/up/$host" ]; then echo "$host" >>"$up"
    else silent="$silent $host"; fi
  done
  ATOMO_JOB_N=$(wc -l <"$up")
  [ -n "$silent" ] || return 0
  ATOMO_JOB_HOSTS=$up
  echo "${#hosts[@]} hosts, of which these do not answer ssh from the master:$silent"
  if [ "$ATOMO_JOB_N" -lt "$2" ]; then
    echo "the job does not start: it needs $2 hosts (--min-workers), and $ATOMO_JOB_N answer;" \
      "\`launch\` and \`bootstrap\` replace hosts that are gone"
    return "$few_code"
  fi
  echo "the job starts with the $ATOMO_JOB_N others"
}

run() { # JOB HOSTS LEAST: runs its script after the jobs before it
  local earlier code=0
  for earlier in $(numbers); do # earlier jobs run first, in their order
    [ "$earlier" -ge "$1" ] || flock "jobs/$earlier/lock" true 8>&- 9>&-
  done
  flock 9
  date +%s >"jobs/$1/started"
  ln -sfn "jobs/$1/log" train.log
  export ATOMO_JOB_HOSTS=hosts_address ATOMO_JOB_N=$2 ATOMO_TRAIN_DIR
  ATOMO_TRAIN_DIR=$(field "jobs/$1" folder)
  [ -z "$ATOMO_TRAIN_DIR" ] || echo "job $1 trains in $ATOMO_TRAIN_DIR"
  [ -z "$3" ] || find_hosts "$1" "$3" || code=$?
  [ "$code" != 0 ] || bash "jobs/$1/script" || code=$?
  echo "$code" >"jobs/$1/code"
  date +%s >"jobs/$1/ended"
}

follow() {
  pick "$1"
  if is_locked "$job"; then tail -n "$2" -s 0.2 -f --pid="$(field "$job" pid)" "$job/log"
  else tail -n "$2" "$job/log"; fi
  flock "$job/lock" true
  exit "$(cat "$job/code" 2>/dev/null || echo "$lost_code")"
}

stop() {
  local pid launcher
  pick "$1"
  is_locked "$job" || { echo "job ${job#jobs/} has ended already"; exit 0; }
  : >"$job/stopped"
  pid=$(field "$job" pid)
  # The signal goes to the launcher alone, which forwards it: a killed rank would abort the job. The
  # brackets keep the pattern from matching this shell.
  launcher=$(pgrep -s "$pid" -f -- '[-]m atomo train') || launcher=-$pid
  # shellcheck disable=SC2086
  kill -TERM -- $launcher
  flock -w "$2" "$job/lock" true && exit 0
  echo "job ${job#jobs/} has not ended within $2 s; \`kill_python\` ends it by force" >&2
  exit "$busy_code"
}

case ${1:-} in
  start) start "${2:?yes or no}" "${3:?what is shown}" "${4-}" "${5-}" "${6-}" ;;
  run) run "${2:?number}" "${3-}" "${4-}" ;;
  list) list ;;
  log) pick "${2:?job}" && tail -n "${3:?lines}" "$job/log" ;;
  follow) follow "${2:?job}" "${3:?lines}" ;;
  stop) stop "${2:?job}" "${3:?seconds}" ;;
esac
