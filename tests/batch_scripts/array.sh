#!/usr/bin/env bash
#SBATCH -J param-scan
#SBATCH -a 1-4%2
#SBATCH -c 1
#SBATCH --mem-per-cpu=50M
#SBATCH -t 0-01:00
#SBATCH -o logs/%x-%A-%a.out
#SBATCH -e logs/%x-%A-%a.err

set -euo pipefail
# One line of the list for each task of the array.
LINE=$(sed -n "${SLURM_ARRAY_TASK_ID}p" params.txt)
read -r lr seed <<< "$LINE"
echo "task ${SLURM_ARRAY_TASK_ID}/${SLURM_ARRAY_TASK_COUNT} lr=${lr} seed=${seed}"
if [ "$SLURM_ARRAY_TASK_ID" -eq "$SLURM_ARRAY_TASK_MAX" ]; then
    echo "last one" >&2
fi
