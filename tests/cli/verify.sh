#!/usr/bin/env bash
# verify: its exit status, its words, its JSON, and what it writes.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

cp -r "$demo_model" model
chmod -R u+w model
run rotate model out --rotation hadamard --heads --quiet
expect_status 0

run verify model out
expect_status 0
expect_stdout 'from rmsfold.json: rotation hadamard, seed 0, heads'
expect_stdout 'all 30 tensors are what they should be'
expect_stdout '256 random tokens'
expect_stdout 'EQUAL'
run verify model out --ignore-manifest --no-logits
expect_status 0
expect_stdout 'estimated from the writers'
run verify model out --quiet --tokens 8
expect_status 0
expect_silent
run verify model out --json --tokens 200
expect_status 0
expect_json stdout
expect_stdout '"equal": true'
expect_stdout '"tokens": 200'
run verify model model --no-logits
expect_status 0

# One byte of one tensor: the last one, of model.norm, whose gains are 1.
cp -r out tampered
size=$(stat -c %s tampered/model.safetensors)
printf '\x40' | dd of=tampered/model.safetensors bs=1 seek=$((size - 1)) conv=notrunc status=none
run verify model tampered
expect_status 1
expect_stdout 'model.norm.weight'
expect_stdout 'NOT EQUAL'
run verify model tampered --json --no-logits
expect_status 1
expect_json stdout
expect_stdout '"equal": false'
expect_stdout '"where": "model.norm.weight"'
run verify model tampered --quiet --no-logits
expect_status 1
expect_silent

# The mistakes people make, by name.
cp -r out untouched
cp model/model.safetensors untouched/model.safetensors
cp model/config.json untouched/config.json
run verify model untouched --no-logits
expect_status 1
expect_stdout 'not transformed at all'
expect_stdout 'not reset to 1'
cp -r out wrong-eps
sed -i 's/"rms_norm_eps": 1e-06/"rms_norm_eps": 1e-05/' wrong-eps/config.json
run verify model wrong-eps --no-logits
expect_status 1
expect_stdout 'rms_norm_eps'

# Other models are no variants of this one.
run verify model "$RMSFOLD_SOURCE_DIR/tests/data/golden/qwen3"
expect_status 1
expect_stdout 'NOT EQUAL'

# --record adds what was measured to the manifest, which stays readable; nothing else changes.
cp out/rmsfold.json before.json
cp out/model.safetensors before.safetensors
run verify model out --record --tokens 16
expect_status 0
expect_different out/rmsfold.json before.json
expect_json out/rmsfold.json
grep -q worst_measured_over_bound out/rmsfold.json || fail 'the measured error is recorded'
expect_same out/model.safetensors before.safetensors
run verify model out --no-logits
expect_status 0
expect_stdout 'from rmsfold.json'
run verify model model --record --no-logits
expect_status 2
expect_stderr 'rmsfold.json'

# A manifest of another model is not used; one that is broken or newer is an error.
cp out/rmsfold.json model-copy.json
cp -r model stranger
cp "$RMSFOLD_SOURCE_DIR"/tests/data/golden/llama/* stranger/
run verify stranger out
expect_status 1
echo '{' >out/rmsfold.json
run verify model out
expect_status 2
expect_stderr 'rmsfold.json'
sed 's/"format": 1/"format": 2/' model-copy.json >out/rmsfold.json
run verify model out
expect_status 2
expect_stderr 'newer'

finish
