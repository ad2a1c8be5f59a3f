# What a run keeps in memory does not grow with the tensors: three of 305 MiB each, of which one is rotated down its columns.
source "$(dirname "$0")/harness.bash"
source "$(dirname "$0")/models.bash"

limit=$((300 << 20))
rows=1250000
# The address sanitizer keeps what is freed and shadows the rest: with it, no more than that the commands work.
if grep -q __asan_init "$RMSFOLD"; then
  limit=$((1 << 40))
  rows=20000
fi
large_model model 96 F32 4 "$rows"

# expect_little_memory: what the last command says in JSON.
expect_little_memory() {
  local peak
  peak=$(sed -n 's/.*"peak_rss_anon": *\([0-9]*\).*/\1/p' "$work/stdout" | head -n 1)
  checks=$((checks + 1))
  [ "${peak:-0}" -gt 0 ] || fail "expected peak_rss_anon in the output"
  [ "$peak" -le "$limit" ] || fail "$peak bytes of anonymous memory, at most $limit expected"
}

for how in 'fold' 'rotate --rotation hadamard' 'rotate --rotation signed-permutation'; do
  read -r -a words <<<"$how"
  run "${words[0]}" model out "${words[@]:1}" --no-fsync --json --stats
  expect_status 0
  expect_little_memory
  run verify model out --no-logits --json --stats
  expect_status 0
  expect_little_memory
  rm -rf out
done

finish
