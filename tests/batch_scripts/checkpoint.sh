#!/bin/bash
#SBATCH --job-name=checkpoint
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --output=checkpoint.out
#SBATCH --open-mode=append

save() {
    echo "saved at step $step"
    exit 0
}
trap save USR1
echo "step 0"
for step in $(seq 1000); do
    sleep 0.1 & wait $!
done
