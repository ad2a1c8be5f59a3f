#!/usr/bin/env bash
# Measures whole commands against a plain copy of the same bytes, the hot kernels against memcpy, and what people do now, and prints the ratios.
#   scripts/bench.sh [WORK_DIR]       WORK_DIR: a folder with 12 GB to spare, default build/bench-data
# REPETITIONS=n (default 5) rounds; in each round every command runs once, so that all meet the same machine; medians are compared.
# Files are in the page cache. THREADS=n (default 2). Takes about a quarter of an hour; the machine should do nothing else.
set -euo pipefail
exec </dev/null
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repetitions=${REPETITIONS:-5}
threads=${THREADS:-2}
mkdir -p "${1:-build/bench-data}"
work=$(cd "${1:-build/bench-data}" && pwd)

scripts/install_dependencies.sh libbenchmark-dev libopenblas-dev python3-numpy
cmake -G Ninja -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRMSFOLD_BUILD_TESTS=OFF -DRMSFOLD_BUILD_EXAMPLES=OFF -DRMSFOLD_BUILD_BENCHMARKS=ON \
  -DRMSFOLD_BLAS=ON >/dev/null
cmake --build build/bench
program=$PWD/build/bench/rmsfold
benchmarks=$PWD/build/bench/benchmarks
cd "$work"
trap 'rm -rf out' EXIT

model() {  # model <name> <make_model options>...: once
  [ -e "$1/config.json" ] || { "$benchmarks/make_model" "$@" && sync; }
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

heading() { printf '\n%s\n' "$*"; }

printf '%s, %s processors, %s threads, %s rounds\n' "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo)" "$(nproc)" "$threads" "$repetitions"
t=(--quiet --threads "$threads")

heading '2 GiB, bf16, d = 4096, no fsync'
model d4096 --hidden 4096 --intermediate 11008 --layers 4
compare "cp:copy d4096" \
  "fold:$program fold d4096 out --no-fsync ${t[*]}" \
  "rotate --rotation signed-permutation:$program rotate d4096 out --rotation signed-permutation --no-fsync ${t[*]}" \
  "rotate --rotation hadamard:$program rotate d4096 out --rotation hadamard --no-fsync ${t[*]}" \
  "rotate --rotation hadamard, 1 thread:$program rotate d4096 out --rotation hadamard --no-fsync --quiet --threads 1"
heading 'the same, on the disk'
compare "cp, sync:copy_and_sync d4096" "fold with fsync:$program fold d4096 out ${t[*]}"

for shape in '576 1536 9 60' '896 4864 14 28' '2560 9728 20 6' '3072 8192 24 6' '5120 13824 40 2'; do
  read -r d intermediate heads layers <<<"$shape"
  model "d$d" --hidden "$d" --intermediate "$intermediate" --heads "$heads" --layers "$layers" --shards 1
  heading "d = $d, $(du -sh "d$d" | cut -f 1)"
  compare "cp:copy d$d" "rotate --rotation hadamard:$program rotate d$d out --rotation hadamard --no-fsync ${t[*]}"
done

heading 'verify, without logits, against reading both; and the peak of anonymous memory of both commands'
for made in 'fold d4096 folded' 'rotate d4096 permuted --rotation signed-permutation' 'rotate d4096 rotated --rotation hadamard'; do
  read -r -a words <<<"$made"
  out=${words[2]}
  rm -rf "$out"
  "$program" "${words[@]}" --no-fsync --stats --threads "$threads" | sed -n "s/^stats:/${words[0]} ($out):/p"
  compare "read both ($out):read_both d4096 $out" "verify ($out):$program verify d4096 $out --no-logits ${t[*]}"
  "$program" verify d4096 "$out" --no-logits --stats --threads "$threads" | sed -n "s/^stats:/verify ($out):/p"
  rm -rf "$out"
done

heading 'one layer of Llama-2-7B (405 MB): dense products in f64 by NumPy, against rmsfold'
model layer --hidden 4096 --intermediate 11008 --layers 1 --vocabulary 8 --shards 1
env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS="$threads" /usr/bin/python3 - <<'PYTHON'
import time
import numpy
d, f = 4096, 11008
q = numpy.random.default_rng(1).standard_normal((d, d)) / 64
total = 0.0
for rows, cols, left in [(d, d, False)] * 3 + [(d, d, True)] + [(f, d, False)] * 2 + [(d, f, True)]:
    w = numpy.ones((rows, cols), numpy.float16)
    start = time.perf_counter()
    wide = w.astype(numpy.float64)
    (q.T @ wide if left else wide @ q).astype(numpy.float16)
    total += time.perf_counter() - start
print(f"NumPy, dense products in f64, in memory              {total:8.3f} s")
PYTHON
compare "rotate --rotation hadamard, file to file:$program rotate layer out --rotation hadamard --no-fsync ${t[*]}"
heading 'the same layer, a dense random rotation: 1.65 TFLOP, and drawing Q'
repetitions=1 compare "rotate --rotation orthogonal:env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE $program rotate layer out --rotation orthogonal --no-fsync ${t[*]}"

heading '91,000 tensors in 163 files, 680 GB (holes with real headers), and a tenth of it'
for size in '1011 17' '10110 163'; do
  read -r layers shards <<<"$size"
  model "sparse$layers" --hidden 512 --intermediate 21160 --heads 8 --layers "$layers" --shards "$shards" --sparse yes
  compare "inspect, $((layers * 9 + 3)) tensors:$program inspect sparse$layers" "rotate --dry-run, $((layers * 9 + 3)) tensors:$program rotate sparse$layers out --rotation hadamard --dry-run"
  "$program" inspect "sparse$layers" --stats | sed -n 's/^stats:/inspect:/p'
  "$program" rotate "sparse$layers" out --rotation hadamard --dry-run --stats | sed -n 's/^stats:/rotate --dry-run:/p'
done

heading 'growth with d: hadamard, per GB of weights'
for d in 1024 2048 4096 8192; do
  model "grow$d" --hidden "$d" --intermediate "$((2 * d))" --heads "$((d / 128))" --layers "$((134217728 / d / d))" --vocabulary 32 --shards 1
  compare "d = $d, $(du -sh --apparent-size "grow$d" | cut -f 1):$program rotate grow$d out --rotation hadamard --no-fsync ${t[*]}"
done

heading 'kernels (ratio: how many times as fast as the baseline, medians; best: of the minima; ns: per element)'
for kernel in convert hadamard permutation rms_norm gemv dense haar; do
  env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE OPENBLAS_NUM_THREADS=1 "$benchmarks/$kernel" 2>/dev/null |
    sed -n "s|/iterations:[0-9]*||; s|/repeats:[0-9]*||; s|/manual_time||; s|^\([a-z][a-z0-9_]*[/ ][^ ]*\).*ms *[0-9]* \(.*\)|$kernel: \1  \2|p"
done
