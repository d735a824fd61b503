#!/bin/bash
#SBATCH --job-name=post
#SBATCH --time=00:05:00
#SBATCH --output=post.out
#SBATCH --error=post.err
#SBATCH --open-mode=truncate

cat logs/param-scan-*.out | sort
echo "merged by $0" | sed 's/by .*/all/'
