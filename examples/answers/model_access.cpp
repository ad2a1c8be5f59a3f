// SPDX-License-Identifier: MIT
#include "model_access.hpp"

#include <cmath>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <rmsfold/core/random.hpp>
#include <rmsfold/model/decoder.hpp>
#include <rmsfold/model/sites.hpp>

namespace answers {

struct Model::Parts {
  explicit Parts(const std::string& directory) : model(directory) {}
  rmsfold::model::Model model;
};

Model::Model(const std::string& directory) : parts_(std::make_unique<Parts>(directory)) {}
Model::Model(Model&&) noexcept = default;
Model::~Model() = default;

Index Model::layers() const { return parts_->model.graph().size.layers; }
Index Model::width() const { return parts_->model.graph().size.hidden; }
Index Model::vocabulary() const { return parts_->model.graph().size.vocabulary; }
bool Model::head_is_tied() const { return parts_->model.head_is_tied(); }

std::string Model::embedding() const {
  const std::string tensor = parts_->model.embedding_tensor();
  return tensor.substr(0, tensor.rfind('.'));
}

std::vector<Site> Model::sites() const {
  std::vector<Site> result;
  for (const rmsfold::model::Site& site : rmsfold::model::find_sites(parts_->model)) {
    result.push_back({site.norm->module, {}});
    for (const rmsfold::model::Node* reader : site.readers) result.back().readers.push_back(reader->module);
  }
  return result;
}

RMSNorm<float> Model::norm(const std::string& module) const {
  const RowVector<double> gain = parts_->model.read_vector(module + ".weight");
  return {rmsfold::rounded<float>(gain), parts_->model.graph().size.eps};
}

Linear<float> Model::linear(const std::string& module) const {
  Linear<float> result{matrix(module + ".weight"), std::nullopt};
  if (parts_->model.param_index(module + ".bias") >= 0)
    result.bias = rmsfold::rounded<float>(parts_->model.read_vector(module + ".bias"));
  return result;
}

Matrix<float> Model::matrix(const std::string& tensor) const {
  return rmsfold::rounded<float>(parts_->model.read_matrix(tensor));
}

Attention Model::attention(Index tokens) const {
  const rmsfold::model::Dimensions& size = parts_->model.graph().size;
  auto [cosine, sine] = rmsfold::model::detail::rotary_tables<float>(
      rmsfold::model::read_rotary(parts_->model.config(), size.head_dim), tokens);
  return {size.heads, size.kv_heads, std::move(cosine), std::move(sine)};
}

Matrix<double> Model::logits(std::span<const Index> tokens, const Hooks& hooks) const {
  rmsfold::model::ForwardOptions options;
  options.edit = hooks.edit;
  if (hooks.on_norm_input) {
    options.on_norm_input = [&](const rmsfold::model::Node& norm, const Matrix<double>& x) {
      hooks.on_norm_input(norm.module, x);
    };
  }
  return rmsfold::model::Decoder(parts_->model).logits(tokens, options);
}

Input open(int argc, char** argv, Index random_tokens) {
  Input input{Model(argc > 1 ? argv[1] : "data/tiny-llama"), {}};
  if (argc > 2) {
    std::ifstream file(argv[2]);
    for (Index token = 0; file >> token;) input.tokens.push_back(token);
    if (!file.eof() || input.tokens.size() < 2)
      throw std::runtime_error(std::string(argv[2]) + " is not a list of token numbers");
  } else {
    rmsfold::Random random(1);
    for (Index t = 0; t < random_tokens; ++t) {
      input.tokens.push_back(static_cast<Index>(random.below(static_cast<std::uint64_t>(input.model.vocabulary()))));
    }
  }
  return input;
}

double perplexity(const Matrix<double>& logits, std::span<const Index> tokens) {
  double sum = 0;
  for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
    const RowVector<double> row = logits.row(static_cast<Index>(t));
    const double largest = row.maxCoeff();
    sum += largest + std::log((row.array() - largest).exp().sum()) - row[tokens[t + 1]];
  }
  return std::exp(sum / static_cast<double>(tokens.size() - 1));
}

Moved moved(const Matrix<double>& before, const Matrix<double>& after) {
  const double rms = before.norm() / std::sqrt(static_cast<double>(before.size()));
  return {(after - before).cwiseAbs().maxCoeff() / rms, (after - before).norm() / before.norm()};
}

}  // namespace answers
