// SPDX-License-Identifier: MIT
// The metrics and the report, on numbers set by hand.
#include <rmsfold/check/metrics.hpp>
#include <rmsfold/check/report.hpp>

#include <limits>
#include <string>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#endif

#include "support/catch.hpp"

namespace rmsfold {

using test::has_text;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

ErrorMetrics of(double error, double bound, double scale = 2) {
  ErrorMetrics metrics;
  metrics.add(0, 0, 0, bound, scale);
  metrics.add(3, 17, error, bound, scale);
  return metrics;
}

EquivalenceReport wrong_naive() {
  EquivalenceReport report;
  report.tokens = 4;
  report.dim = 8;
  report.outputs = 18;
  report.rotate_after_norm = of(0.25, 0.5);
  report.naive_merged = of(-1.5, 0.5);
  report.gain_folded = of(0, 0.5);
  report.naive_minus_predicted = of(0.125, 0.5);
  return report;
}

}  // namespace

TEST_CASE("metrics: each number is what it says", "[check]") {
  ErrorMetrics m;
  CHECK(m.rms() == 0);
  CHECK_FALSE(m.within_bound());  // nothing compared, nothing proved
  m.add(0, 0, 3e-3, 1e-2, 2);
  m.add(0, 1, -4e-3, 1e-1, 2);  // larger, but allowed more
  m.add(1, 0, 0, 1e-2, 0.5);
  m.add(1, 1, 2e-3, 1e-2, 0.5);
  CHECK(m.count() == 4);
  CHECK(m.max_absolute() == 4e-3);
  CHECK(m.max_relative() == 2e-3 / 0.5);
  CHECK(std::fabs(m.rms() - std::sqrt((9 + 16 + 4) / 4.0) * 1e-3) < 1e-18);
  CHECK(m.measured_over_bound() == 3e-3 / 1e-2);
  CHECK(m.bound_at_worst() == 1e-2);
  CHECK(m.worst_token() == 0);
  CHECK(m.worst_output() == 0);
  CHECK(m.within_bound());
  m.add(2, 5, -1.01e-2, 1e-2, 1);
  CHECK_FALSE(m.within_bound());
  CHECK(m.worst_token() == 2);
  CHECK(m.worst_output() == 5);
}

TEST_CASE("metrics: at the bound is within, above is not, no bound allows nothing", "[check]") {
  CHECK(of(0.5, 0.5).within_bound());
  CHECK_FALSE(of(std::nextafter(0.5, 1), 0.5).within_bound());
  CHECK(of(0, 0).within_bound());
  CHECK_FALSE(of(5e-324, 0).within_bound());
  CHECK_FALSE(of(1, -1).within_bound());
}

TEST_CASE("metrics: what is not finite fails for good, and its place is kept", "[check]") {
  for (const double bad : {nan, inf, -inf}) {
    ErrorMetrics m = of(bad, 1);
    CHECK_FALSE(m.all_finite());
    m.add(9, 9, 0.1, 1, 1);
    CHECK_FALSE(m.within_bound());
    CHECK(m.worst_token() == 3);
    CHECK(m.worst_output() == 17);
    CHECK_FALSE(of(0.1, bad).within_bound());  // a bound that is none
  }
}

TEST_CASE("report: passed needs every path that must be right, and the prediction", "[check]") {
  CHECK(wrong_naive().passed());
  for (ErrorMetrics EquivalenceReport::*path : {&EquivalenceReport::rotate_after_norm, &EquivalenceReport::gain_folded,
                                                &EquivalenceReport::naive_minus_predicted}) {
    EquivalenceReport report = wrong_naive();
    report.*path = of(1, 0.5);
    CHECK_FALSE(report.passed());
    report.*path = of(nan, 0.5);
    CHECK_FALSE(report.passed());
    report.*path = ErrorMetrics();
    CHECK_FALSE(report.passed());
  }
  EquivalenceReport report = wrong_naive();
  report.gain_transported = of(0, 0.5);
  CHECK(report.passed());
  report.gain_transported = of(1, 0.5);
  CHECK_FALSE(report.passed());
}

TEST_CASE("report: the table", "[check]") {
  EquivalenceReport report = wrong_naive();
  CHECK(to_table(report) ==
        "path               max |error|    max rel.   RMS error       bound measured/bound  worst entry              "
        "verdict\n"
        "rotate-after-norm         0.25       0.125       0.177         0.5            0.5  token 3, output 17       "
        "equal\n"
        "naive-merged               1.5        0.75        1.06         0.5              3  token 3, output 17       "
        "WRONG, by what identity 4 predicts\n"
        "gain-folded                  0           0           0           0              0  token 0, output 0        "
        "equal\n");
  report.gain_transported = of(1, 0.5);
  report.naive_minus_predicted = of(1, 0.5);
  report.gain_folded = of(nan, 0.5);
  const std::string text = to_table(report);
  CHECK_THAT(text, has_text("WRONG, and not as predicted"));
  CHECK_THAT(text, has_text("token 3, output 17       NOT FINITE"));
  CHECK_THAT(text, has_text("gain-transported "));
  CHECK_THAT(text, has_text("DIFFERS"));
}

#if __has_include(<nlohmann/json.hpp>)
TEST_CASE("report: JSON has the same numbers", "[check]") {
  EquivalenceReport report = wrong_naive();
  report.gain_folded = of(1.0 / 3, 0.5);
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  CHECK(json.at("passed") == true);
  CHECK(json.at("tokens") == 4);
  CHECK(json.at("dim") == 8);
  CHECK(json.at("outputs") == 18);
  CHECK(json.at("gain-folded").at("max_absolute").get<double>() == 1.0 / 3);  // every digit
  CHECK(json.at("naive-merged").at("max_absolute") == 1.5);
  CHECK(json.at("naive-merged").at("max_relative") == 0.75);
  CHECK(json.at("naive-merged").at("rms").get<double>() == report.naive_merged.rms());
  CHECK(json.at("naive-merged").at("bound_at_worst") == 0.5);
  CHECK(json.at("naive-merged").at("measured_over_bound") == 3);
  CHECK(json.at("naive-merged").at("worst_token") == 3);
  CHECK(json.at("naive-merged").at("worst_output") == 17);
  CHECK(json.at("naive-merged").at("within_bound") == false);
  CHECK(json.at("naive-merged").at("all_finite") == true);
  CHECK(json.at("naive-minus-predicted").at("verdict") == "as identity 4 predicts");
  CHECK_FALSE(json.contains("gain-transported"));
}

TEST_CASE("report: JSON stays JSON when numbers do not", "[check]") {
  EquivalenceReport report = wrong_naive();
  report.gain_transported = of(1e300, 1e-300);  // ratio and sum of squares overflow
  report.gain_folded = of(nan, 0.5);
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  CHECK(json.at("passed") == false);
  CHECK(json.at("gain-folded").at("verdict") == "NOT FINITE");
  CHECK(json.at("gain-transported").at("rms").is_null());
  CHECK(json.at("gain-transported").at("within_bound") == false);
}
#endif

}  // namespace rmsfold
