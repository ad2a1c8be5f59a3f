#!/usr/bin/env bash
# fold and rotate, as a user calls them: what is written, what is not, and what is said.
source "$(dirname "$0")/harness.bash"
source "$RMSFOLD_SOURCE_DIR/tests/cli/models.bash"

# A model directory with all that may lie in one.
cp -r "$demo_model" model
chmod -R u+w model
echo '{"version": "1.0"}' >model/tokenizer.json
echo 'old weights' >model/pytorch_model.bin
echo 'old weights' >model/consolidated.00.pth
echo 'old weights' >model/model.gguf
mkdir model/onnx
echo 'old weights' >model/onnx/model.onnx
hash_of model >model.before

# --dry-run: the plan, and nothing on the disk.
run rotate model out --rotation hadamard --heads --dry-run
expect_status 0
expect_stdout 'model.embed_tokens.weight                          W·Q'
expect_stdout 'model.layers.1.self_attn.v_proj.weight             Rᵀ·W·diag(g)·Q'
expect_stdout 'model.layers.1.self_attn.o_proj.weight             Qᵀ·W·R'
expect_stdout 'made from model.embed_tokens.weight'
expect_stdout 'the factors multiply to the identity'
expect_absent out
expect_absent out.rmsfold-partial
run rotate model out --rotation signed-permutation --dry-run
expect_status 0
expect_stdout 'stays tied to model.embed_tokens.weight'
run fold model out --dry-run --json
expect_status 0
expect_json stdout
expect_stdout '"becomes": "W·diag(g)"'
expect_absent out

# fold: everything is carried over but other weights and folders, which are named.
run fold model folded
expect_status 0
expect_stdout '16 tensors multiplied, 7 of norms set to neutral'
expect_stderr 'lm_head.weight was tied'
expect_stderr 'not copied'
for left in consolidated.00.pth model.gguf onnx/ pytorch_model.bin; do
  expect_stderr "$left"
  expect_absent "folded/$left"
done
expect_same model/tokenizer.json folded/tokenizer.json
expect_same model/generation_config.json folded/generation_config.json
expect_different model/config.json folded/config.json
grep -q '"tie_word_embeddings": false' folded/config.json || fail 'the tie flag is set false'
expect_exists folded/rmsfold.json
expect_absent folded.rmsfold-partial
expect_absent folded.rmsfold-partial.lock
run verify model folded
expect_status 0
expect_stdout 'EQUAL'

# A second fold changes nothing and says so.
run fold folded folded-twice
expect_status 0
expect_stderr 'nothing to fold'
expect_same folded/model.safetensors folded-twice/model.safetensors
expect_same folded/config.json folded-twice/config.json

# An existing OUT stays, unless --force.
echo mine >folded-twice/mine
run fold model folded-twice
expect_status 2
expect_stderr '--force'
expect_exists folded-twice/mine
run fold model folded-twice --force
expect_status 0
expect_absent folded-twice/mine
expect_same folded/model.safetensors folded-twice/model.safetensors
expect_same folded/rmsfold.json folded-twice/rmsfold.json

# OUT may not be, contain or lie inside MODEL, links resolved, be it with --force.
ln -s model alias
for out in model model/ model/inside . alias ./alias/inside; do
  run fold model "$out" --force
  expect_status 2
  expect_stderr 'an input is never written'
done
run fold alias model --force
expect_status 2

# Permutations: tie and flags stay, and --inverse with the recipe brings every bit back.
run rotate model moved --rotation signed-permutation --seed 5 --heads
expect_status 0
expect_same model/config.json moved/config.json
expect_different model/model.safetensors moved/model.safetensors
run verify model moved
expect_status 0
expect_stdout '30 bit for bit, 0 within rounding'
run rotate moved back --recipe moved/rmsfold.json --inverse
expect_status 0
expect_same model/model.safetensors back/model.safetensors
expect_same model/config.json back/config.json
run rotate moved back2 --rotation signed-permutation --seed 5 --heads --inverse
expect_status 0
expect_same model/model.safetensors back2/model.safetensors

# A second rotation must be meant.
run rotate moved twice --rotation hadamard
expect_status 2
expect_stderr 'already rotated'
expect_stderr '--again'
expect_absent twice
run rotate moved twice --rotation hadamard --again
expect_status 0

# The same bytes again, for any number of threads.
run rotate model h1 --rotation hadamard --heads --threads 1
expect_status 0
run rotate model h3 --rotation hadamard --heads --threads 3
expect_status 0
for file in model.safetensors rmsfold.json config.json; do expect_same "h1/$file" "h3/$file"; done
run rotate model h4 --rotation hadamard --heads --seed 1
expect_status 0
expect_different h1/model.safetensors h4/model.safetensors

# A dense rotation without the fold is refused, with norm and way out; of a constant gain there is no talk.
run rotate model x --rotation hadamard --no-fold
expect_status 2
expect_stderr 'model.layers.0.input_layernorm carries a gain'
expect_stderr 'signed-permutation'
expect_absent x
run rotate folded unfolded --rotation orthogonal --no-fold
expect_status 0
expect_exists unfolded/rmsfold.rotation
run verify folded unfolded --ignore-manifest
expect_status 0

# The matrix of an earlier run is a rotation like any other.
run rotate folded by-file --rotation unfolded/rmsfold.rotation
expect_status 0
expect_same unfolded/model.safetensors by-file/model.safetensors

# A file that holds exactly a signed permutation moves and negates only; its matrix is kept all the same, since no seed makes it again.
header='{"rotation":{"dtype":"F64","shape":[64,64],"data_offsets":[0,32768]}}'
{
  printf "$(little_endian ${#header})"
  printf '%s' "$header"
  head -c 32768 /dev/zero
} >signed.safetensors
for ((j = 0; j < 64; ++j)); do
  if ((j % 3)); then one='\x00\x00\x00\x00\x00\x00\xf0\x3f'; else one='\x00\x00\x00\x00\x00\x00\xf0\xbf'; fi
  printf "$one" | dd of=signed.safetensors bs=1 seek=$((8 + ${#header} + 8 * (64 * ((j + 5) % 64) + j))) conv=notrunc status=none
done
run rotate folded by-signs --rotation signed.safetensors
expect_status 0
run verify folded by-signs
expect_status 0
run rotate by-signs back-by-signs --recipe by-signs/rmsfold.json --inverse
expect_status 0
expect_same folded/model.safetensors back-by-signs/model.safetensors

# Links are followed, and regular files written.
mkdir blobs linked
cp model/model.safetensors blobs/sha256-abc
cp model/config.json blobs/sha256-def
ln -s ../blobs/sha256-abc linked/model.safetensors
ln -s ../blobs/sha256-def linked/config.json
run fold linked from-links
expect_status 0
expect_same folded/model.safetensors from-links/model.safetensors
[ -L from-links/model.safetensors ] || [ -L from-links/config.json ] && fail 'the output consists of regular files'

# --quiet says nothing, --json one document.
run fold model quiet --quiet
expect_status 0
expect_silent
run rotate model json --rotation permutation --json
expect_status 0
expect_json stdout
expect_stdout '"rotation": "permutation"'

# An overflow, 300 times 300 in F16: exit status 2, the tensor, what to do, and nothing left behind (E3).
large_model narrow 64 F16 2
size=$(stat -c %s narrow/model.safetensors)
head_bytes=$((64 * 64 * 2))
for place in $((size - head_bytes)) $((size - head_bytes - 128)); do
  printf '\xb0\x5c' | dd of=narrow/model.safetensors bs=1 seek="$place" conv=notrunc status=none
done
run fold narrow overflow
expect_status 2
expect_stderr 'tensor lm_head.weight: entry (0, 0) becomes 90000'
expect_stderr BF16
expect_absent overflow
expect_absent overflow.rmsfold-partial

# A pipeline of steps is the same function as one of them.
run rotate folded pipeline --rotation hadamard
expect_status 0
run verify folded pipeline
expect_status 0
run verify model pipeline
expect_status 0

# Whatever happened, the input is as it was.
hash_of model >model.after
expect_same model.before model.after

finish
