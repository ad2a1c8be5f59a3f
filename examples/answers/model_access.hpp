// SPDX-License-Identifier: MIT
#pragma once
// What the answers need of a checkpoint, in plain types: only model_access.cpp compiles the model floor.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace answers {

using rmsfold::Index;
using rmsfold::Linear;
using rmsfold::Matrix;
using rmsfold::RMSNorm;
using rmsfold::RowVector;

/// One norm of the residual stream and all linear layers that read it, by their names in the checkpoint.
struct Site {
  std::string norm;                  ///< e.g. "model.layers.0.input_layernorm"
  std::vector<std::string> readers;  ///< e.g. "model.layers.0.self_attn.q_proj", …
};

/// What a forward pass may change and show; either may be empty.
struct Hooks {
  /// Changes rows `first_row` … of a tensor ("….weight", "….bias") before they are used; a vector comes as one row. A
  /// tied head is called by its own name, so that it may be changed without the embedding. From several threads.
  std::function<void(const std::string& tensor, Index first_row, Matrix<double>& rows)> edit;
  /// Shows what a norm of the residual stream reads, `tokens x width`.
  std::function<void(const std::string& norm, const Matrix<double>& x)> on_norm_input;
};

/// What attention does between its readers and its writer.
struct Attention {
  Index heads = 1, kv_heads = 1;  ///< query heads; key and value heads
  Matrix<double> cosine, sine;    ///< `tokens x pairs`: channels j and j + pairs of every head of queries and keys are
                                  ///< turned by the angle of pair j
};

/// A checkpoint directory. Weights come as F32 (exactly, unless they are stored as F64); the forward pass runs in
/// double.
class Model {
 public:
  explicit Model(const std::string& directory);
  Model(Model&&) noexcept;
  ~Model();

  [[nodiscard]] Index layers() const;
  [[nodiscard]] Index width() const;
  [[nodiscard]] Index vocabulary() const;
  [[nodiscard]] bool head_is_tied() const;
  [[nodiscard]] std::string embedding() const;    ///< module of the embedding
  [[nodiscard]] std::vector<Site> sites() const;  ///< in the order of computation; the head reads the last one

  [[nodiscard]] RMSNorm<float> norm(const std::string& module) const;
  [[nodiscard]] Linear<float> linear(const std::string& module) const;
  [[nodiscard]] Matrix<float> matrix(const std::string& tensor) const;

  [[nodiscard]] Attention attention(Index tokens) const;

  /// Logits, `tokens x vocabulary`.
  [[nodiscard]] Matrix<double> logits(std::span<const Index> tokens, const Hooks& hooks = {}) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The command line of every answer: `PROGRAM [MODEL_DIR [TOKEN_FILE]]`.
struct Input {
  Model model;                ///< the small model that ships, by default
  std::vector<Index> tokens;  ///< whitespace-separated numbers of the file; by default `random_tokens` seeded ones
};
[[nodiscard]] Input open(int argc, char** argv, Index random_tokens);

/// exp of the mean negative log-probability of tokens 1 … given those before.
[[nodiscard]] double perplexity(const Matrix<double>& logits, std::span<const Index> tokens);

/// How far logits moved, over the root mean square of those before.
struct Moved {
  double largest = 0;
  double rms = 0;
};
[[nodiscard]] Moved moved(const Matrix<double>& before, const Matrix<double>& after);

}  // namespace answers
