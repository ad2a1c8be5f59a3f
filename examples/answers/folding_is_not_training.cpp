// SPDX-License-Identifier: MIT
// A folded gain is the same function and another optimisation problem: one training step of W·diag(g) with W and g
// apart and as one matrix M, on a real layer; then the test that the function is the same, on a whole checkpoint.
//
//   folding_is_not_training [MODEL_DIR [TOKEN_FILE]]
#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <rmsfold/rmsfold.hpp>

#include "model_access.hpp"

using namespace rmsfold;

/// W and g, and the same shapes for their gradients; the norm computes with g, the readers with W. M = W·diag(g).
struct Parts {
  Matrix<double> w;
  RowVector<double> g;
  Matrix<double> product() const { return w * g.asDiagonal(); }
  double norm() const { return std::sqrt(w.squaredNorm() + g.squaredNorm()); }
};

/// A first step of Adam from a fresh state, per unit of learning rate: the gradient over its own magnitude.
template <class D>
auto adam_direction(const D& gradient) {
  return D(gradient.array() / (gradient.array().abs() + 1e-8));
}

double cosine(const Matrix<double>& a, const Matrix<double>& b) {
  return a.cwiseProduct(b).sum() / (a.norm() * b.norm());
}

int main(int argc, char** argv) try {
  const answers::Input input = answers::open(argc, argv, 128);
  const answers::Model& model = input.model;
  const std::vector<answers::Site> sites = model.sites();
  // A layer in the middle, before its MLP.
  const answers::Site& site = sites[static_cast<std::size_t>(model.layers() / 2 * 2 + 1)];
  bool as_claimed = true;
  const auto claim = [&](bool holds, const char* what) {
    if (!holds) fmt::print("NOT AS CLAIMED: {}\n", what);
    as_claimed = as_claimed && holds;
  };

  Matrix<double> x;
  answers::Hooks watch;
  watch.on_norm_input = [&](const std::string& norm, const Matrix<double>& seen) {
    if (norm == site.norm) x = seen.topRows((std::min)(seen.rows(), Index{256}));
  };
  const Matrix<double> before = model.logits(input.tokens, watch);

  // Least squares on the site's readers: outputs as they are, plus noise of a tenth of their size, are to be matched.
  const RMSNorm<float> norm = model.norm(site.norm);
  Parts parts{Matrix<double>(0, model.width()), norm.gain()};
  for (const std::string& reader : site.readers) {
    const Matrix<double> weight = model.linear(reader).weight.cast<double>();
    Matrix<double> stacked(parts.w.rows() + weight.rows(), model.width());
    stacked << parts.w, weight;
    parts.w = stacked;
  }
  const Matrix<double> m = parts.product();
  const Matrix<double> unit = norm.without_gain().apply(x);
  const double tokens = static_cast<double>(x.rows());
  Random random(3);
  const Matrix<double> outputs = unit * m.transpose();
  const Matrix<double> target = outputs + 0.1 * outputs.norm() / std::sqrt(static_cast<double>(outputs.size())) *
                                              normal_matrix(outputs.rows(), outputs.cols(), random);
  const auto loss = [&](const Matrix<double>& weights) {
    return 0.5 * (unit * weights.transpose() - target).squaredNorm() / tokens;
  };
  const Matrix<double> gradient = (outputs - target).transpose() * unit / tokens;  // dL/dM
  // dL/dW = G·Γ, dL/dg = diag(WᵀG)
  const Parts gradients{gradient * parts.g.asDiagonal(), gradient.cwiseProduct(parts.w).colwise().sum()};

  const double rms_w = parts.w.norm() / std::sqrt(static_cast<double>(parts.w.size()));
  fmt::print("{}: {} readers, {} x {} together; rms of W {:.3f}; |g| {:.2g} … {:.2g}; {} tokens\n\n", site.norm,
             site.readers.size(), m.rows(), m.cols(), rms_w, parts.g.cwiseAbs().minCoeff(),
             parts.g.cwiseAbs().maxCoeff(), x.rows());

  fmt::print(
      "1. one step with W and g apart, what M becomes: δM = δW·Γ + W·δΓ + δW·δΓ; against one step of M itself\n"
      "{:<24}{:>9}{:>9}{:>9}{:>11}{:>14}{:>12}{:>16}\n",
      "sizes over |δM|", "δW·Γ", "W·δΓ", "δW·δΓ", "remainder", "|δM of M|", "cosine", "loss change");
  const auto compare = [&](const char* name, const Parts& step, const Matrix<double>& step_of_m) {
    const Parts after{parts.w + step.w, parts.g + step.g};
    const Matrix<double> change = after.product() - m;
    const Matrix<double> through_w = step.w * parts.g.asDiagonal();
    const Matrix<double> through_g = parts.w * step.g.asDiagonal();
    const Matrix<double> second = step.w * step.g.asDiagonal();
    const double size = change.norm();
    const double remainder = (change - through_w - through_g - second).norm() / size;
    fmt::print("{:<24}{:>8.3f}{:>9.3f}{:>10.1e}{:>11.1e}{:>12.3f}{:>12.3f}  {:>6.2f} against {:.2f} %\n", name,
               through_w.norm() / size, through_g.norm() / size, second.norm() / size, remainder,
               step_of_m.norm() / size, cosine(change, step_of_m), 100 * (loss(after.product()) / loss(m) - 1),
               100 * (loss(m + step_of_m) / loss(m) - 1));
    // The change is a difference of numbers as large as M, each rounded once or twice.
    claim(remainder <= 4 * unit_roundoff<double>() * m.norm() / size, "δM is the sum of the three");
    claim(second.norm() < through_w.norm() + through_g.norm(), "the product of the two steps is of second order");
    claim((change - step_of_m).norm() > 0.01 * size, "the two steps differ");
  };
  const double sgd = 1e-3, adam = 1e-3 * rms_w;
  compare("SGD, rate 1e-3", {-sgd * gradients.w, -sgd * gradients.g}, -sgd * gradient);
  compare("Adam, 1e-3 · rms(W)", {-adam * adam_direction(gradients.w), -adam * adam_direction(gradients.g)},
          -adam * adam_direction(gradient));
  compare("the same, g held", {-adam * adam_direction(gradients.w), RowVector<double>::Zero(parts.g.size())},
          -adam * adam_direction(gradient));

  // Column by column Adam moves M by |g| times as much: that is all of the difference while g is held.
  const Matrix<double> by_column = -adam * adam_direction(gradients.w) * parts.g.asDiagonal();
  const Matrix<double> scaled = -adam * adam_direction(gradient) * parts.g.cwiseAbs().asDiagonal();
  fmt::print("Adam, g held: the step of column j is |g_j| times that of M's, but for {:.0e} that Adam's eps makes\n\n",
             (by_column - scaled).norm() / scaled.norm());

  fmt::print("2. decoupled weight decay, rate · decay = 1e-2, nothing else: how much of M is left\n");
  const double decay = 1e-2;
  const Parts both{(1 - decay) * parts.w, (1 - decay) * parts.g};
  const double left_both = both.product().norm() / m.norm();
  const double left_w = Parts{both.w, parts.g}.product().norm() / m.norm();
  fmt::print("  M decays {:.6f}; W decays, g does not {:.6f}; both decay {:.6f}\n", 1 - decay, left_w, left_both);
  fmt::print(
      "  what it makes small: |W|² = |M·Γ⁻¹|² = {:.4g} or |M|² = {:.4g}, whose gradients at M have cosine {:.3f}\n\n",
      parts.w.squaredNorm(), m.squaredNorm(), cosine(m, Matrix<double>(parts.w * parts.g.cwiseInverse().asDiagonal())));
  claim(std::fabs(left_both - (1 - decay) * (1 - decay)) < 1e-12 && std::fabs(left_w - (1 - decay)) < 1e-12,
        "decaying both shrinks M twice");  // exact products

  const double apart = gradients.norm(), as_one = gradient.norm(), limit = (std::min)(apart, as_one);
  fmt::print(
      "3. clipping by the global norm: the gradient's is {:.4g} with W and g apart, {:.4g} as one; clipped at {:.4g}, "
      "steps shrink by {:.3f} and {:.3f}\n\n",
      apart, as_one, limit, limit / apart, limit / as_one);

  // The checkpoint: every gain folded into all its readers, each product rounded once to F32, every norm set to 1.
  std::map<std::string, RowVector<double>> gain_of_reader;
  std::map<std::string, bool> is_norm;
  for (const answers::Site& s : sites) {
    is_norm[s.norm + ".weight"] = true;
    for (const std::string& reader : s.readers) gain_of_reader.emplace(reader + ".weight", model.norm(s.norm).gain());
  }
  const auto to_f32 = [](Matrix<double>& rows) { rows = rows.cast<float>().cast<double>().eval(); };
  answers::Hooks folded, forgotten, perturbed;
  folded.edit = [&](const std::string& tensor, Index, Matrix<double>& rows) {
    if (is_norm.contains(tensor)) rows.setOnes();
    if (const auto reader = gain_of_reader.find(tensor); reader != gain_of_reader.end()) {
      rows = (rows * reader->second.asDiagonal()).eval();
      to_f32(rows);
    }
  };
  forgotten.edit = [&](const std::string& tensor, Index, Matrix<double>& rows) {
    if (is_norm.contains(tensor)) rows.setOnes();
  };
  perturbed.edit = [&](const std::string& tensor, Index first,
                       Matrix<double>& rows) {  // every reader moved by up to a unit in its last place
    const auto reader = gain_of_reader.find(tensor);
    if (reader == gain_of_reader.end()) return;
    Random noise(static_cast<std::uint64_t>(std::distance(gain_of_reader.begin(), reader)),
                 static_cast<std::uint64_t>(first));
    for (Index i = 0; i < rows.size(); ++i) {
      int exponent = 0;
      std::frexp(rows.data()[i], &exponent);
      rows.data()[i] += std::ldexp(unit_roundoff<float>() * (2 * noise.uniform() - 1), exponent);
    }
  };
  fmt::print(
      "4. the checkpoint, {} gains, {} tokens, weights F32, computed in double; logits moved over their root mean "
      "square\n{:<52}{:>10}{:>10}{:>15}\n",
      sites.size(), input.tokens.size(), "", "largest", "rms", "perplexity");
  fmt::print("{:<52}{:>10}{:>10}{:>15.9g}\n", "as it is", "", "", answers::perplexity(before, input.tokens));
  const auto row = [&](const char* what, const answers::Hooks& hooks) {
    const Matrix<double> after = model.logits(input.tokens, hooks);
    const answers::Moved moved = answers::moved(before, after);
    fmt::print("{:<52}{:>10.1e}{:>10.1e}{:>15.9g}\n", what, moved.largest, moved.rms,
               answers::perplexity(after, input.tokens));
    return moved;
  };
  const answers::Moved fold = row("folded", folded);
  const answers::Moved noise = row("not folded, readers moved by up to a last place", perturbed);
  const answers::Moved lost = row("gains set to 1 and not folded", forgotten);
  claim(fold.largest <= 4 * noise.largest, "the folded checkpoint is the same function");
  claim(lost.largest > 100 * noise.largest, "gains that are lost are noticed");
  return as_claimed ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "folding_is_not_training: {}\n", error.what());
  return 2;
}
