#!/bin/bash
# Ends what up.sh started in DIR, its jobs included: down.sh DIR.
dir=$1
export SLURM_CONF="$dir/slurm.conf"

pids() {
    cat "$dir"/slurmd.n?.pid "$dir/slurmctld.pid" "$dir/munge/pid" 2>/dev/null
}

timeout 5 scancel --full --signal=KILL --user="$(id -un)" 2>/dev/null
timeout 5 scancel --user="$(id -un)" 2>/dev/null
for _ in $(seq 100); do
    [ -z "$(timeout 5 squeue --noheader 2>/dev/null)" ] && break
    sleep 0.1
done
all=$(pids)
# shellcheck disable=SC2086
[ -n "$all" ] && kill $all 2>/dev/null
for _ in $(seq 50); do
    # shellcheck disable=SC2086
    kill -0 $all 2>/dev/null || exit 0
    sleep 0.1
done
# shellcheck disable=SC2086
kill -KILL $all 2>/dev/null
exit 0
