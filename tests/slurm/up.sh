#!/bin/bash
# Starts a Slurm of four virtual nodes on this machine: up.sh DIR BASEPORT [CLUSTER SHARED]. Needs root
# and Debian's packages slurm-wlm and munge. Everything of it is below DIR; down.sh DIR ends it. With
# CLUSTER it has that name and uses the munge and the slurmdbd.options of the directory SHARED (two.sh).
set -eu
PATH="$PATH:/usr/sbin:/sbin"
dir=$1
port=$2
cluster=${3:-hqtest}
shared=${4:-$dir}
host=$(hostname -s)

mkdir -p "$dir"/{state,spool,log}
chmod 755 "$dir"
if [ "$shared" = "$dir" ]; then
    mkdir -p "$dir/munge"
    chmod 700 "$dir/munge"
    head -c 1024 /dev/urandom >"$dir/munge/key"
    chmod 400 "$dir/munge/key"
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge.socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    echo "AccountingStorageType=accounting_storage/none" >"$dir/slurmdbd.options"
fi

export SLURM_CONF="$dir/slurm.conf"
cat >"$SLURM_CONF" <<CONF
ClusterName=$cluster
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$shared/munge.socket
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
$(cat "$shared/slurmdbd.options")
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
InactiveLimit=0
MailProg=/bin/true
CONF
for node in 1 2 3 4; do
    echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + node)) CPUs=2 State=UNKNOWN"
done >>"$SLURM_CONF"
echo "PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$SLURM_CONF"

slurmctld -f "$SLURM_CONF"
for node in 1 2 3 4; do
    mkdir -p "$dir/spool/n$node"
    slurmd -f "$SLURM_CONF" -N "n$node"
done
for _ in $(seq 200); do
    if sinfo --noheader --format='%T %D' 2>/dev/null | grep -q '^idle 4$'; then
        exit 0
    fi
    sleep 0.1
done
echo "Slurm did not come up:" >&2
sinfo >&2
exit 1
