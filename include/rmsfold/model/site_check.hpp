// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The equivalence checker at every norm site of a model, on the vectors that really arrive there.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/check/equivalence.hpp>
#include <rmsfold/model/decoder.hpp>
#include <rmsfold/model/estimate.hpp>
#include <rmsfold/model/rotation.hpp>
#include <rmsfold/model/sites.hpp>

namespace rmsfold::model {

/// How to check.
struct SiteCheckOptions {
  Index tokens = 8;         ///< random tokens
  std::uint64_t seed = 0;   ///< of the tokens
  unsigned threads = 0;     ///< see `thread_count`
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  ///< may be empty
};

/// The paths at one site.
struct SiteReport {
  std::string norm;                  ///< module
  std::vector<std::string> readers;  ///< modules
  EquivalenceReport paths;           ///< rotate-after-norm, naive-merged, gain-folded, gain-transported
};

/// What `check_sites` found.
struct SiteCheckReport {
  std::vector<SiteReport> sites;    ///< in the order of computation
  std::vector<std::string> notes;  ///< for the user
  /// Whether every path that must be exact is, at every site.
  [[nodiscard]] bool passed() const {
    return !sites.empty() && std::all_of(sites.begin(), sites.end(), [](const SiteReport& site) { return site.paths.passed(); });
  }
};

namespace detail {

/// The wider of two storage types.
[[nodiscard]] inline Dtype wider(Dtype a, Dtype b) {
  if (a == b) return a;
  return a == Dtype::f64 || b == Dtype::f64 ? Dtype::f64 : Dtype::f32;
}

template <Storage S, class G>
[[nodiscard]] EquivalenceReport check_site(const Model& model, const Site& site, const G& q, const Matrix<double>& x) {
  const RMSNorm<S> norm(rounded<S>(site.gain), model.graph().size.eps);
  std::vector<Linear<S>> readers;
  for (const Node* reader : site.readers) {
    const std::string& weight = model.graph().params[*reader->weight].name;
    const bool is_plain = reader->row->layout == Layout::out_in;
    Linear<S> linear{rounded<S>(is_plain ? model.read_matrix(weight) : axis_vectors(model, weight, *reader->in_axis)), std::nullopt};
    if (reader->bias && is_plain) linear.bias = rounded<S>(model.read_vector(model.graph().params[*reader->bias].name));
    readers.push_back(std::move(linear));
  }
  return check_equivalence(norm, readers, q, x);
}

}  // namespace detail

/// Runs every path at every foldable norm site, on the residual stream of seeded random tokens (on Gaussian vectors where the reference forward does not know the model).
/// @throws RefusedError when q does not fit, or no site can be checked; IoError.
/// @par Cost  one forward pass of `tokens` tokens, and a few products per site; one site's readers in memory.
[[nodiscard]] inline SiteCheckReport check_sites(const Model& model, const Rotation& q, const SiteCheckOptions& options = {}) {
  SiteCheckReport report;
  const std::vector<Site> sites = find_sites(model);
  std::map<const Node*, Matrix<double>> inputs;
  Random random(options.seed, 0x746f6b656e73);
  try {
    std::vector<Index> tokens(static_cast<std::size_t>(options.tokens));
    for (Index& token : tokens) token = static_cast<Index>(random.below(static_cast<std::uint64_t>(model.graph().size.vocabulary)));
    ForwardOptions forward;
    forward.threads = options.threads;
    forward.on_norm_input = [&](const Node& norm, const Matrix<double>& x) { inputs.emplace(&norm, x); };
    static_cast<void>(Decoder(model).logits(tokens, forward));
  } catch (const RefusedError& reason) {
    report.notes.push_back(std::string("Gaussian inputs instead of real ones: ") + reason.what());
    for (const Site& site : sites) inputs.insert_or_assign(site.norm, normal_matrix(options.tokens, model.graph().size.hidden, random));
  }
  for (const Site& site : sites) {
    if (site.space != residual) continue;
    if (site.norm->row->norm == NormKind::layer) {
      report.notes.push_back(site.norm->module + " is a LayerNorm, whose paths this check does not have");
      continue;
    }
    if (!site.is_foldable()) {
      report.notes.push_back(site.norm->module + " is not checked: its gain cannot be folded, " + site.why_not_foldable);
      continue;
    }
    Dtype dtype = model.dtype(model.graph().params[*site.norm->weight].name);
    SiteReport result{site.norm->module, {}, {}};
    for (const Node* reader : site.readers) {
      dtype = detail::wider(dtype, model.dtype(model.graph().params[*reader->weight].name));
      result.readers.push_back(reader->module);
    }
    result.paths = visit_dtype(dtype, [&](auto scalar) {
      using S = decltype(scalar);
      if (const SignedPermutation* p = q.as_signed_permutation()) return detail::check_site<S>(model, site, *p, inputs.at(site.norm));
      return detail::check_site<S>(model, site, q, inputs.at(site.norm));
    });
    report.sites.push_back(std::move(result));
    if (options.progress) options.progress(report.sites.size(), sites.size());
  }
  if (report.sites.empty()) {
    rmsfold::detail::raise<RefusedError>("{}: there is no RMSNorm site whose gain could be folded, so there are no paths to compare{}", model.checkpoint().directory().string(),
                                         report.notes.empty() ? "" : ": " + report.notes.back());
  }
  return report;
}

}  // namespace rmsfold::model
