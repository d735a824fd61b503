#!/bin/bash
#SBATCH --job-name=serial-job        # Job name
#SBATCH --mail-type=NONE             # Mail events (NONE, BEGIN, END, FAIL, ALL)
#SBATCH --ntasks=1                   # Run on a single CPU
#SBATCH --mem=100mb                  # Job memory request
#SBATCH --time=00:05:00              # Time limit hrs:min:sec
#SBATCH --output=serial_test_%j.log  # Standard output and error log
#SBATCH --partition=standard
#SBATCH --account=project_462000001

module purge
module load python/3.11

cat > input.nml <<EOF
&run
  title = "job ${SLURM_JOB_NAME} in ${SLURM_SUBMIT_DIR}"
#SBATCH --mem=900G
/
EOF
echo "node count ${SLURM_NNODES}, tasks ${SLURM_NTASKS}"
cat input.nml
echo "a warning" >&2
