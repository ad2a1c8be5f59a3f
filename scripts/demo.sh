#!/usr/bin/env bash
# Shows the main job on a real checkpoint: look at it, compare the ways to rotate it, rotate it into a new directory, and prove that the
# result is the same function. Installs and builds what is missing first. The model is only read.
#   scripts/demo.sh [MODEL_DIR]        a Hugging Face directory; without one, the small checkpoint that ships with the examples
set -euo pipefail
exec </dev/null

if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then
  printf 'usage: scripts/demo.sh [MODEL_DIR]\n' >&2
  exit 2
fi
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model=${1:-$repository/examples/data/tiny-llama}
if [ ! -f "$model/config.json" ]; then
  printf 'scripts/demo.sh: %s is not a model directory: it has no config.json\n' "$model" >&2
  exit 2
fi
model=$(cd "$model" && pwd)

cd "$repository"
scripts/install_dependencies.sh
log=$(mktemp)
if ! { cmake --preset release && cmake --build --preset release --target rmsfold_program; } >"$log" 2>&1; then
  cat "$log" >&2
  printf 'scripts/demo.sh: the build failed (above)\n' >&2
  exit 1
fi
rm -f "$log"
program=$repository/build/release/rmsfold
out=$(mktemp -d "${TMPDIR:-/tmp}/rmsfold-demo.XXXXXX")/rotated

step=0
show() {  # show <heading> <what it shows> <arguments of the program>...
  local heading=$1 meaning=$2
  shift 2
  step=$((step + 1))
  printf '\n== %d. %s\n' "$step" "$heading"
  printf '%s\n' "$meaning" | fold -s -w 100 | sed 's/^/   /; s/ *$//'
  printf '\n$ rmsfold %s\n' "$*"
  "$program" "$@"
}

show 'What is in the model' \
  'Every norm site with its gain, its readers and writers, and which changes of basis leave the model the same function.' \
  inspect "$model"
show 'Three ways to rotate, side by side' \
  'At every norm site: rotating after the norm (right, but paid for at run time), merging the rotation naively (wrong: the gain stands in the way), and folding the gain first (right, and free at run time).' \
  check "$model"
show 'Fold and rotate' \
  'A new directory with the same names, shapes and types: gains folded, the residual stream rotated by a randomised Hadamard matrix, value and output projections rotated per head.' \
  rotate "$model" "$out" --rotation hadamard --heads
show 'Is it the same function?' \
  'Every stored weight against its recomputation in double, every site, and the logits of the whole model. A failure would name the site, the tensor and the step that looks wrong.' \
  verify "$model" "$out"

printf '\nThe rotated model is in %s\n' "$out"
printf 'The program is %s\n' "$program"
