#!/bin/bash
# Starts two Slurm clusters, hq1 and hq2, with one accounting: two.sh up DIR BASEPORT, for tests by hand.
# Needs Debian's packages slurmdbd and mariadb-server besides those of up.sh. The ports BASEPORT to
# BASEPORT+15 must be free. Two qos, low and high, exist: a job of high requeues one of low.
# SLURM_CONF=DIR/hq1/slurm.conf selects a cluster. two.sh down DIR ends both.
set -eu
PATH="$PATH:/usr/sbin:/sbin"
here=$(cd "$(dirname "$0")" && pwd)
dir=$2

down() {
    "$here/down.sh" "$dir/hq1"
    "$here/down.sh" "$dir/hq2"
    for name in slurmdbd mariadb; do
        pid=$(cat "$dir/$name.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
    done
    "$here/down.sh" "$dir" # munge
}

# Waits up to twenty seconds until the command after it succeeds.
await() {
    for _ in $(seq 200); do
        timeout 2 "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    echo "no answer: $*" >&2
    exit 1
}

database() {
    mkdir -p "$dir/db"
    mariadb-install-db --no-defaults --user=root --datadir="$dir/db" >"$dir/install.log" 2>&1
    mariadbd --no-defaults --user=root --datadir="$dir/db" --socket="$dir/db.socket" --port=$((port + 14)) \
        --bind-address=127.0.0.1 --pid-file="$dir/mariadb.pid" --log-error="$dir/mariadb.log" &
    await mariadb --no-defaults --socket="$dir/db.socket" -e 'select 1'
    mariadb --no-defaults --socket="$dir/db.socket" -e "
        create user slurm@'127.0.0.1' identified by 'slurm';
        create user slurm@localhost identified by 'slurm';
        grant all on *.* to slurm@'127.0.0.1'; grant all on *.* to slurm@localhost;"
}

accounting() {
    export SLURM_CONF="$dir/slurm.conf" # of the commands that ask slurmdbd alone
    cat >"$dir/slurmdbd.options" <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 15))
AccountingStoragePass=$dir/munge.socket
AccountingStorageEnforce=limits,qos
PreemptType=preempt/qos
PreemptMode=REQUEUE
CONF
    cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
DbdHost=$(hostname -s)
DbdAddr=127.0.0.1
DbdPort=$((port + 15))
SlurmUser=root
LogFile=$dir/slurmdbd.log
PidFile=$dir/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((port + 14))
StorageUser=slurm
StoragePass=slurm
CONF
    chmod 600 "$dir/slurmdbd.conf"
    {
        echo "ClusterName=hq1"
        echo "SlurmctldHost=$(hostname -s)(127.0.0.1)"
        echo "AuthInfo=socket=$dir/munge.socket"
        cat "$dir/slurmdbd.options"
    } >"$SLURM_CONF"
    slurmdbd
    await sacctmgr --noheader list cluster
    sacctmgr -i add cluster hq1 hq2 >/dev/null
    sacctmgr -i add qos low,high >/dev/null
    sacctmgr -i modify qos high set preempt=low priority=100 >/dev/null
    sacctmgr -i add account test >/dev/null
    sacctmgr -i modify user root set qos=normal,low,high >/dev/null
}

case $1 in
down)
    down
    exit 0
    ;;
up) port=$3 ;;
esac
mkdir -p "$dir/munge"
dir=$(cd "$dir" && pwd)
chmod 700 "$dir/munge"
head -c 1024 /dev/urandom >"$dir/munge/key"
chmod 400 "$dir/munge/key"
munged --force --key-file="$dir/munge/key" --socket="$dir/munge.socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
database
accounting
"$here/up.sh" "$dir/hq1" "$port" hq1 "$dir"
"$here/up.sh" "$dir/hq2" $((port + 7)) hq2 "$dir"
