#!/usr/bin/env bash
# Rotates a model by n processes of Open MPI's mpirun, on one machine or on several that share a file system.
#   examples/cluster/mpirun.sh MODEL OUT [n]
# Each process takes the shards of its own part; they do not talk to each other. Run it again after any failure: what is done is kept.
set -euo pipefail
model=$1 out=$2 processes=${3:-4}
rmsfold=${RMSFOLD:-rmsfold}

# One thread per process, since mpirun starts one per core; --oversubscribe lets it start more than that.
mpirun --oversubscribe -n "$processes" "$rmsfold" rotate "$model" "$out" --rotation hadamard --heads --part auto --threads 1
"$rmsfold" finish "$out"
