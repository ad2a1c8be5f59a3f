// SPDX-License-Identifier: MIT
// Where does the gain of an RMSNorm go when layer-wise rotations are merged into the weights, and what does that do to
// top-k sparsification?
//
//   larosa_rmsnorm_gain [MODEL_DIR [TOKEN_FILE]]
#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <rmsfold/check/block.hpp>
#include <rmsfold/check/top_k.hpp>
#include <rmsfold/group/pca.hpp>
#include <rmsfold/rmsfold.hpp>

#include "model_access.hpp"

using namespace rmsfold;

/// Q of one site: the principal axes of what LaRoSA rotates, which has the gain, and of what a merged rotation acts on,
/// which has not.
struct Bases {
  Orthogonal<double> with_gain, gain_free;
};

/// One site, measured on tokens that Q was not computed from.
struct Measured {
  double spread = 0;                ///< standard deviation of |g| over its root mean square
  double naive = 0;                 ///< RMSNorm_g(xQ)Qᵀ against RMSNorm_g(x), relative; Q with the gain
  double folded = 0;                ///< rms(xQ)Qᵀ ⊙ g against the same
  double folded_allowed = 0;        ///< what rounding explains
  TopKReport with_gain, gain_free;  ///< selection with either Q
};

/// Queries and keys turned by their position, then softmax attention.
struct RotaryAttention {
  answers::Attention config;

  template <Real T>
  Matrix<T> operator()(std::vector<Matrix<T>> outputs) const {
    const Index pairs = config.cosine.cols();
    const Index width = outputs[0].cols() / config.heads;
    for (Matrix<T>* m : {&outputs[0], &outputs[1]}) {
      for (Index t = 0; t < m->rows(); ++t) {
        for (Index at = 0; at < m->cols(); at += width) {
          for (Index j = 0; j < pairs; ++j) {
            const T a = (*m)(t, at + j), b = (*m)(t, at + j + pairs);
            const T c = static_cast<T>(config.cosine(t, j)), s = static_cast<T>(config.sine(t, j));
            (*m)(t, at + j) = a * c - b * s;
            (*m)(t, at + j + pairs) = b * c + a * s;
          }
        }
      }
    }
    return CausalAttention{config.heads, config.kv_heads}(outputs);
  }
};

Measured measure(const RMSNorm<float>& norm, const std::vector<Linear<float>>& readers, const Bases& bases,
                 const Matrix<double>& x) {
  const Orthogonal<double>& q = bases.with_gain;
  const RowVector<double> gain = norm.gain();
  const Matrix<double> expected = norm.apply(x);
  const Matrix<double> unit = norm.without_gain().apply(x);
  const Matrix<double> naive = act_transposed(q, norm.apply(act(q, x)));
  Matrix<double> folded = act_transposed(q, norm.without_gain().apply(act(q, x)));
  folded = (folded * gain.asDiagonal()).eval();

  Measured result;
  const double mean = gain.cwiseAbs().mean();
  result.spread = std::sqrt((gain.cwiseAbs().array() - mean).square().mean() / gain.array().square().mean());
  result.naive = (naive - expected).norm() / expected.norm();
  result.folded = (folded - expected).norm() / expected.norm();
  // Two products with Q, each within √n γ of its length, and a norm that at most doubles what precedes it.
  const double n = static_cast<double>(norm.dim());
  const double rotations = 3 * (std::sqrt(n) * gamma_n(n + 8, unit_roundoff<double>()) + q.orthogonality_defect());
  result.folded_allowed = rotations * gain.cwiseAbs().maxCoeff() * unit.norm() / expected.norm();
  result.with_gain = check_top_k(norm, readers, bases.with_gain, x, norm.dim() / 2);
  result.gain_free = check_top_k(norm, readers, bases.gain_free, x, norm.dim() / 2);
  return result;
}

int main(int argc, char** argv) try {
  const answers::Input input = answers::open(argc, argv, 256);
  const answers::Model& model = input.model;
  // The stream after two layers is seen at the norm of a third.
  if (model.layers() < 3) throw std::runtime_error("needs a model of at least 3 layers");
  std::map<std::string, Matrix<double>> inputs;
  answers::Hooks hooks;
  hooks.on_norm_input = [&](const std::string& norm, const Matrix<double>& x) { inputs.emplace(norm, x); };
  static_cast<void>(model.logits(input.tokens, hooks));

  std::vector<answers::Site> sites = model.sites();
  sites.pop_back();  // the head is not sparsified
  const Index count = static_cast<Index>(sites.size());
  const Index tokens = static_cast<Index>(input.tokens.size()), calibration = tokens * 3 / 4;
  std::vector<Bases> bases(sites.size(),
                           Bases{Orthogonal<double>(Matrix<double>()), Orthogonal<double>(Matrix<double>())});
  std::vector<Measured> measured(sites.size());
  parallel_for(count, 0, [&](Index i) {
    const answers::Site& site = sites[static_cast<std::size_t>(i)];
    const RMSNorm<float> norm = model.norm(site.norm);
    std::vector<Linear<float>> readers;
    for (const std::string& reader : site.readers) readers.push_back(model.linear(reader));
    const Matrix<double>& x = inputs.at(site.norm);
    const Matrix<double> seen = x.topRows(calibration);
    Bases& q = bases[static_cast<std::size_t>(i)];
    q = {principal_axes(second_moment(norm.apply(seen))).q,
         principal_axes(second_moment(norm.without_gain().apply(seen))).q};
    measured[static_cast<std::size_t>(i)] = measure(norm, readers, q, x.bottomRows(tokens - calibration));
  });

  bool as_claimed = true;
  const auto claim = [&](bool holds, const std::string& what) {
    if (!holds) fmt::print("NOT AS CLAIMED: {}\n", what);
    as_claimed = as_claimed && holds;
  };
  const auto is_shown = [&](Index i) {  // five layers, two sites each
    const Index layer = i / 2, last = model.layers() - 1;
    for (Index part = 0; part <= 4; ++part) {
      if (layer == last * part / 4) return true;
    }
    return false;
  };

  fmt::print("d = {}, {} sites; Q from {} tokens, measured on the next {}\n\n", model.width(), count, calibration,
             tokens - calibration);
  fmt::print("1. dense: against RMSNorm_g(x)\n{:<42}{:>10}{:>22}{:>20}\n", "site", "spread g", "RMSNorm_g(xQ)Qᵀ",
             "rms(xQ)Qᵀ⊙g");
  std::vector<double> naive;
  for (Index i = 0; i < count; ++i) {
    const Measured& m = measured[static_cast<std::size_t>(i)];
    naive.push_back(m.naive);
    if (is_shown(i))
      fmt::print("{:<42}{:>10.3f}{:>20.3f}{:>18.1e}\n", sites[static_cast<std::size_t>(i)].norm, m.spread, m.naive,
                 m.folded);
    claim(m.folded <= m.folded_allowed, "the folded path is exact at " + sites[static_cast<std::size_t>(i)].norm);
    claim(m.naive > 1e6 * m.folded_allowed, "the unfolded one is wrong at " + sites[static_cast<std::size_t>(i)].norm);
  }
  std::sort(naive.begin(), naive.end());
  fmt::print("all sites: the unfolded one is off by {:.3f} … {:.3f}, median {:.3f}\n\n", naive.front(), naive.back(),
             naive[naive.size() / 2]);

  fmt::print(
      "2. sparse, k = d/2: error of the readers' outputs against the dense ones; selection after the gain "
      "(topk(RMSNorm_g(x)Q), rotation at run time)\n"
      "   and before it (topk(rms(xQ)), gain folded, merged)\n{:<42}{:^38}{:^38}\n{:<42}",
      "", "Q of RMSNorm_g(x)", "Q of rms(x)", "site");
  for (int twice = 0; twice < 2; ++twice) fmt::print("{:>10}{:>10}{:>9}{:>9}", "others", "apart", "after", "before");
  fmt::print("\n");
  Index after_nearer_own = 0, after_nearer_free = 0;
  double mean[6] = {};
  for (Index i = 0; i < count; ++i) {
    const Measured& m = measured[static_cast<std::size_t>(i)];
    const std::string& name = sites[static_cast<std::size_t>(i)].norm;
    if (is_shown(i)) {
      fmt::print("{:<42}", name);
      for (const TopKReport* r : {&m.with_gain, &m.gain_free}) {
        fmt::print("{:>9.1f}%{:>10.3f}{:>9.3f}{:>9.3f}", 100 * r->mean_differing / static_cast<double>(r->kept),
                   r->sparse_difference, r->after_norm_error, r->folded_error);
      }
      fmt::print("\n");
    }
    double* sum = mean;
    for (const TopKReport* r : {&m.with_gain, &m.gain_free}) {
      // Roundings of F32 weights are near 1e-7; a selection that differs is near 1e-1.
      claim(r->dense_difference < 1e-5, "the dense models are equal at " + name);
      claim(r->sparse_difference > 1e-3, "the sparse ones differ at " + name);
      *sum++ += r->sparse_difference / static_cast<double>(count);
      *sum++ += r->after_norm_error / static_cast<double>(count);
      *sum++ += r->folded_error / static_cast<double>(count);
    }
    after_nearer_own += m.with_gain.after_norm_error < m.with_gain.folded_error;
    after_nearer_free += m.gain_free.after_norm_error < m.gain_free.folded_error;
  }
  fmt::print("{:<42}{:>10}{:>10.3f}{:>9.3f}{:>9.3f}{:>10}{:>10.3f}{:>9.3f}{:>9.3f}\n", "mean of all sites", "", mean[0],
             mean[1], mean[2], "", mean[3], mean[4], mean[5]);
  double dense = 0;
  for (const Measured& m : measured)
    dense = (std::max)({dense, m.with_gain.dense_difference, m.gain_free.dense_difference});
  fmt::print(
      "without selection the two are at most {:.1e} apart; selecting after the gain is nearer at {} (Q of "
      "RMSNorm_g(x)) and {} (Q of rms(x)) of {} sites\n\n",
      dense, after_nearer_own, after_nearer_free, count);

  // Two whole layers, each block in its own basis, the shortcut carried from one to the next.
  const Index layer = model.layers() / 2 - 1;
  const Index batch = (std::min)(tokens, Index{128});
  const std::size_t first = static_cast<std::size_t>(2 * layer);
  fmt::print(
      "3. merged with adapters on the shortcut, Q of rms(x), {} tokens; distances over the length of what the block "
      "adds\n{:<42}{:>12}{:>12}{:>20}\n",
      batch, "block", "adapted", "allowed", "without adapter");
  const Matrix<double> start = inputs.at(sites[first].norm).topRows(batch);
  Matrix<double> stream = act(bases[first].gain_free, start);
  const auto step = [&](std::size_t at, const auto& block) {
    const Matrix<double> x = inputs.at(sites[at].norm).topRows(batch);
    const Orthogonal<double>& in = bases[at].gain_free;
    const Orthogonal<double>& out = bases[at + 1].gain_free;
    const auto adapted = adapt_block(block, in, out);
    const BlockReport report = check_block(block, adapted, in, out, x, 5);
    const Matrix<double> branch = block.branch(x);
    const Matrix<double> lost = act(in, x) + adapted.block.branch(act(in, x)) - act(out, Matrix<double>(x + branch));
    fmt::print("{:<42}{:>12.1e}{:>12.1e}{:>20.2f}\n", sites[at].norm, report.distance, report.threshold,
               lost.norm() / branch.norm());
    claim(report.passed(), "the adapted block is exact at " + sites[at].norm);
    stream = adapted.apply(stream);
  };
  for (Index l = layer; l < layer + 2; ++l) {
    const std::size_t at = static_cast<std::size_t>(2 * l);
    const std::string prefix = sites[at].norm.substr(0, sites[at].norm.rfind('.')) + ".";
    const auto linears = [&](const answers::Site& site) {
      std::vector<Linear<float>> readers;
      for (const std::string& reader : site.readers) readers.push_back(model.linear(reader));
      return readers;
    };
    using AttentionBlock = Block<float, RMSNorm<float>, RotaryAttention>;
    using MlpBlock = Block<float, RMSNorm<float>, SwiGLU>;
    step(at, AttentionBlock{model.norm(sites[at].norm),
                            linears(sites[at]),
                            {model.attention(batch)},
                            model.linear(prefix + "self_attn.o_proj")});
    step(at + 1,
         MlpBlock{model.norm(sites[at + 1].norm), linears(sites[at + 1]), {}, model.linear(prefix + "mlp.down_proj")});
  }
  const std::size_t end = first + 4;
  const Matrix<double> expected = inputs.at(sites[end].norm).topRows(batch);
  const double off = (act_transposed(bases[end].gain_free, stream) - expected).norm() / (expected - start).norm();
  fmt::print("the four in a row, back in the model's basis, against the model's own stream: {:.1e} of what they add\n",
             off);
  claim(off < 1e-5, "two layers in four bases are the same function");  // F32 roundings of the merged weights, as above
  return as_claimed ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "larosa_rmsnorm_gain: {}\n", error.what());
  return 2;
}
