#!/bin/bash -l
#SBATCH --job-name=openmp
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=3
#SBATCH --time=15
#SBATCH --export=NONE

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export OMP_PLACES=cores
echo "threads $OMP_NUM_THREADS of $(echo $HQ_CPUS | tr ',' '\n' | wc -l)"
