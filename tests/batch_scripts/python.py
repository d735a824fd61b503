#!/usr/bin/env python3
#SBATCH --job-name=py-array
#SBATCH --array=0-6:3,10
#SBATCH --output=py_%a.txt
#SBATCH --dependency=singleton
import os
import sys

task = int(os.environ["SLURM_ARRAY_TASK_ID"])
low, high = os.environ["SLURM_ARRAY_TASK_MIN"], os.environ["SLURM_ARRAY_TASK_MAX"]
print(f"square of {task} is {task * task}, ids from {low} to {high}, input {sys.stdin.read()!r}, {sys.argv[1:]}")
