// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The checker's report as a table for people and as JSON for machines.

#include <string>
#include <string_view>

#include <fmt/format.h>

#include <rmsfold/check/equivalence.hpp>

namespace rmsfold {

namespace detail {

/// Calls `f(name, metrics, must_be_exact)` for every path of a report, in the order a reader wants.
template <class F>
void for_each_path(const EquivalenceReport& report, const F& f) {
  f("rotate-after-norm", report.rotate_after_norm, true);
  f("naive-merged", report.naive_merged, false);
  f("gain-folded", report.gain_folded, true);
  if (report.gain_transported) f("gain-transported", *report.gain_transported, true);
}

[[nodiscard]] inline std::string_view verdict(const EquivalenceReport& report, const ErrorMetrics& path, bool must_be_exact) {
  if (!path.all_finite()) return "NOT FINITE";
  if (path.within_bound()) return "equal";
  if (must_be_exact) return "DIFFERS";
  return report.naive_minus_predicted.within_bound() ? "WRONG, by what identity 4 predicts" : "WRONG, and not as predicted";
}

/// A number that JSON can hold; `null` for one it cannot.
[[nodiscard]] inline std::string json_number(double value) { return is_finite(value) ? fmt::format("{}", value) : std::string("null"); }

}  // namespace detail

/// One line per path: errors, where the worst entry is, measured / bound, verdict; with a heading.
[[nodiscard]] inline std::string to_table(const EquivalenceReport& report) {
  std::string text = fmt::format("{:<18} {:>11} {:>11} {:>11} {:>11} {:>14}  {:<24} {}\n", "path", "max |error|", "max rel.", "RMS error", "bound",
                                 "measured/bound", "worst entry", "verdict");
  detail::for_each_path(report, [&](std::string_view name, const ErrorMetrics& path, bool must_be_exact) {
    text += fmt::format("{:<18} {:>11.3g} {:>11.3g} {:>11.3g} {:>11.3g} {:>14.3g}  {:<24} {}\n", name, path.max_absolute(), path.max_relative(), path.rms(),
                        path.bound_at_worst(), path.measured_over_bound(),
                        fmt::format("token {}, output {}", path.worst_token(), path.worst_output()), detail::verdict(report, path, must_be_exact));
  });
  return text;
}

/// The same as one JSON object; numbers that are not finite are null.
[[nodiscard]] inline std::string to_json(const EquivalenceReport& report) {
  std::string text =
      fmt::format(R"({{"passed":{},"tokens":{},"dim":{},"outputs":{})", report.passed(), report.tokens, report.dim, report.outputs);
  const auto append = [&](std::string_view name, const ErrorMetrics& path, std::string_view verdict) {
    text += fmt::format(
        R"(,"{}":{{"max_absolute":{},"max_relative":{},"rms":{},"bound_at_worst":{},"measured_over_bound":{},"worst_token":{},"worst_output":{},"all_finite":{},"within_bound":{},"verdict":"{}"}})",
        name, detail::json_number(path.max_absolute()), detail::json_number(path.max_relative()), detail::json_number(path.rms()),
        detail::json_number(path.bound_at_worst()), detail::json_number(path.measured_over_bound()), path.worst_token(), path.worst_output(),
        path.all_finite(), path.within_bound(), verdict);
  };
  detail::for_each_path(report, [&](std::string_view name, const ErrorMetrics& path, bool must_be_exact) {
    append(name, path, detail::verdict(report, path, must_be_exact));
  });
  append("naive-minus-predicted", report.naive_minus_predicted, report.naive_minus_predicted.within_bound() ? "as identity 4 predicts" : "DIFFERS");
  return text + "}";
}

}  // namespace rmsfold
