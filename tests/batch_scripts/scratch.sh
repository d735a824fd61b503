#!/bin/bash
#SBATCH --job-name="scratch job"
#SBATCH --ntasks=1
#SBATCH --time=00:05:00
#SBATCH --tmp=1G
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=somebody@example.org
#SBATCH --error=%x.%j.err

WORK=$SLURM_TMPDIR/work_$SLURM_JOB_ID
mkdir -p "$WORK"
trap 'rm -rf "$WORK"' EXIT
cp "$INPUT_FILE" "$WORK/in.txt"
cd "$WORK" || exit 1
wc -l < in.txt
echo "cannot converge" >&2
exit 3
