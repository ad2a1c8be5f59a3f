// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Small random checkpoints of every family, in which no mistake can hide; and a look at, or a hand on, single tensors.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/io/json.hpp>
#include <rmsfold/tensor/shape.hpp>

namespace rmsfold::test {

/// One tensor of a checkpoint in the making.
struct TinyTensor {
  std::string name;
  std::string dtype;  ///< F64, F32, F16 or BF16; anything else gets zero bytes
  Shape shape;
  std::vector<double> values;
};

/// What to write. Sizes differ from each other; every bias the config allows is there; gains are away from 1 and partly
/// negative.
struct TinyModel {
  std::string family = "llama";  ///< sets the sizes below in `tiny()`
  std::string dtype = "F32";     ///< of everything but norms
  std::string norm_dtype = {};   ///< of norms; empty: as the rest
  Index layers = 2, hidden = 48, intermediate = 40, vocabulary = 72, heads = 6, kv_heads = 2, head_dim = 12;
  bool writes_head_dim = true;  ///< whether config.json has the key
  bool attention_bias = false, mlp_bias = false;
  bool tied = false;
  double eps = 1e-5;
  double gain = 0;         ///< of every norm of the stream; 0: random
  std::size_t shards = 1;  ///< above 1: with an index
  std::uint64_t seed = 1;
  std::function<void(io::Json& config)> edit_config = {};
  std::function<void(std::vector<TinyTensor>& tensors)> edit_tensors = {};
};

/// The usual one of a family: "llama" has every bias, "qwen2" no key head_dim, "qwen3" one kv head and gains inside
/// heads.
[[nodiscard]] TinyModel tiny(const std::string& family);

/// Writes it to a new directory and returns that.
std::filesystem::path write_model(const std::filesystem::path& directory, const TinyModel& model);

/// The families there are.
[[nodiscard]] const std::vector<std::string>& tiny_families();

/// Names of all tensors, file by file, in the order of the headers.
[[nodiscard]] std::vector<std::string> tensor_names(const std::filesystem::path& model);
/// Whether there is one of that name.
[[nodiscard]] bool has_tensor(const std::filesystem::path& model, const std::string& name);
/// Bytes of a stored tensor.
[[nodiscard]] std::string tensor_bytes(const std::filesystem::path& model, const std::string& name);
/// Its values.
[[nodiscard]] std::vector<double> tensor_values(const std::filesystem::path& model, const std::string& name);
/// The same as a matrix; a vector is one row.
[[nodiscard]] Matrix<double> tensor_matrix(const std::filesystem::path& model, const std::string& name);
/// "BF16 [48, 40]".
[[nodiscard]] std::string tensor_type(const std::filesystem::path& model, const std::string& name);
/// Overwrites a stored tensor in its file.
void set_tensor_bytes(const std::filesystem::path& model, const std::string& name, const std::string& bytes);
/// The same with numbers, rounded to its type.
void set_tensor_values(const std::filesystem::path& model, const std::string& name, const std::vector<double>& values);
/// Changes config.json.
void edit_config(const std::filesystem::path& model, const std::function<void(io::Json& config)>& edit);

/// Every file of a directory and its bytes.
[[nodiscard]] std::map<std::string, std::string> all_files(const std::filesystem::path& directory);

}  // namespace rmsfold::test
