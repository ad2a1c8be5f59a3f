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

# large_model DIRECTORY VOCABULARY [DTYPE BYTES [INTERMEDIATE]]: an untied one-layer llama of width 64 whose weights are all 0, in F32 unless said; sparse. Its
# last two tensors are model.norm and lm_head.
large_model() {
  local directory=$1 vocabulary=$2 dtype=${3:-F32} bytes=${4:-4} intermediate=${5:-96} header='' end=0
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
  add_tensor model.layers.0.mlp.gate_proj "$intermediate" 64
  add_tensor model.layers.0.mlp.up_proj "$intermediate" 64
  add_tensor model.layers.0.mlp.down_proj 64 "$intermediate"
  add_tensor model.norm 64
  add_tensor lm_head "$vocabulary" 64
  header="{$header}"
  mkdir "$directory"
  # shellcheck disable=SC2059  # the length is made of escapes
  { printf "$(little_endian ${#header})"; printf '%s' "$header"; } >"$directory/model.safetensors"
  truncate -s $((8 + ${#header} + end)) "$directory/model.safetensors"
  cat >"$directory/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": $intermediate,
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

# noise BYTES: BF16 numbers below 2 of either sign, the same each time; a block of a prime number of bytes over and over, so that no two rows are equal.
noise() {
  local block=$work/noise
  if [ ! -e "$block" ]; then
    LC_ALL=C awk 'BEGIN { srand(1); for (i = 0; i < 100003; i++) printf "%c", 48 + int(16 * rand()) + (rand() < 0.5 ? 128 : 0) }' >"$block"
  fi
  while cat "$block" 2>"$work/noise.errors"; do :; done | head -c "$1"
}

# sharded_model DIRECTORY LAYERS VOCABULARY: an untied llama of width 256 in BF16, a file per layer and one each for embedding and head.
sharded_model() {
  local directory=$1 layers=$2 vocabulary=$3 header end weight_map='' file layer
  mkdir "$directory"
  begin_file() {
    file=$(printf 'model-%05d-of-%05d.safetensors' $(($1 + 1)) $((layers + 2)))
    header=''
    end=0
  }
  add_tensor() {  # NAME ROWS [COLUMNS]
    local size=$((2 * $2 * ${3:-1})) shape=$2
    [ $# -eq 3 ] && shape="$2,$3"
    header="$header${header:+,}\"$1.weight\":{\"dtype\":\"BF16\",\"shape\":[$shape],\"data_offsets\":[$end,$((end + size))]}"
    weight_map="$weight_map${weight_map:+,}\"$1.weight\":\"$file\""
    end=$((end + size))
  }
  end_file() {
    # shellcheck disable=SC2059  # the length is made of escapes
    { printf "$(little_endian $((${#header} + 2)))"; printf '{%s}' "$header"; noise "$end"; } >"$directory/$file"
  }
  begin_file 0
  add_tensor model.embed_tokens "$vocabulary" 256
  end_file
  for layer in $(seq 0 $((layers - 1))); do
    begin_file $((layer + 1))
    add_tensor "model.layers.$layer.input_layernorm" 256
    add_tensor "model.layers.$layer.self_attn.q_proj" 256 256
    add_tensor "model.layers.$layer.self_attn.k_proj" 128 256
    add_tensor "model.layers.$layer.self_attn.v_proj" 128 256
    add_tensor "model.layers.$layer.self_attn.o_proj" 256 256
    add_tensor "model.layers.$layer.post_attention_layernorm" 256
    add_tensor "model.layers.$layer.mlp.gate_proj" 1024 256
    add_tensor "model.layers.$layer.mlp.up_proj" 1024 256
    add_tensor "model.layers.$layer.mlp.down_proj" 256 1024
    end_file
  done
  begin_file $((layers + 1))
  add_tensor model.norm 256
  add_tensor lm_head "$vocabulary" 256
  end_file
  printf '{"metadata":{},"weight_map":{%s}}\n' "$weight_map" >"$directory/model.safetensors.index.json"
  echo '{"version": "1.0"}' >"$directory/tokenizer.json"
  cat >"$directory/config.json" <<JSON
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": $layers, "hidden_size": 256,
 "intermediate_size": 1024, "vocab_size": $vocabulary, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-05,
 "tie_word_embeddings": false}
JSON
}

# start ARGUMENTS...: the program in the background; its process id is in $child. start_slowly: so that who watches it is faster.
start() {
  # A job of its own, since a shell without job control has background jobs ignore SIGINT.
  set -m
  nice -n "${niceness:-0}" "$RMSFOLD" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null &
  child=$!
  set +m
  last_command="rmsfold $*"
}

start_slowly() { niceness=19 start "$@"; }

# await: until what was started has ended; its exit status is in $status.
await() {
  wait "$child" 2>/dev/null
  status=$?
}

# freeze_when FILE: stops what was started as soon as there is such a file with something in it; fails when it ends before.
freeze_when() {
  local _
  for _ in $(seq 10000); do
    [ -s "$1" ] && break
    kill -0 "$child" 2>/dev/null || break
    sleep 0.002
  done
  kill -STOP "$child" 2>/dev/null
  checks=$((checks + 1))
  [ -s "$1" ] || fail "expected $1 while the program runs"
}

# expect_same_files DIRECTORY DIRECTORY: equal names and bytes.
expect_same_files() { checks=$((checks + 1)); diff -r -- "$1" "$2" >"$work/differences" 2>&1 || fail "expected equal: $1 and $2: $(head -n 3 "$work/differences")"; }
