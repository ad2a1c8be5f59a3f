#!/usr/bin/env bash
# Rotates a model by n parts under GNU parallel, on this machine or, with a list of hosts that share a file system, on those.
#   examples/cluster/parallel.sh MODEL OUT [n [HOSTS]]      HOSTS: a file as for parallel --sshloginfile
# A part that fails is tried three times; each try keeps what the one before had finished.
set -euo pipefail
model=$(realpath "$1") out=$(realpath -m "$2") parts=${3:-4}
rmsfold=${RMSFOLD:-rmsfold}
where=()
[ $# -ge 4 ] && where=(--sshloginfile "$4")

seq "$parts" | parallel "${where[@]}" --retries 3 --halt now,fail=1 "$rmsfold" rotate "$model" "$out" --rotation hadamard --heads --part "{}/$parts" --threads 1
"$rmsfold" finish "$out"
