#!/usr/bin/env bash
# What can go wrong while a model is written. Each time: the input is untouched, there is no OUT or a complete one, the message is clear, the exit status right.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

sharded_model model 6 20000  # 32 MB in 8 shards
hash_of model >model.before
how=(--rotation hadamard --heads --no-fsync --threads 1)
begun=$(date +%s%N)
run rotate model whole "${how[@]}"
expect_status 0
duration=$((($(date +%s%N) - begun) / 1000000))  # in ms
RANDOM=20261130

# pause: a random part of the time that a run takes, and a little more.
pause() { sleep "$(printf '0.%03d' $((RANDOM % (duration + duration / 8 + 2) % 1000)))"; }

# Killed at any moment: what --resume makes of the rest is what would have come of it without.
kills=0
for _ in $(seq 12); do
  start rotate model killed "${how[@]}" --resume
  pause
  kill -KILL "$child" 2>/dev/null
  await
  if [ -e killed ]; then
    expect_same_files whole killed
    rm -rf killed
  else
    kills=$((kills + 1))
  fi
done
run rotate model killed "${how[@]}" --resume
if grep -qF 'is complete' "$work/stderr"; then  # killed between the last byte and the name
  expect_status 2
  run finish killed --no-fsync
fi
expect_status 0
expect_same_files whole killed
expect_absent killed.rmsfold-partial
expect_absent killed.rmsfold-partial.lock
printf '%d of 12 runs were killed before their end, with --resume\n' "$kills"

# Without --resume the next run begins anew.
for _ in $(seq 8); do
  rm -rf again
  start rotate model again "${how[@]}"
  pause
  kill -KILL "$child" 2>/dev/null
  await
  [ -e again ] && expect_same_files whole again
done
rm -rf again
run rotate model again "${how[@]}"
expect_status 0
expect_same_files whole again
expect_absent again.rmsfold-partial

# Parts, killed and begun again until all are done; finish, killed too.
for part in 1 2 3; do
  for _ in 1 2 3; do
    start rotate model parts "${how[@]}" --part $part/3
    pause
    kill -KILL "$child" 2>/dev/null
    await
    expect_absent parts
  done
  run rotate model parts "${how[@]}" --part $part/3
  expect_status 0
done
for _ in $(seq 4); do
  start finish parts
  sleep "$(printf '0.%04d' $((RANDOM % 80)))"
  kill -KILL "$child" 2>/dev/null
  await
done
if [ ! -e parts ]; then
  run finish parts
  expect_status 0
fi
expect_same_files whole parts

# A signal leaves what a part, or a run with --resume, has finished, and nothing half finished.
for signal in INT TERM; do
  start_slowly rotate model stopped "${how[@]}" --resume
  freeze_when stopped.rmsfold-partial/model-00002-of-00008.safetensors
  kill "-$signal" "$child"
  kill -CONT "$child"
  await
  if [ "$signal" = INT ]; then expect_status 130; else expect_status 143; fi
  expect_stderr 'stopped by a signal'
  expect_absent stopped
  expect_exists stopped.rmsfold-partial/rmsfold.job/model-00001-of-00008.safetensors.json
  expect_absent stopped.rmsfold-partial/model-00008-of-00008.safetensors
  for shard in stopped.rmsfold-partial/model-*; do expect_exists "stopped.rmsfold-partial/rmsfold.job/$(basename "$shard").json"; done
  run rotate model stopped "${how[@]}" --resume
  expect_status 0
  expect_stderr 'shards were there already'
  expect_same_files whole stopped
  rm -rf stopped
done

# Two at once: of the same OUT, of the same part, a part and the finish, a part and a whole run.
for _ in 1 2 3; do
  rm -rf both
  "$RMSFOLD" rotate model both "${how[@]}" --quiet >first.stdout 2>first.stderr </dev/null &
  first=$!
  run rotate model both "${how[@]}" --quiet
  second_status=$status
  wait "$first"
  first_status=$?
  checks=$((checks + 1))
  case "$first_status $second_status" in
    '0 3' | '3 0' | '0 2' | '2 0') ;;  # 2: the other one had ended already
    *) fail "expected one of two runs to succeed, not $first_status and $second_status" ;;
  esac
  expect_same_files whole both
  expect_absent both.rmsfold-partial
done
start_slowly rotate model shared "${how[@]}" --part 1/2
freeze_when shared.rmsfold-partial/model-00003-of-00008.safetensors
freeze_pid=$child
run rotate model shared "${how[@]}" --part 1/2
expect_status 3
expect_stderr 'another rmsfold is writing part 1 of 2'
run finish shared
expect_status 3
expect_stderr 'another rmsfold is writing'
run rotate model shared "${how[@]}" --force
expect_status 3
run rotate model shared "${how[@]}" --part 2/2
expect_status 0
kill -CONT "$freeze_pid"
child=$freeze_pid
await
expect_status 0
run finish shared
expect_status 0
expect_same_files whole shared

# The input is cut short while it is read.
cp -r model shrinking
start_slowly rotate shrinking shrunk "${how[@]}"
freeze_when shrunk.rmsfold-partial/model-00001-of-00008.safetensors
truncate -s 1000000 shrinking/model-00008-of-00008.safetensors
kill -CONT "$child"
await
expect_status 2
expect_stderr 'model-00008-of-00008.safetensors was truncated while being read'
expect_absent shrunk
expect_absent shrunk.rmsfold-partial

# No room, seen before the first byte: a sparse model that is larger than what is free.
available=$(df -P -B1 . | awk 'NR == 2 { print $4 }')
large_model larger $(((available + 4000000000) / 512))
run fold larger no-room
expect_status 3
expect_stderr 'bytes free'
expect_stderr 'make room'
expect_absent no-room
expect_absent no-room.rmsfold-partial
rm -rf larger

# No room, found out when it is too late to ask; another file system.
mkdir full
if mount -t tmpfs -o size=48m tmpfs full 2>/dev/null; then
  run rotate model full/out "${how[@]}"
  expect_status 0
  expect_same_files whole full/out
  rm -rf full/out
  start_slowly rotate model full/out "${how[@]}"
  freeze_when full/out.rmsfold-partial/model-00001-of-00008.safetensors
  head -c 48000000 /dev/zero >full/filler 2>/dev/null
  kill -CONT "$child"
  await
  expect_status 3
  expect_stderr 'No space left on device'
  expect_absent full/out
  expect_absent full/out.rmsfold-partial
  rm full/filler
  # A part, and a run with --resume, go on when there is room again.
  start_slowly rotate model full/out "${how[@]}" --resume
  freeze_when full/out.rmsfold-partial/model-00002-of-00008.safetensors
  head -c 48000000 /dev/zero >full/filler 2>/dev/null
  kill -CONT "$child"
  await
  expect_status 3
  rm full/filler
  run rotate model full/out "${how[@]}" --resume
  expect_status 0
  expect_stderr 'shards were there already'
  expect_same_files whole full/out
  umount full
else
  echo 'skipped: a full disk, since a tmpfs cannot be mounted here'
fi
if [ -w /dev/shm ] && [ "$(stat -c %d /dev/shm)" != "$(stat -c %d .)" ]; then
  elsewhere=$(mktemp -d /dev/shm/rmsfold-XXXXXX)
  run rotate model "$elsewhere/out" "${how[@]}"
  [ "$status" -eq 0 ] && expect_same_files whole "$elsewhere/out"
  rm -rf "$elsewhere"
  expect_status 0
else
  echo 'skipped: an output on another file system, since /dev/shm is none'
fi

# Nobody may write there.
run rotate model no-such-folder/out "${how[@]}"
expect_status 3
expect_stderr 'no-such-folder'
run rotate model /proc/out "${how[@]}"
expect_status 3
expect_stderr '/proc/out'
if [ "$(id -u)" -ne 0 ]; then
  mkdir locked
  chmod a-w locked
  run rotate model locked/out "${how[@]}"
  expect_status 3
  expect_stderr 'locked'
  chmod u+w locked
fi

hash_of model >model.after
expect_same model.before model.after

finish
