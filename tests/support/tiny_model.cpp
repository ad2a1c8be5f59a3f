// SPDX-License-Identifier: MIT
#include "support/tiny_model.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include <rmsfold/core/random.hpp>
#include <rmsfold/io/checkpoint.hpp>
#include <rmsfold/tensor/convert.hpp>

#include "support/bytes.hpp"
#include "support/random_layer.hpp"

namespace rmsfold::test {

namespace fs = std::filesystem;

namespace {

/// Tensor by tensor, as the stock class of a family names and shapes them; written without the code under test.
class TinyWriter {
 public:
  explicit TinyWriter(const TinyModel& model) : model_(model), random_(model.seed) {}

  [[nodiscard]] std::vector<TinyTensor> tensors() {
    const Index queries = model_.heads * model_.head_dim;
    const Index values = model_.kv_heads * model_.head_dim;
    const bool is_qwen2 = model_.family == "qwen2";
    const bool qkv_bias = is_qwen2 || (model_.family != "mistral" && model_.attention_bias);
    const bool output_bias = qkv_bias && !is_qwen2;
    const bool mlp_bias = model_.family == "llama" && model_.mlp_bias;
    add("model.embed_tokens.weight", {model_.vocabulary, model_.hidden}, 1);
    for (Index layer = 0; layer < model_.layers; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      gain(at + "input_layernorm", model_.hidden, model_.gain);
      linear(at + "self_attn.q_proj", queries, model_.hidden, qkv_bias);
      linear(at + "self_attn.k_proj", values, model_.hidden, qkv_bias);
      linear(at + "self_attn.v_proj", values, model_.hidden, qkv_bias);
      linear(at + "self_attn.o_proj", model_.hidden, queries, output_bias);
      if (model_.family == "qwen3") {
        gain(at + "self_attn.q_norm", model_.head_dim, 0);
        gain(at + "self_attn.k_norm", model_.head_dim, 0);
      }
      gain(at + "post_attention_layernorm", model_.hidden, model_.gain);
      linear(at + "mlp.gate_proj", model_.intermediate, model_.hidden, mlp_bias);
      linear(at + "mlp.up_proj", model_.intermediate, model_.hidden, mlp_bias);
      linear(at + "mlp.down_proj", model_.hidden, model_.intermediate, mlp_bias);
    }
    gain("model.norm", model_.hidden, model_.gain);
    if (!model_.tied) linear("lm_head", model_.vocabulary, model_.hidden, false);
    return std::move(tensors_);
  }

  [[nodiscard]] io::Json config() const {
    const std::map<std::string, std::string> classes{{"llama", "LlamaForCausalLM"},
                                                     {"mistral", "MistralForCausalLM"},
                                                     {"qwen2", "Qwen2ForCausalLM"},
                                                     {"qwen3", "Qwen3ForCausalLM"}};
    io::Json config{{"architectures", {classes.at(model_.family)}},
                    {"model_type", model_.family},
                    {"hidden_act", "silu"},
                    {"num_hidden_layers", model_.layers},
                    {"hidden_size", model_.hidden},
                    {"intermediate_size", model_.intermediate},
                    {"vocab_size", model_.vocabulary},
                    {"num_attention_heads", model_.heads},
                    {"num_key_value_heads", model_.kv_heads},
                    {"rms_norm_eps", model_.eps},
                    {"rope_theta", 10000.0},
                    {"tie_word_embeddings", model_.tied}};
    if (model_.writes_head_dim) config["head_dim"] = model_.head_dim;
    if (model_.family == "llama" || model_.family == "qwen3") config["attention_bias"] = model_.attention_bias;
    if (model_.family == "llama") config["mlp_bias"] = model_.mlp_bias;
    return config;
  }

 private:
  void add(const std::string& name, std::vector<Index> shape, double scale) {
    TinyTensor tensor{name, model_.dtype, {}, {}};
    Index count = 1;
    for (const Index extent : shape) {
      tensor.shape.push_back(static_cast<std::uint64_t>(extent));
      count *= extent;
    }
    for (Index i = 0; i < count; ++i) tensor.values.push_back(scale * random_.normal());
    tensors_.push_back(std::move(tensor));
  }

  void linear(const std::string& module, Index out, Index in, bool has_bias) {
    add(module + ".weight", {out, in}, 1 / std::sqrt(static_cast<double>(in)));
    if (has_bias) add(module + ".bias", {out}, 0.5);
  }

  void gain(const std::string& module, Index n, double constant) {
    const RowVector<double> values = constant != 0 ? RowVector<double>::Constant(n, constant) : random_gain(n, random_);
    tensors_.push_back({module + ".weight",
                        model_.norm_dtype.empty() ? model_.dtype : model_.norm_dtype,
                        {static_cast<std::uint64_t>(n)},
                        {values.data(), values.data() + n}});
  }

  const TinyModel& model_;
  Random random_;
  std::vector<TinyTensor> tensors_;
};

[[nodiscard]] std::vector<std::byte> encoded(const TinyTensor& tensor, std::uint64_t size) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  const auto dtype = dtype_from_name(tensor.dtype);
  // A place of -1 says that nothing overflowed; an infinity that was asked for is written all the same.
  if (dtype) static_cast<void>(store_rounded(*dtype, tensor.values, bytes));
  return bytes;
}

}  // namespace

TinyModel tiny(const std::string& family) {
  TinyModel model;
  model.family = family;
  model.attention_bias = true;
  model.mlp_bias = true;
  if (family == "mistral") {
    model.hidden = 64;
    model.intermediate = 56;
    model.vocabulary = 96;
    model.heads = 4;
    model.head_dim = 8;
  } else if (family == "qwen2") {
    model.heads = 4;
    model.writes_head_dim = false;
  } else if (family == "qwen3") {
    model.hidden = 80;
    model.vocabulary = 96;
    model.heads = 3;
    model.kv_heads = 1;
  }
  return model;
}

const std::vector<std::string>& tiny_families() {
  static const std::vector<std::string> families{"llama", "mistral", "qwen2", "qwen3"};
  return families;
}

fs::path write_model(const fs::path& directory, const TinyModel& model) {
  TinyWriter writer(model);
  io::Json config = writer.config();
  std::vector<TinyTensor> tensors = writer.tensors();
  if (model.edit_config) model.edit_config(config);
  if (model.edit_tensors) model.edit_tensors(tensors);
  if (!fs::create_directory(directory)) throw std::runtime_error("exists: " + directory.string());
  write_bytes(directory / "config.json", config.dump(2) + "\n");

  io::Json index{{"metadata", {{"total_size", 0}}}, {"weight_map", io::Json::object()}};
  std::uint64_t total = 0;
  for (std::size_t shard = 0; shard < model.shards; ++shard) {
    const std::string name = model.shards == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, model.shards);
    const std::size_t first = tensors.size() * shard / model.shards;
    const std::size_t last = tensors.size() * (shard + 1) / model.shards;
    std::vector<io::TensorInfo> infos;
    for (std::size_t i = first; i < last; ++i) {
      infos.push_back(io::make_tensor(tensors[i].name, tensors[i].dtype, tensors[i].shape));
      index["weight_map"][tensors[i].name] = name;
      total += infos.back().bytes();
    }
    io::SafetensorsWriter file(directory / name, infos, io::Metadata{{"format", "pt"}});
    for (std::size_t i = first; i < last; ++i) file.write(i - first, 0, encoded(tensors[i], infos[i - first].bytes()));
    file.finish(false);
  }
  index["metadata"]["total_size"] = total;
  if (model.shards > 1) write_bytes(directory / "model.safetensors.index.json", index.dump(2) + "\n");
  return directory;
}

std::vector<std::string> tensor_names(const fs::path& model) { return io::Checkpoint(model).tensor_names(); }

bool has_tensor(const fs::path& model, const std::string& name) { return io::Checkpoint(model).find(name) != nullptr; }

std::string tensor_bytes(const fs::path& model, const std::string& name) {
  const std::vector<std::byte> bytes = io::Checkpoint(model).read(name);
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

std::vector<double> tensor_values(const fs::path& model, const std::string& name) {
  const io::Checkpoint checkpoint(model);
  const std::vector<std::byte> bytes = checkpoint.read(name);
  const Dtype dtype = dtype_from_name(checkpoint.find(name)->info->dtype).value();
  std::vector<double> values(bytes.size() / size_of(dtype));
  load_as_double(dtype, bytes, values);
  return values;
}

Matrix<double> tensor_matrix(const fs::path& model, const std::string& name) {
  const std::vector<double> values = tensor_values(model, name);
  const io::Checkpoint checkpoint(model);
  const Index cols = static_cast<Index>(checkpoint.find(name)->info->shape.back());
  return Eigen::Map<const Matrix<double>>(values.data(), static_cast<Index>(values.size()) / cols, cols);
}

std::string tensor_type(const fs::path& model, const std::string& name) {
  const io::Checkpoint checkpoint(model);
  const io::TensorInfo& info = *checkpoint.find(name)->info;
  return info.dtype + " " + to_string(info.shape);
}

void set_tensor_bytes(const fs::path& model, const std::string& name, const std::string& bytes) {
  fs::path path;
  std::uint64_t begin = 0;
  {
    const io::Checkpoint checkpoint(model);
    const io::TensorPlace* place = checkpoint.find(name);
    if (place == nullptr || place->info->bytes() != bytes.size())
      throw std::logic_error("no such tensor or size: " + name);
    path = model / checkpoint.shards()[place->shard].name;
    begin = place->info->begin;
  }
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  unsigned char length[8] = {};
  file.read(reinterpret_cast<char*>(length), sizeof length);
  for (int i = 0; i < 8; ++i) begin += static_cast<std::uint64_t>(length[i]) << (8 * i);
  file.seekp(static_cast<std::streamoff>(begin + sizeof length));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

void set_tensor_values(const fs::path& model, const std::string& name, const std::vector<double>& values) {
  const io::Checkpoint checkpoint(model);
  const io::TensorInfo& info = *checkpoint.find(name)->info;
  const std::vector<std::byte> bytes = encoded({name, info.dtype, info.shape, values}, info.bytes());
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  set_tensor_bytes(model, name, text);
}

void edit_config(const fs::path& model, const std::function<void(io::Json& config)>& edit) {
  io::Json config = io::read_json_file(model / "config.json");
  edit(config);
  write_bytes(model / "config.json", config.dump(2) + "\n");
}

std::map<std::string, std::string> all_files(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = entry.is_directory() ? "(folder)" : read_bytes(entry.path());
  }
  return files;
}

}  // namespace rmsfold::test
