#!/usr/bin/env bash
# What goes with a model: adapters, draft heads, blocks that draft, a last hidden state that must stay.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

# safetensors FILE HEADER BYTES: a file of zeros behind a header.
safetensors() {
  printf "$(little_endian ${#2})" >"$1"
  printf '%s' "$2" >>"$1"
  head -c "$3" /dev/zero >>"$1"
}

run rotate "$demo_model" rotated --rotation hadamard --heads --no-fsync
expect_status 0

mkdir lora
module=base_model.model.model.layers.0.self_attn.q_proj
safetensors lora/adapter_model.safetensors \
  "{\"$module.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[2,64],\"data_offsets\":[0,512]},\"$module.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[96,2],\"data_offsets\":[512,1280]}}" 1280
printf '{"peft_type": "LORA", "r": 2, "bias": "none"}' >lora/adapter_config.json
run adapt lora "$demo_model" rotated adapted --no-fsync
expect_status 0
expect_stdout '1 tensors adapted, 1 copied'
expect_same lora/adapter_config.json adapted/adapter_config.json
expect_exists adapted/adapter_model.safetensors
run adapt lora "$demo_model" rotated adapted
expect_status 2
expect_stderr 'adapted'
run adapt lora "$demo_model" rotated adapted --force --no-fsync --json
expect_status 0
expect_stdout '"adapted": 1'

cp -rL "$demo_model" original
for out in original rotated lora original/inside .; do
  run adapt lora original rotated "$out" --force
  expect_status 2
  expect_stderr 'never written'
done
expect_same "$demo_model/model.safetensors" original/model.safetensors
expect_exists rotated/model.safetensors
run adapt nowhere "$demo_model" rotated other
expect_status 2
expect_stderr 'nowhere'
run adapt lora "$demo_model" "$demo_model" other
expect_status 2
expect_stderr 'rmsfold.json'
expect_absent other
run adapt lora rotated rotated other
expect_status 2
expect_stderr 'another model'
expect_absent other
printf '{"peft_type": "LORA", "use_dora": true}' >lora/adapter_config.json
run adapt lora "$demo_model" rotated other
expect_status 2
expect_stderr 'DoRA'
expect_absent other
run adapt --help
expect_status 0
expect_stdout 'Examples:'

mkdir draft
safetensors draft/model.safetensors '{"fc.weight":{"dtype":"F32","shape":[64,192],"data_offsets":[0,49152]}}' 49152
run adapt draft "$demo_model" rotated drafted --draft-fc fc.weight --no-fsync
expect_status 0
expect_stdout '1 tensors adapted'
run adapt draft "$demo_model" rotated other --draft-fc fc2.weight
expect_status 2
expect_stderr 'fc2.weight'
expect_absent other

run fold "$demo_model" kept --keep-final-norm --no-fsync
expect_status 0
expect_stderr '--keep-final-norm preserves what it writes'
run verify "$demo_model" kept --no-logits
expect_status 0
run rotate "$demo_model" other --rotation hadamard --keep-final-norm
expect_status 2
expect_stderr 'only fold can be done'
expect_absent other
run fold "$demo_model" other --dequantize bf16
expect_status 2
expect_stderr 'no weight is stored as F8_E4M3'
expect_absent other

finish
