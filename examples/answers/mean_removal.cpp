// SPDX-License-Identifier: MIT
// What subtracting the mean of every embedding row does to a model whose norms are RMSNorms.
//
//   mean_removal [MODEL_DIR [TOKEN_FILE]]
#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <rmsfold/fold/centre.hpp>
#include <rmsfold/rmsfold.hpp>

#include "model_access.hpp"

using namespace rmsfold;

/// Smallest, median, largest of a list.
struct Range {
  double least = 0, median = 0, largest = 0;
};
Range range_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

int main(int argc, char** argv) try {
  const answers::Input input = answers::open(argc, argv, 128);
  const answers::Model& model = input.model;
  const Matrix<float> embedding = model.matrix(model.embedding() + ".weight");
  bool as_claimed = true;
  const auto claim = [&](bool holds, const char* what) {
    if (!holds) fmt::print("NOT AS CLAIMED: {}\n", what);
    as_claimed = as_claimed && holds;
  };

  // How large the means are.
  std::vector<double> share;
  for (Index i = 0; i < embedding.rows(); ++i) {
    const RowVector<double> row = embedding.row(i).cast<double>();
    share.push_back(std::fabs(row.mean()) * std::sqrt(static_cast<double>(row.size())) / row.norm());
  }
  const Range all = range_of(share);
  fmt::print("|mean| / rms of {} embedding rows of width {}: least {:.1e}, median {:.4f}, largest {:.4f}\n",
             embedding.rows(), embedding.cols(), all.least, all.median, all.largest);
  const double at_random = 0.6745 / std::sqrt(static_cast<double>(embedding.cols()));  // median of |N(0, 1/n)|
  fmt::print("random rows of this width: median {:.4f}\n\n", at_random);

  // The first norm on the rows of the text. RMSNorm has no centring to ask for:
  //   centre_embedding(rms_norm, rows);   // does not compile: "an identity before a LayerNorm only"
  // so what such a norm would have to be is built by hand: a LayerNorm with the same gain, which is not in this model.
  const RMSNorm<float> rms_norm = model.norm(model.sites().front().norm);
  const LayerNorm<float> layer_norm(rms_norm.weight(), std::nullopt, rms_norm.eps());
  Matrix<double> rows(static_cast<Index>(input.tokens.size()), embedding.cols());
  for (std::size_t t = 0; t < input.tokens.size(); ++t)
    rows.row(static_cast<Index>(t)) = embedding.row(input.tokens[t]).cast<double>();
  const Matrix<double> centred = centre_embedding(layer_norm, rows);
  const Matrix<double> twice = centre_embedding(layer_norm, centred);
  const auto change = [](const Matrix<double>& after, const Matrix<double>& before) {
    return (after - before).norm() / before.norm();
  };
  const double of_layer_norm = change(layer_norm.apply(centred), layer_norm.apply(rows));
  const double of_rms_norm = change(rms_norm.apply(centred), rms_norm.apply(rows));
  const double of_zero_mean = change(rms_norm.apply(twice), rms_norm.apply(centred));
  fmt::print("the first norm's output, embedding centred against not\n");
  fmt::print("  {:<44}{:>10.1e}\n  {:<44}{:>10.1e}\n  {:<44}{:>10.1e}\n\n", "as it is, an RMSNorm", of_rms_norm,
             "as it is, rows that already had zero mean", of_zero_mean, "a LayerNorm of the same gain", of_layer_norm);
  // Sums of n terms, a few of them.
  const double rounding = 10 * gamma_n(static_cast<double>(embedding.cols()), unit_roundoff<double>());
  claim(of_layer_norm <= rounding, "centring is an identity before a LayerNorm");
  claim(of_zero_mean <= rounding, "rows of zero mean stay");
  claim(of_rms_norm > 1e6 * rounding, "centring changes what an RMSNorm sees");

  // The whole model. Edits are made in double: nothing here is rounding.
  const std::string embedding_name = model.embedding() + ".weight";
  const auto centre_rows = [](Matrix<double>& m) {
    for (Index i = 0; i < m.rows(); ++i) m.row(i).array() -= m.row(i).mean();
  };
  std::map<std::string, RowVector<double>> writers;  // mean over the output axis, for each input
  for (Index layer = 0; layer < model.layers(); ++layer) {
    for (const char* part : {"self_attn.o_proj", "mlp.down_proj"}) {
      const std::string name = fmt::format("model.layers.{}.{}.weight", layer, part);
      writers.emplace(name, model.matrix(name).cast<double>().colwise().mean());
    }
  }
  answers::Hooks embedding_only, with_head, every_writer;
  embedding_only.edit = [&](const std::string& tensor, Index, Matrix<double>& m) {
    if (tensor == embedding_name) centre_rows(m);
  };
  with_head.edit = [&](const std::string& tensor, Index, Matrix<double>& m) {
    if (tensor == embedding_name || tensor == "lm_head.weight") centre_rows(m);
  };
  every_writer.edit = [&](const std::string& tensor, Index first, Matrix<double>& m) {
    embedding_only.edit(tensor, first, m);
    if (const auto writer = writers.find(tensor); writer != writers.end()) m.rowwise() -= writer->second;
  };

  const Matrix<double> before = model.logits(input.tokens);
  fmt::print("the model on {} tokens; logits moved over their root mean square\n{:<50}{:>12}{:>12}{:>14}\n",
             input.tokens.size(), "", "largest", "rms", "perplexity");
  fmt::print("{:<50}{:>12}{:>12}{:>14.7g}\n", "as it is", "", "", answers::perplexity(before, input.tokens));
  const auto row = [&](const char* what, const answers::Hooks& hooks) {
    const Matrix<double> after = model.logits(input.tokens, hooks);
    const answers::Moved moved = answers::moved(before, after);
    fmt::print("{:<50}{:>12.2e}{:>12.2e}{:>14.7g}\n", what, moved.largest, moved.rms,
               answers::perplexity(after, input.tokens));
    return moved.rms;
  };
  const double embedding_moved = row("embedding centred", embedding_only);
  const double head_moved = model.head_is_tied() ? row("embedding and the head tied to it centred", with_head) : 1;
  const double writers_moved = row("embedding and every writer centred", every_writer);
  // F32 roundings would move logits by about 1e-6 (docs/results.md); this is no rounding.
  claim(embedding_moved > 1e-5 && head_moved > 1e-5 && writers_moved > 1e-5, "the model has changed");
  return as_claimed ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "mean_removal: {}\n", error.what());
  return 2;
}
