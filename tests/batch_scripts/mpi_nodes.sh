#!/bin/bash
#SBATCH --job-name=mpi-nodes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --mem=1G
#SBATCH --exclusive
#SBATCH --time=00:10:00
#SBATCH --output=mpi_%j.out

cd $SLURM_SUBMIT_DIR
echo "nodes $SLURM_JOB_NUM_NODES: $SLURM_JOB_NODELIST"
mpirun -n $SLURM_NTASKS --map-by ppr:$SLURM_NTASKS_PER_NODE:node ./hello.x
