#!/usr/bin/env bash
# Stopped in the middle: nothing is left by SIGINT and SIGTERM; what SIGKILL leaves, the next run removes and says so.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

large_model model 400000  # 205 MB
hash_of model >model.before

# interrupted SIGNAL: starts a rotation, sends the signal as soon as there is a partial output, and waits; $status.
interrupted() {
  # A job of its own, since a shell without job control has background jobs ignore SIGINT.
  set -m
  "$RMSFOLD" rotate model out --rotation hadamard --no-fsync --threads 1 >stdout 2>stderr </dev/null &
  local child=$!
  set +m
  last_command="rotate, with $1"
  for _ in $(seq 2000); do
    [ -s out.rmsfold-partial/model.safetensors ] && break
    sleep 0.01
  done
  kill "-$1" "$child"
  wait "$child" 2>/dev/null
  status=$?
}

for signal in INT TERM; do
  interrupted "$signal"
  if [ "$signal" = INT ]; then expect_status 130; else expect_status 143; fi
  expect_stderr 'stopped by a signal'
  expect_absent out
  expect_absent out.rmsfold-partial
  expect_absent out.rmsfold-partial.lock
done

# A second run to the same OUT is refused while the first one works, and the first one is not disturbed.
set -m
"$RMSFOLD" rotate model out --rotation hadamard --no-fsync --threads 1 --quiet </dev/null >first.stdout 2>first.stderr &
first=$!
set +m
for _ in $(seq 2000); do
  [ -s out.rmsfold-partial/model.safetensors ] && break
  sleep 0.01
done
kill -STOP "$first"
run rotate model out --rotation hadamard --no-fsync
expect_status 3
expect_stderr 'another rmsfold is writing'
kill -KILL "$first"
wait "$first" 2>/dev/null
expect_exists out.rmsfold-partial
expect_absent out

# After kill -9.
run rotate model out --rotation hadamard --no-fsync
expect_status 0
expect_stderr 'left by a run that was killed'
expect_exists out/model.safetensors
expect_absent out.rmsfold-partial
expect_absent out.rmsfold-partial.lock

# A directory of that name that is not ours is not touched.
mkdir other.rmsfold-partial
run rotate model other --rotation permutation
expect_status 2
expect_stderr 'move it away'
expect_exists other.rmsfold-partial

hash_of model >model.after
expect_same model.before model.after

finish
