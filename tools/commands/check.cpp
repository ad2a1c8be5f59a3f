// SPDX-License-Identifier: MIT
#include <cmath>

#include <fmt/format.h>

#include <rmsfold/check/report.hpp>
#include <rmsfold/model/site_check.hpp>

#include "commands/commands.hpp"
#include "commands/rotation_options.hpp"

namespace rmsfold::tool {

namespace {

/// One path at one site in a line of the side-by-side table.
std::string cell(const ErrorMetrics& path, bool must_be_exact) {
  const char* verdict = path.within_bound() ? "equal" : must_be_exact ? "DIFFERS" : "WRONG";
  return fmt::format("{:>9.2e} {:>9.2e} {:<7}", path.max_relative(), path.measured_over_bound(), verdict);
}

void print_side_by_side(const model::SiteCheckReport& report) {
  const bool transported = report.sites.front().paths.gain_transported.has_value();
  fmt::print("{:<40} {:<28} {:<28} {:<28}{}\n", "", "rotate-after-norm", "naive-merged", "gain-folded", transported ? " gain-transported" : "");
  fmt::print("{:<40}", "norm site");
  for (int i = 0; i < (transported ? 4 : 3); ++i) fmt::print(" {:>9} {:>9} {:<8}", "max rel.", "/ bound", "");
  fmt::print("\n");
  for (const model::SiteReport& site : report.sites) {
    fmt::print("{:<40} {:<28} {:<28} {:<28}", site.norm, cell(site.paths.rotate_after_norm, true), cell(site.paths.naive_merged, false),
               cell(site.paths.gain_folded, true));
    if (transported) fmt::print(" {}", cell(*site.paths.gain_transported, true));
    fmt::print("\n");
  }
}

int check_synthetic(const Common& common, const CheckOptions& options) {
  const Index n = options.dim;
  std::vector<std::string> notes;
  const model::Rotation q = model::make_stream_rotation(step_for(options.rotation), n, false, notes);
  print_notes(common, notes);
  Random random(options.rotation.seed, 0x636865636b);
  const Matrix<double> x = normal_matrix(options.tokens, n, random);
  RowVector<double> gain(n);
  for (Index j = 0; j < n; ++j) gain[j] = std::exp(0.5 * random.normal());
  const Matrix<double> weight = normal_matrix(n + n / 2, n, random) / std::sqrt(static_cast<double>(n));
  const RowVector<double> bias = normal_matrix(1, n + n / 2, random);
  const EquivalenceReport report = visit_dtype(*dtype_from_name(options.dtype), [&](auto scalar) {
    using S = decltype(scalar);
    const RMSNorm<S> norm(rounded<S>(gain), 1e-6);
    const std::vector<Linear<S>> readers{{rounded<S>(weight), rounded<S>(bias)}};
    if (const SignedPermutation* p = q.as_signed_permutation()) return check_equivalence(norm, readers, *p, x);
    return check_equivalence(norm, readers, q, x);
  });
  if (common.json) {
    print_json(common, io::parse_json(to_json(report), "report"));
  } else if (!common.quiet) {
    fmt::print("A norm of dimension {} with log-normal gains (sigma 0.5), one reader of {} outputs, {}, rotation {}, {} Gaussian tokens\n\n{}", n, n + n / 2,
               options.dtype, options.rotation.rotation, options.tokens, to_table(report));
  }
  return report.passed() ? Exit::done : Exit::not_equal;
}

}  // namespace

int check(const Common& common, const CheckOptions& options) {
  if (options.dim > 0) return check_synthetic(common, options);
  const model::Model model(options.model, common.open_options());
  std::vector<std::string> notes = model.notes();
  const model::Rotation q = model::make_stream_rotation(step_for(options.rotation), model.graph().size.hidden, model::subtracts_means(model.graph()), notes);
  model::SiteCheckOptions site_options;
  site_options.tokens = options.tokens;
  site_options.threads = common.threads;
  ProgressLine progress(common, "checking", "sites");
  site_options.progress = [&](std::uint64_t finished, std::uint64_t total) { progress.update(finished, total); };
  const model::SiteCheckReport report = model::check_sites(model, q, site_options);
  notes.insert(notes.end(), report.notes.begin(), report.notes.end());

  if (common.json) {
    io::Json json;
    json["passed"] = report.passed();
    json["rotation"] = options.rotation.rotation;
    json["seed"] = options.rotation.seed;
    json["tokens"] = options.tokens;
    for (const model::SiteReport& site : report.sites) {
      io::Json entry;
      entry["norm"] = site.norm;
      entry["readers"] = site.readers;
      entry["paths"] = io::parse_json(to_json(site.paths), "report");
      json["sites"].push_back(std::move(entry));
    }
    json["notes"] = notes;
    print_json(common, std::move(json));
    return report.passed() ? Exit::done : Exit::not_equal;
  }
  print_notes(common, notes);
  if (!common.quiet && !report.sites.empty()) {
    std::size_t wrong = 0, unpredicted = 0;
    for (const model::SiteReport& site : report.sites) {
      if (!site.paths.naive_merged.within_bound()) ++wrong;
      if (!site.paths.naive_minus_predicted.within_bound()) ++unpredicted;
    }
    if (options.details) {
      for (const model::SiteReport& site : report.sites) fmt::print("{}\n{}\n", site.norm, to_table(site.paths));
    } else {
      print_side_by_side(report);
    }
    fmt::print(
        "\nmax rel.: largest error of an output over the RMS of its token's outputs; / bound: largest error over the bound that rounding explains.\n"
        "naive-merged is wrong at {} of {} sites, {}; {}.\n",
        wrong, report.sites.size(),
        unpredicted == 0 ? "everywhere by what identity 4 predicts" : fmt::format("at {} of them NOT by what identity 4 predicts", unpredicted),
        report.passed() ? "the other paths are within their bounds at all of them" : "NOT everything is within its bound: see the table");
  }
  return report.passed() ? Exit::done : Exit::not_equal;
}

}  // namespace rmsfold::tool
