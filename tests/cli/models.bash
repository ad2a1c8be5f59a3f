# Models for the scripts of this folder: source it after harness.bash.

# The demo checkpoint: llama, tied, BF16, 3 layers of width 64.
demo_model="$RMSFOLD_SOURCE_DIR/examples/data/tiny-llama"

# hash_of DIRECTORY: one line per file, links resolved.
hash_of() { (cd "$1" && find . -type f -o -type l | LC_ALL=C sort | xargs cksum); }

# little_endian NUMBER: eight bytes, as escapes for printf.
little_endian() {
  local i value=$1
  for i in 1 2 3 4 5 6 7 8; do
    printf '\\x%02x' $((value & 255))
    value=$((value >> 8))
  done
}

# large_model DIRECTORY VOCABULARY [DTYPE BYTES]: an untied one-layer llama of width 64 whose weights are all 0, in F32 unless said; sparse. Its last two
# tensors are model.norm and lm_head.
large_model() {
  local directory=$1 vocabulary=$2 dtype=${3:-F32} bytes=${4:-4} header='' end=0
  add_tensor() {  # NAME ROWS [COLUMNS]
    local size=$((bytes * $2 * ${3:-1})) shape=$2
    [ $# -eq 3 ] && shape="$2,$3"
    header="$header${header:+,}\"$1.weight\":{\"dtype\":\"$dtype\",\"shape\":[$shape],\"data_offsets\":[$end,$((end + size))]}"
    end=$((end + size))
  }
  add_tensor model.embed_tokens "$vocabulary" 64
  add_tensor model.layers.0.input_layernorm 64
  add_tensor model.layers.0.self_attn.q_proj 64 64
  add_tensor model.layers.0.self_attn.k_proj 32 64
  add_tensor model.layers.0.self_attn.v_proj 32 64
  add_tensor model.layers.0.self_attn.o_proj 64 64
  add_tensor model.layers.0.post_attention_layernorm 64
  add_tensor model.layers.0.mlp.gate_proj 96 64
  add_tensor model.layers.0.mlp.up_proj 96 64
  add_tensor model.layers.0.mlp.down_proj 64 96
  add_tensor model.norm 64
  add_tensor lm_head "$vocabulary" 64
  header="{$header}"
  mkdir "$directory"
  # shellcheck disable=SC2059  # the length is made of escapes
  { printf "$(little_endian ${#header})"; printf '%s' "$header"; } >"$directory/model.safetensors"
  truncate -s $((8 + ${#header} + end)) "$directory/model.safetensors"
  cat >"$directory/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96,
 "vocab_size": $vocabulary, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-05, "tie_word_embeddings": false}
JSON
}

# expect_json FILE: one JSON document, strictly read: as a config.json, which the program then finds to be without weights.
expect_json() {
  checks=$((checks + 1))
  mkdir -p "$work/as-config"
  cp "$1" "$work/as-config/config.json"
  local said
  said=$("$RMSFOLD" inspect "$work/as-config" 2>&1)
  [[ $said == *"has no weights"* ]] || fail "expected a JSON object in $1"
}
