// SPDX-License-Identifier: MIT
#include "support/model_run.hpp"

#include <sstream>
#include <stdexcept>

namespace rmsfold::test {

namespace fs = std::filesystem;

model::Step step(const std::string& words, std::uint64_t seed) {
  model::Step step;
  step.seed = seed;
  bool no_fold = false;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    if (word == "fold" || word == "--fold") {
      step.fold = true;
    } else if (word == "--heads") {
      step.heads = true;
    } else if (word == "--inverse") {
      step.inverse = true;
    } else if (word == "--no-fold") {
      no_fold = true;
    } else if (const auto kind = model::rotation_kind_from_name(word)) {
      step.rotation = *kind;
      step.fold = step.fold || word == "hadamard" || word == "orthogonal";
    } else {
      throw std::logic_error("not a step: " + words);
    }
  }
  if (no_fold) step.fold = false;
  return step;
}

model::Step step_from_file(const fs::path& file) {
  model::Step step;
  step.rotation = model::RotationKind::file;
  step.file = file;
  step.fold = true;
  return step;
}

model::Step recorded_step(const fs::path& directory) {
  return model::step_from_json(model::read_manifest(directory / "rmsfold.json").steps.back(), directory);
}

model::RunSummary run_step(const fs::path& from, const fs::path& to, const model::Step& step, model::RunOptions options,
                           const model::OpenOptions& open) {
  options.fsync = false;
  const model::Model model(from, open);
  const model::Plan plan = model::make_plan(model, step);
  model::RunSummary summary = model::transform(model, plan, to, options);
  summary.notes.insert(summary.notes.begin(), plan.notes.begin(), plan.notes.end());
  return summary;
}

model::VerifyReport run_verify(const fs::path& a, const fs::path& b, Index tokens, bool use_manifest,
                               const model::OpenOptions& open_a, const model::OpenOptions& open_b) {
  model::VerifyOptions options;
  options.logits = tokens > 0;
  options.tokens = tokens;
  options.use_manifest = use_manifest;
  options.threads = 2;
  const model::Model model_a(a, open_a);
  const model::Model model_b(b, open_b);
  model::VerifyReport report = model::verify(model_a, model_b, options);
  report.plan.sites.clear();  // they point into the models
  return report;
}

std::string text_of(const model::VerifyReport& report) {
  std::string text = "basis: " + report.basis + "\n";
  for (const model::Finding& finding : report.findings) {
    text += finding.where + " (" + finding.site + "): " + finding.diagnosis + "; " + finding.evidence + "\n";
  }
  if (report.logits.done) {
    text += fmt::format("logits: distance {:.3g}, threshold {:.3g}\n", report.logits.distance, report.logits.threshold);
  }
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  return text;
}

bool finds(const model::VerifyReport& report, const std::string& tensor, const std::string& diagnosis) {
  return std::any_of(report.findings.begin(), report.findings.end(), [&](const model::Finding& finding) {
    return finding.where == tensor && finding.diagnosis.find(diagnosis) != std::string::npos;
  });
}

}  // namespace rmsfold::test
