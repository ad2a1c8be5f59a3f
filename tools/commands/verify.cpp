// SPDX-License-Identifier: MIT
#include <rmsfold/model/verify.hpp>

#include <map>
#include <memory>

#include <fmt/format.h>

#include "commands/commands.hpp"

namespace rmsfold::tool {

namespace {

/// Elements in numbers.
struct Elements {
  std::size_t exact = 0, rounded = 0;
  std::uint64_t entries = 0;
  const model::TensorComparison* worst = nullptr;  // of the rounded ones
};

Elements count(const model::VerifyReport& report) {
  Elements elements;
  for (const model::TensorComparison& tensor : report.tensors) {
    elements.entries += tensor.entries;
    ++(tensor.exact ? elements.exact : elements.rounded);
    if (!tensor.exact && (!elements.worst || tensor.worst > elements.worst->worst)) elements.worst = &tensor;
  }
  return elements;
}

io::Json to_json(const model::VerifyReport& report) {
  const auto number = [](double value) { return is_finite(value) ? io::Json(value) : io::Json(nullptr); };
  io::Json json;
  json["equal"] = report.equal();
  json["basis"] = report.basis;
  for (const model::TensorComparison& tensor : report.tensors) {
    json["tensors"].push_back({{"name", tensor.name}, {"passed", tensor.passed()}, {"exact", tensor.exact}, {"entries", tensor.entries},
                               {"failures", tensor.failures}, {"measured_over_bound", number(tensor.worst)}, {"worst", {tensor.row, tensor.col}},
                               {"expected", number(tensor.expected)}, {"found", number(tensor.found)}});
  }
  json["findings"] = io::Json::array();
  for (const model::Finding& finding : report.findings) {
    json["findings"].push_back({{"where", finding.where}, {"site", finding.site}, {"diagnosis", finding.diagnosis}, {"evidence", finding.evidence}});
  }
  const model::LogitComparison& logits = report.logits;
  if (logits.done) {
    json["logits"] = {{"passed", logits.passed()}, {"tokens", logits.tokens}, {"distance", number(logits.distance)}, {"threshold", number(logits.threshold)},
                      {"perturbation", number(logits.perturbation)}, {"largest_difference", number(logits.largest)}, {"same_argmax", logits.same_argmax}};
  } else {
    json["logits"] = {{"skipped", logits.why_not}};
  }
  json["notes"] = report.notes;
  return json;
}

void print(const model::VerifyReport& report) {
  fmt::print("basis      {}\n", report.basis);
  if (!report.tensors.empty()) {
    const Elements elements = count(report);
    std::size_t passed = 0;
    for (const model::TensorComparison& tensor : report.tensors) passed += tensor.passed() ? 1u : 0u;
    if (passed == report.tensors.size()) {
      fmt::print("elements   all {} tensors are what they should be: {} bit for bit, {} within rounding{}; {} entries\n", passed, elements.exact, elements.rounded,
                 elements.worst ? fmt::format(" (worst measured / bound {:.3f}, {})", elements.worst->worst, elements.worst->name) : "", elements.entries);
    } else {
      fmt::print("elements   not what they should be: {} of {} tensors\n", report.tensors.size() - passed, report.tensors.size());
    }
  }
  const model::LogitComparison& logits = report.logits;
  if (logits.done) {
    fmt::print("logits     {} random tokens: relative distance {:.3g}, allowed {:.3g} (4 x what storage rounding alone does); {} of {} likeliest tokens agree\n",
               logits.tokens, logits.distance, logits.threshold, logits.same_argmax, logits.tokens);
  } else if (!logits.why_not.empty()) {
    fmt::print("logits     not compared: {}\n", logits.why_not);
  }
  // The same mistake in many layers is one line.
  std::map<std::string, std::vector<const model::Finding*>> by_diagnosis;
  std::vector<std::string> order;
  for (const model::Finding& finding : report.findings) {
    std::string kind = finding.diagnosis;
    if (!finding.site.empty()) {
      for (std::size_t at = kind.find(finding.site); at != std::string::npos; at = kind.find(finding.site)) kind.replace(at, finding.site.size(), "its norm");
    }
    if (by_diagnosis[kind].empty()) order.push_back(kind);
    by_diagnosis[kind].push_back(&finding);
  }
  constexpr std::size_t shown = 6;
  for (const std::string& kind : order) {
    const std::vector<const model::Finding*>& findings = by_diagnosis[kind];
    fmt::print("\n{} place{}: {}\n", findings.size(), findings.size() == 1 ? "" : "s", kind);
    for (std::size_t i = 0; i < findings.size() && i < shown; ++i) {
      fmt::print("  {}{}\n", findings[i]->where, findings[i]->site.empty() ? "" : "  (" + findings[i]->site + ")");
      if (!findings[i]->evidence.empty()) fmt::print("    {}\n", findings[i]->evidence);
    }
    if (findings.size() > shown) fmt::print("  … and {} more (--json lists all)\n", findings.size() - shown);
  }
  fmt::print("\n{}\n", report.equal()               ? "EQUAL: the same function, to within the rounding of stored weights"
                        : report.findings.empty() ? "NOT PROVED: neither elements nor logits could be compared"
                                                  : "NOT EQUAL");
}

/// Adds the measured errors to B's manifest.
void record(const model::VerifyReport& report, const model::Model& b) {
  const auto path = b.checkpoint().manifest_path();
  if (!path) rmsfold::detail::raise<FormatError>("--record: {} has no {}", b.checkpoint().directory().string(), io::Checkpoint::manifest_name);
  io::Json manifest = io::read_json_file(*path);
  const Elements elements = count(report);
  manifest["verified"] = {{"equal", report.equal()}, {"tensors", report.tensors.size()}, {"bit_for_bit", elements.exact},
                          {"worst_measured_over_bound", elements.worst ? elements.worst->worst : 0.0}};
  if (report.logits.done) {
    manifest["verified"]["logits"] = {{"tokens", report.logits.tokens}, {"distance", report.logits.distance}, {"threshold", report.logits.threshold}};
  }
  const std::filesystem::path next = path->string() + ".new";
  std::filesystem::remove(next);
  io::write_text_file(next, manifest.dump(1) + "\n");
  std::filesystem::rename(next, *path);
}

}  // namespace

int verify(const Common& common, const VerifyCommandOptions& options) {
  const model::Model a(options.a, common.open_options());
  model::OpenOptions as_written = common.open_options();
  as_written.head = model::HeadChoice::undecided;  // --head settles a doubt about MODEL; OUT has none
  as_written.dequantize.reset();                   // nor codes
  const model::Model b(options.b, as_written);
  model::VerifyOptions how;
  how.threads = common.threads;
  how.logits = !options.no_logits;
  how.use_manifest = !options.ignore_manifest;
  how.float_tables = !options.double_tables;
  how.tokens = options.tokens;
  how.seed = options.seed;
  std::map<std::string, std::unique_ptr<ProgressLine>> lines;
  how.progress = [&](const char* stage, std::uint64_t finished, std::uint64_t total) {
    std::unique_ptr<ProgressLine>& line = lines[stage];
    if (!line) line = std::make_unique<ProgressLine>(common, stage, stage == std::string_view("elements") ? "B" : "passes");
    line->update(finished, total);
  };
  const model::VerifyReport report = model::verify(a, b, how);
  lines.clear();
  if (options.record) record(report, b);
  if (common.json) {
    print_json(common, to_json(report));
  } else if (!common.quiet) {
    std::vector<std::string> notes = a.notes();
    notes.insert(notes.end(), report.notes.begin(), report.notes.end());
    print_notes(common, notes);
    print(report);
  }
  return report.equal() ? Exit::done : Exit::not_equal;
}

}  // namespace rmsfold::tool
