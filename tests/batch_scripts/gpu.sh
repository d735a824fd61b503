#!/bin/bash
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:1
#SBATCH --cpus-per-task=2
#SBATCH --mem=200M
#SBATCH --time=1-00:00:00
#SBATCH --output=train-%j.out
#SBATCH --requeue

echo "gpus $SLURM_GPUS_ON_NODE visible $CUDA_VISIBLE_DEVICES restart $SLURM_RESTART_COUNT"
srun python3 -u - <<'PY'
import os
print("rank", os.environ.get("SLURM_PROCID", "0"), "workers", os.environ["SLURM_CPUS_PER_TASK"])
PY
