#!/usr/bin/env bash
# check and inspect: the tables, their JSON, and the exit status of every rotation and type.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

run inspect "$demo_model"
expect_status 0
expect_stdout 'llama (LlamaForCausalLM), 3 layers, hidden 64, 4 heads (2 kv) of 24'
expect_stdout 'tied to the embedding'
expect_stdout 'as stored       signed permutations'
expect_stdout 'after folding   any rotation'
expect_stdout 'q_proj, k_proj, v_proj'
expect_stdout '7 of 7 gains fold'
expect_stdout 'Hadamard order 64'
run inspect "$demo_model" --json
expect_status 0
expect_json stdout
expect_stdout '"foldable": true'
run inspect "$demo_model" --quiet
expect_status 0
expect_silent
for golden in "$RMSFOLD_SOURCE_DIR"/tests/data/golden/*; do
  run inspect "$golden"
  expect_status 0
  expect_stdout 'signed permutations'
done

run check "$demo_model"
expect_status 0
expect_stdout 'rotate-after-norm'
expect_stdout 'naive-merged is wrong at 7 of 7 sites, everywhere by what identity 4 predicts'
expect_stdout 'model.layers.2.post_attention_layernorm'
run check "$demo_model" --rotation signed-permutation --seed 4 --tokens 3
expect_status 0
expect_stdout 'gain-transported'
run check "$demo_model" --details
expect_status 0
expect_stdout 'WRONG, by what identity 4 predicts'
run check "$demo_model" --json
expect_status 0
expect_json stdout
expect_stdout '"passed": true'
run check "$demo_model" --quiet
expect_status 0
expect_silent

for dtype in F64 F32 F16 BF16; do
  for rotation in hadamard orthogonal permutation signed-permutation; do
    run check --dim 80 --dtype $dtype --rotation $rotation
    expect_status 0
    expect_stdout "$dtype, rotation $rotation"
    expect_stdout WRONG  # naive-merged
  done
done
run check --dim 1
expect_status 0
run check --dim 48 --json
expect_status 0
expect_json stdout
run check --dim 14
expect_status 2
expect_stderr 'no Hadamard matrix of order 14'
run check --dim 14 --rotation orthogonal
expect_status 0

finish
