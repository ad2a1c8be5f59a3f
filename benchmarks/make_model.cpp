// SPDX-License-Identifier: MIT
// Writes a llama-shaped checkpoint of random weights, for timing:
//   make_model DIR [--hidden 4096] [--intermediate 11008] [--layers 4] [--vocabulary 32000] [--heads 32] [--dtype BF16] [--shards 2] [--sparse no]
// With --sparse yes the headers are real and the weights are holes: any size takes no room.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/core/random.hpp>
#include <rmsfold/io/safetensors.hpp>
#include <rmsfold/tensor/convert.hpp>

namespace {

using namespace rmsfold;

/// Values near those of trained weights; a short random tape read from many places is as incompressible as a fresh draw and much faster.
class Tape {
 public:
  explicit Tape(Dtype dtype) : element_(size_of(dtype)), bytes_(element_ * length) {
    Random random(1);
    std::vector<double> values(length);
    for (double& value : values) value = 0.02 * random.normal();
    static_cast<void>(store_rounded(dtype, values, bytes_));
    for (double& value : values) value = std::exp(0.3 * random.normal());
    gains_.resize(bytes_.size());
    static_cast<void>(store_rounded(dtype, values, gains_));
  }

  void write(io::SafetensorsWriter& writer, std::size_t index, bool is_gain, Random& random) const {
    const std::uint64_t bytes = writer.tensors()[index].bytes();
    const std::vector<std::byte>& tape = is_gain ? gains_ : bytes_;
    for (std::uint64_t at = 0; at < bytes;) {
      const std::size_t start = static_cast<std::size_t>(random.below(length / 2)) * element_;
      const std::size_t count = static_cast<std::size_t>((std::min<std::uint64_t>)(tape.size() - start, bytes - at));
      writer.write(index, at, std::span(tape).subspan(start, count));
      at += count;
    }
  }

 private:
  static constexpr std::size_t length = std::size_t{1} << 21;
  std::size_t element_;
  std::vector<std::byte> bytes_;
  std::vector<std::byte> gains_;
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options{{"--hidden", "4096"},     {"--intermediate", "11008"}, {"--layers", "4"}, {"--vocabulary", "32000"},
                                             {"--heads", "32"},        {"--kv-heads", ""},          {"--dtype", "BF16"}, {"--shards", "2"},
                                             {"--sparse", "no"}};
  if (argc < 2 || argc % 2 != 0) {
    fmt::print(stderr, "usage: make_model DIR [--hidden N] [--intermediate N] [--layers N] [--vocabulary N] [--heads N] [--kv-heads N] [--dtype D] [--shards N] [--sparse yes]\n");
    return 2;
  }
  for (int i = 2; i + 1 < argc; i += 2) {
    if (!options.contains(argv[i])) {
      fmt::print(stderr, "make_model: no option {}\n", argv[i]);
      return 2;
    }
    options[argv[i]] = argv[i + 1];
  }
  const auto number = [&](const char* name) { return std::stoull(options[name].empty() ? options["--heads"] : options[name]); };
  const std::uint64_t hidden = number("--hidden"), intermediate = number("--intermediate"), layers = number("--layers"), vocabulary = number("--vocabulary"),
                      heads = number("--heads"), kv_heads = number("--kv-heads"), shards = number("--shards"), head_dim = hidden / heads;
  const std::string dtype = options["--dtype"];

  std::vector<io::TensorInfo> tensors;
  const auto add = [&](std::string name, Shape shape) {
    io::TensorInfo& tensor = tensors.emplace_back();
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
  };
  add("model.embed_tokens.weight", {vocabulary, hidden});
  for (std::uint64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {heads * head_dim, hidden});
    add(layer + "self_attn.k_proj.weight", {kv_heads * head_dim, hidden});
    add(layer + "self_attn.v_proj.weight", {kv_heads * head_dim, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, heads * head_dim});
    add(layer + "post_attention_layernorm.weight", {hidden});
    add(layer + "mlp.gate_proj.weight", {intermediate, hidden});
    add(layer + "mlp.up_proj.weight", {intermediate, hidden});
    add(layer + "mlp.down_proj.weight", {hidden, intermediate});
  }
  add("model.norm.weight", {hidden});
  add("lm_head.weight", {vocabulary, hidden});

  const std::filesystem::path directory = argv[1];
  std::filesystem::create_directories(directory);
  const Tape tape(*dtype_from_name(dtype));
  Random random(2);
  std::string index = "{\"metadata\": {}, \"weight_map\": {";
  const std::size_t per_shard = (tensors.size() + shards - 1) / shards;
  for (std::size_t first = 0, shard = 1; first < tensors.size(); first += per_shard, ++shard) {
    const std::string name = shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard, shards);
    const std::vector<io::TensorInfo> own(tensors.begin() + static_cast<std::ptrdiff_t>(first),
                                          tensors.begin() + static_cast<std::ptrdiff_t>((std::min)(first + per_shard, tensors.size())));
    const std::filesystem::path path = directory / name;
    for (const io::TensorInfo& tensor : own) index += fmt::format("{}\"{}\": \"{}\"", index.ends_with('{') ? "" : ", ", tensor.name, name);
    io::SafetensorsWriter writer(path, own);
    if (options["--sparse"] == "yes") {
      std::filesystem::resize_file(path, writer.place_of(own.size() - 1) + writer.tensors().back().bytes());
      continue;
    }
    for (std::size_t i = 0; i < own.size(); ++i) tape.write(writer, i, own[i].name.find("norm") != std::string::npos, random);
    writer.finish(false);
  }
  if (shards > 1) io::write_text_file(directory / "model.safetensors.index.json", index + "}}\n");
  io::write_text_file(directory / "config.json",
                      fmt::format("{{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": {}, \"intermediate_size\": {}, "
                                  "\"num_hidden_layers\": {}, \"num_attention_heads\": {}, \"num_key_value_heads\": {}, \"head_dim\": {}, \"vocab_size\": {}, "
                                  "\"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}}\n",
                                  hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary));
}
