#!/bin/bash
# Stands before a command of Slurm, by the name under which it is called, and writes down each call in
# `calls` beside its own directory. The file `lies` there makes it misbehave: each line `COMMAND HOW` is
# used up by one call.
#   fail      says that the controller cannot be reached, and does nothing
#   empty     does nothing and prints nothing
#   truncate  prints the first half of its answer
#   lost      does its work, and says that the answer was lost
#   silent    does its work and prints nothing
#   unknown   knows no job
#   hang      never answers
#   POSIX locale or not, in other words: `foreign` answers in another language
name=$(basename "$0")
here=$(cd "$(dirname "$0")/.." && pwd)
real=/usr/bin/$name
echo "$name $*" >>"$here/calls"

how=$(
    exec 9>"$here/lies.lock"
    flock 9
    [ -f "$here/lies" ] || exit 0
    grep -m 1 "^$name " "$here/lies" | cut -d " " -f 2
    awk -v name="$name" '$1 == name && !done { done = 1; next } { print }' "$here/lies" >"$here/lies.new"
    mv "$here/lies.new" "$here/lies"
)

case $how in
"")
    status=0
    "$real" "$@" || status=$?
    echo "answered $name" >>"$here/calls"
    exit "$status"
    ;;
fail)
    echo "$name: error: Unable to contact slurm controller (connect failure)" >&2
    exit 1
    ;;
empty) exit 0 ;;
truncate)
    answer=$("$real" "$@") || exit
    printf %s "${answer:0:${#answer}/2}"
    ;;
lost)
    "$real" "$@" >/dev/null 2>&1
    echo "$name: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
    ;;
silent) "$real" "$@" >/dev/null ;;
unknown)
    echo "slurm_load_jobs error: Invalid job id specified" >&2
    exit 1
    ;;
foreign)
    echo "Tâche enfilée"
    exit 0
    ;;
hang) sleep 100000 ;;
esac
