#!/usr/bin/env bash
# Measures whole commands against a plain copy of the same bytes, and the hot kernels against memcpy, and prints the ratios.
#   scripts/bench.sh [WORK_DIR]       WORK_DIR: a folder with 10 GB to spare, default build/bench-data
# REPETITIONS=n (default 5) rounds; in each round every command runs once, so that all meet the same machine; medians are compared.
# Files are in the page cache. THREADS=n (default 2).
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repetitions=${REPETITIONS:-5}
threads=${THREADS:-2}
work=${1:-build/bench-data}

scripts/install_dependencies.sh libbenchmark-dev
cmake -G Ninja -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRMSFOLD_BUILD_TESTS=OFF -DRMSFOLD_BUILD_EXAMPLES=OFF -DRMSFOLD_BUILD_BENCHMARKS=ON >/dev/null
cmake --build build/bench
program=$PWD/build/bench/rmsfold
mkdir -p "$work"
cd "$work"
trap 'rm -rf out' EXIT

model() {  # model <name> <make_model options>...: once
  [ -e "$1/config.json" ] || "$OLDPWD/build/bench/benchmarks/make_model" "$@"
}
seconds() {  # seconds <command>...: wall time
  local begin end
  rm -rf out
  begin=$(date +%s%N)
  "$@" >/dev/null
  end=$(date +%s%N)
  awk -v ns=$((end - begin)) 'BEGIN { printf "%.3f", ns / 1e9 }'
}
copy() { cp -r --reflink=never "$1" out; }
copy_and_sync() { copy "$1" && sync out/*; }
read_both() { cat "$1"/*.safetensors "$2"/*.safetensors; }
median() { sort -n | awk '{ v[NR] = $1 } END { printf "%.3f", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }
spread() { sort -n | awk '{ v[NR] = $1 } END { printf "%.2f-%.2f", v[1], v[NR] }'; }

# compare <baseline> <candidate>...: each a name, a colon, a command. Prints medians and ratios to the baseline.
compare() {
  local entry name round
  declare -A times=()
  for round in $(seq "$repetitions"); do
    for entry in "$@"; do
      # shellcheck disable=SC2086  # the words of the command
      times[${entry%%:*}]+="$(seconds ${entry#*:}) "
    done
  done
  local base=${1%%:*} base_median
  base_median=$(tr ' ' '\n' <<<"${times[$base]% }" | median)
  for entry in "$@"; do
    name=${entry%%:*}
    local m
    m=$(tr ' ' '\n' <<<"${times[$name]% }" | median)
    awk -v n="$name" -v m="$m" -v b="$base_median" -v s="$(tr ' ' '\n' <<<"${times[$name]% }" | spread)" \
      'BEGIN { printf "%-52s %8.3f s  (%s)  x %.2f\n", n, m, s, m / b }'
  done
}

printf '%s, %s threads, %s rounds\n' "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)" "$threads" "$repetitions"
t=(--quiet --threads "$threads")

model d4096 --hidden 4096 --intermediate 11008 --layers 4
printf '\n2 GiB, bf16, d = 4096, no fsync\n'
compare "cp:copy d4096" \
  "fold:$program fold d4096 out --no-fsync ${t[*]}" \
  "rotate --rotation signed-permutation:$program rotate d4096 out --rotation signed-permutation --no-fsync ${t[*]}" \
  "rotate --rotation hadamard:$program rotate d4096 out --rotation hadamard --no-fsync ${t[*]}"
printf '\nthe same, on the disk\n'
compare "cp, sync:copy_and_sync d4096" "fold with fsync:$program fold d4096 out ${t[*]}"

for shape in '576 1536 9 60' '896 4864 14 28' '2560 9728 20 6' '3072 8192 24 6' '5120 13824 40 2'; do
  read -r d intermediate heads layers <<<"$shape"
  model "d$d" --hidden "$d" --intermediate "$intermediate" --heads "$heads" --layers "$layers" --shards 1
  printf '\nd = %s, %s\n' "$d" "$(du -sh "d$d" | cut -f 1)"
  compare "cp:copy d$d" "rotate --rotation hadamard:$program rotate d$d out --rotation hadamard --no-fsync ${t[*]}"
done

printf '\nverify, without logits, against reading both\n'
for made in 'fold d4096 folded' 'rotate d4096 permuted --rotation signed-permutation' 'rotate d4096 rotated --rotation hadamard'; do
  read -r _ _ out _ <<<"$made"
  rm -rf "$out"
  # shellcheck disable=SC2086  # the words of the command
  "$program" $made --quiet --no-fsync
  compare "read both ($out):read_both d4096 $out" "verify ($out):$program verify d4096 $out --no-logits ${t[*]}"
  rm -rf "$out"
done

printf '\nkernels\n'
for kernel in "$OLDPWD"/build/bench/benchmarks/*; do
  [ -f "$kernel" ] && [ -x "$kernel" ] && [ "${kernel##*/}" != make_model ] && "$kernel" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
done
