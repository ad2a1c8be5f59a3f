#!/usr/bin/env bash
# Rotates a model by a SLURM job array: as many tasks as the array has, on whatever nodes are free.
#   part=$(sbatch --parsable --array=1-16 examples/cluster/slurm_array.sh MODEL OUT)
#   sbatch --dependency=afterok:$part --wrap "rmsfold finish OUT"
# MODEL and OUT lie on a file system that all nodes see. A task that failed, or ran out of time, is submitted again with the same --array numbers of the same
# whole, such as --array=3,7 with PARTS=16: the shards it had finished are kept.
#SBATCH --job-name=rmsfold
#SBATCH --cpus-per-task=4
#SBATCH --mem=1G
#SBATCH --time=02:00:00
#SBATCH --requeue
set -euo pipefail
model=$1 out=$2
parts=${PARTS:-$SLURM_ARRAY_TASK_COUNT}

exec "${RMSFOLD:-rmsfold}" rotate "$model" "$out" --rotation hadamard --heads --part "$SLURM_ARRAY_TASK_ID/$parts" --threads "${SLURM_CPUS_PER_TASK:-1}"
