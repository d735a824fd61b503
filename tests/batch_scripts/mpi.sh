#!/bin/bash
#SBATCH --job-name=mpi-hello
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:10:00
#SBATCH --output=%x.out
#SBATCH --constraint=cpu

module load openmpi
echo "Running on $SLURM_NTASKS ranks"
mpirun -np $SLURM_NTASKS ./hello.x
