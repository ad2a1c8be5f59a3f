#!/usr/bin/env bash
# --part, finish and --resume: whoever writes which shard, the bytes are those of one process.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

sharded_model model 3 2000  # 5 shards
hash_of model >model.before
how=(--rotation hadamard --heads --seed 3 --no-fsync)
run rotate model whole "${how[@]}" --quiet
expect_status 0

# Parts in any order, one of them twice, one with nothing to do; OUT appears with finish.
for part in 3/7 1/7 7/7 2/7 3/7; do
  run rotate model out "${how[@]}" --part $part
  expect_status 0
  expect_stdout 'rmsfold finish out'
  expect_absent out
  [ $part = 7/7 ] && expect_stdout 'nothing to do'
done
expect_stderr '1 of 1 shards were there already'
run finish out
expect_status 2
expect_stderr '2 of 5 shards are not there yet'
expect_stderr 'run again, of 7 parts: 4, 5'
expect_absent out
run rotate model out "${how[@]}" --part 4/7
expect_status 0
run rotate model out "${how[@]}" --part 5/7 --json --stats
expect_status 0
expect_json stdout
expect_stdout '"peak_rss_anon"'
run finish out --stats
expect_status 0
expect_stdout 'out: complete'
expect_stdout 'peak memory'
expect_same_files whole out
expect_absent out.rmsfold-partial
expect_absent out.rmsfold-partial.lock
run finish out
expect_status 2
expect_stderr 'exists already'
run finish never-begun
expect_status 2
expect_stderr 'nothing was begun'
run verify model out --no-logits
expect_status 0

# All at once, of a fold, a dense rotation and a permutation, with and without waiting for the disk.
at_once() {
  local part pids='' pid
  rm -rf whole2 together
  run "$1" model whole2 "${@:2}" --quiet
  expect_status 0
  for part in 1 2 3 4; do
    "$RMSFOLD" "$1" model together "${@:2}" --part $part/4 --quiet >"$work/stdout" 2>>"$work/stderr" </dev/null &
    pids="$pids $!"
  done
  for pid in $pids; do
    wait "$pid"
    status=$?
    expect_status 0
  done
  run finish together --quiet
  expect_status 0
  expect_silent
  expect_same_files whole2 together
}
at_once fold
at_once rotate --rotation orthogonal --heads --no-fsync
at_once rotate --rotation orthogonal --inverse --no-fsync
at_once rotate --rotation signed-permutation --no-fsync

# The launchers' environments.
OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 run fold model auto --part auto
expect_status 0
expect_stdout 'auto, part 2/2'
SLURM_PROCID=0 SLURM_NTASKS=2 run fold model auto --part auto
expect_status 0
expect_stdout 'auto, part 1/2'
run finish auto
expect_status 0
SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_ARRAY_TASK_ID=3 run fold model array --part auto
expect_status 2
expect_stderr 'SLURM_ARRAY_TASK_ID'
run fold model none --part auto
expect_status 2
expect_stderr 'OMPI_COMM_WORLD_RANK'
for part in 0/2 3/2 1 1/ /2 a/b 1/2/3 -1/2; do
  run fold model none --part=$part
  expect_status 2
  expect_stderr '--part'
done
expect_absent none.rmsfold-partial

# Parts that were begun are not thrown away by mistake.
run fold model begun --part 2/3
expect_status 0
run fold model begun
expect_status 2
expect_stderr 'holds the work of 3 parts'
expect_stderr '--resume'
run rotate model begun "${how[@]}" --part 1/3
expect_status 2
expect_stderr 'other options'
run fold model begun --part 1/2
expect_status 2
expect_stderr '--part i/3'
run rotate model begun "${how[@]}" --resume
expect_status 2
expect_stderr 'other options'
cp -r begun.rmsfold-partial another.rmsfold-partial
cp begun.rmsfold-partial.lock another.rmsfold-partial.lock
run fold model begun --resume
expect_status 0
expect_stderr 'shards were there already'
run fold model folded --quiet
expect_same_files folded begun
run rotate model another "${how[@]}" --force
expect_status 0
expect_stderr 'removed'
expect_same_files whole another

# --force of a part begins anew when the plan is another one, and joins when it is the same; finish replaces OUT only with --force.
run fold model another --force --part 1/2
expect_status 0
run rotate model another "${how[@]}" --force --part 1/2
expect_status 0
expect_stderr 'removed'
run rotate model another "${how[@]}" --force --part 2/2
expect_status 0
run finish another
expect_status 2
expect_stderr '--force'
echo mine >another/mine
run finish another --force
expect_status 0
expect_same_files whole another

# A shard that was damaged, cut short, or whose record is broken, is written again.
for damage in flip cut record source; do
  run rotate model damaged "${how[@]}" --part 1/2 --quiet
  expect_status 0
  shard=$(cd damaged.rmsfold-partial/rmsfold.job && printf '%s\n' model-*.json | head -n 1)
  shard=${shard%.json}
  case $damage in
    flip) printf '\x11' | dd of="damaged.rmsfold-partial/$shard" bs=1 seek=5000 conv=notrunc status=none ;;
    cut) truncate -s -1 "damaged.rmsfold-partial/$shard" ;;
    record) truncate -s 50 "damaged.rmsfold-partial/rmsfold.job/$shard.json" ;;
    source) touch "model/$shard" ;;
  esac
  run rotate model damaged "${how[@]}" --part 1/2 --json
  expect_status 0
  shards=$(sed -n 's/.*"shards": \([0-9]*\).*/\1/p' stdout)
  expect_stdout "\"shards_kept\": $((shards - 1)),"
  run rotate model damaged "${how[@]}" --part 2/2 --quiet
  expect_status 0
  run finish damaged --quiet
  expect_status 0
  expect_same_files whole damaged
  rm -rf damaged
done

# finish that was killed between the manifest and the name is made again.
run rotate model late "${how[@]}" --part 1/1 --quiet
expect_status 0
cp whole/rmsfold.json late.rmsfold-partial/
rm late.rmsfold-partial/rmsfold.job/job.json
run rotate model late "${how[@]}" --part 1/1
expect_status 2
expect_stderr 'rmsfold finish'
run finish late
expect_status 0
expect_same_files whole late

# --resume with nothing to resume is an ordinary run.
run rotate model fresh "${how[@]}" --resume
expect_status 0
expect_same_files whole fresh

hash_of model >model.after
expect_same model.before model.after

finish
