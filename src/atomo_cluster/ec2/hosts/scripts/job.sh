#!/bin/bash
# Jobs of the cluster, on its master; `pytorch_ec2.py` runs this over ssh, in the checkout there.
#
#   job.sh start QUEUE SHOWN   starts what standard input has, prints the job's number; QUEUE is yes
#                              or no: then it ends with 75 where another job runs
#   job.sh list                a line a job: number, state, code, three times, what it runs
#   job.sh log JOB LINES       its last lines; +1: all
#   job.sh follow JOB LINES    the same and all that comes, then ends with the job's exit code
#   job.sh stop JOB WAIT_S     has it write a checkpoint and end
#
# A job is a folder jobs/N. Whatever descends from it holds its lock, so that it lives as long as
# the lock is held, whoever kills what. JOB is a number, or `last`: what runs, or ran last.
set -u

taken=75 # EX_TEMPFAIL of sysexits.h: another job runs
absent=66 # EX_NOINPUT: there is no such job
lost=70 # it ended without a word: killed by force, or with its host

held() { ! flock -n "$1/lock" true; }

said() { cat "$1/$2" 2>/dev/null || true; }

numbers() {
  local folder
  for folder in jobs/[0-9]*; do [ -d "$folder" ] && echo "${folder#jobs/}"; done | sort -n
}

state() {
  if held "$1"; then
    if [ -e "$1/stopped" ]; then echo stopping
    elif [ -e "$1/started" ]; then echo running
    else echo queued; fi
  elif [ -e "$1/stopped" ]; then echo stopped
  elif [ ! -e "$1/code" ]; then echo lost
  elif [ "$(said "$1" code)" = 0 ]; then echo "done"
  else echo failed; fi
}

list() {
  local n job
  for n in $(numbers); do
    job=jobs/$n
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$n" "$(state "$job")" "$(said "$job" code)" \
      "$(said "$job" made)" "$(said "$job" started)" "$(said "$job" ended)" "$(said "$job" shown)"
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
  exit "$absent"
}

start() {
  local n=1
  exec 9>>.train.lock
  [ "$1" = yes ] || flock -n 9 || exit "$taken"
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
  setsid nohup bash -c "$BASH_EXECUTION_STRING" job run "$n" >"jobs/$n/log" 2>&1 </dev/null &
  echo $! >"jobs/$n/pid"
  echo "$n"
}

run() {
  local earlier
  for earlier in $(numbers); do # those that were asked for before, in their order
    [ "$earlier" -ge "$1" ] || flock "jobs/$earlier/lock" true 8>&- 9>&-
  done
  flock 9
  date +%s >"jobs/$1/started"
  ln -sfn "jobs/$1/log" train.log
  bash "jobs/$1/script"
  echo $? >"jobs/$1/code"
  date +%s >"jobs/$1/ended"
}

follow() {
  pick "$1"
  if held "$job"; then tail -n "$2" -s 0.2 -f --pid="$(said "$job" pid)" "$job/log"
  else tail -n "$2" "$job/log"; fi
  flock "$job/lock" true
  exit "$(cat "$job/code" 2>/dev/null || echo "$lost")"
}

stop() {
  local pid launcher
  pick "$1"
  held "$job" || { echo "job ${job#jobs/} has ended already"; exit 0; }
  : >"$job/stopped"
  pid=$(said "$job" pid)
  # Only its launcher is told, which tells the ranks: one that is killed takes the job with it. The
  # brackets keep the pattern from matching the shell that looks for it.
  launcher=$(pgrep -s "$pid" -f -- '[-]m atomo train') || launcher=-$pid
  # shellcheck disable=SC2086
  kill -TERM -- $launcher
  flock -w "$2" "$job/lock" true && exit 0
  echo "job ${job#jobs/} has not ended within $2 s; \`kill_python\` ends it by force" >&2
  exit "$taken"
}

case ${1:-} in
  start) start "${2:?yes or no}" "${3:?what is shown}" ;;
  run) run "${2:?number}" ;;
  list) list ;;
  log) pick "${2:?job}" && tail -n "${3:?lines}" "$job/log" ;;
  follow) follow "${2:?job}" "${3:?lines}" ;;
  stop) stop "${2:?job}" "${3:?seconds}" ;;
esac
