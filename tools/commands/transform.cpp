// SPDX-License-Identifier: MIT
#include <rmsfold/model/transform.hpp>

#include <chrono>

#include <fmt/format.h>

#include "commands/commands.hpp"
#include "commands/rotation_options.hpp"

namespace rmsfold::tool {

namespace {

/// The step that the options ask for, with the defaults of the command line resolved.
model::Step resolve(const TransformOptions& options) {
  if (options.is_fold) {
    model::Step step;
    step.fold = true;
    return step;
  }
  model::Step step;
  if (!options.recipe.empty()) {
    const model::Manifest manifest = model::read_manifest(options.recipe);
    step = model::step_from_json(manifest.steps.back(), std::filesystem::absolute(options.recipe).parent_path());
    if (step.rotation == model::RotationKind::none) {
      rmsfold::detail::raise<RefusedError>("--recipe {}: its last step rotates nothing", options.recipe);
    }
    if (options.inverse) {
      step.inverse = !step.inverse;
      step.fold = false;  // a fold is not undone, and the gains are folded already
    }
  } else {
    step = step_for(options.rotation);
    step.heads = options.heads;
    step.inverse = options.inverse;
    const bool is_dense = step.rotation != model::RotationKind::permutation && step.rotation != model::RotationKind::signed_permutation;
    step.fold = is_dense;
  }
  if (options.fold) step.fold = true;
  if (options.no_fold) step.fold = false;
  return step;
}

void print_plan(const model::Model& model, const model::Plan& plan) {
  fmt::print("{:<50} {:<18} {}\n", "tensor", "becomes", "why");
  for (const model::TensorPlan& tensor : plan.tensors) {
    if (tensor.name == model.head_tensor() && !plan.head_is_written) {
      fmt::print("{:<50} {:<18} {}\n", tensor.name, "(tied)", "stays tied to " + model.embedding_tensor());
      continue;
    }
    const std::string from = tensor.source == tensor.name ? "" : ", made from " + tensor.source;
    fmt::print("{:<50} {:<18} {}{}\n", tensor.name, model::detail::formula(tensor, model.info(tensor.name).shape.size()), tensor.why, from);
  }
  fmt::print("\nW: as stored, [out, in] (embeddings [vocabulary, hidden]); g: gain; Q: change of basis x' = x·Q; R: the same per head.\n"
             "Checked: along every edge the factors multiply to the identity; every neutralised norm has readers, each scaled once.\n");
}

io::Json plan_json(const model::Model& model, const model::Plan& plan) {
  io::Json json;
  json["step"] = model::to_json(plan.step, plan.basis);
  json["head_is_written"] = plan.head_is_written;
  json["output_is_tied"] = plan.output_is_tied;
  for (const model::TensorPlan& tensor : plan.tensors) {
    io::Json entry{{"name", tensor.name}, {"source", tensor.source}, {"becomes", model::detail::formula(tensor, model.info(tensor.name).shape.size())}, {"why", tensor.why}};
    for (const model::Factor& factor : tensor.factors) {
      const char* kind = factor.kind == model::Factor::Kind::gain ? "gain" : factor.kind == model::Factor::Kind::rotation ? "rotation" : "moves";
      entry["factors"].push_back({{"kind", kind}, {"axis", factor.axis}, {"of", factor.of}});
    }
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

int transform(const Common& common, const TransformOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const model::Model model(options.model, common.open_options());
  const model::Plan plan = model::make_plan(model, resolve(options));
  std::vector<std::string> notes = model.notes();
  notes.insert(notes.end(), plan.notes.begin(), plan.notes.end());
  if (options.dry_run) {
    if (common.json) {
      io::Json json = plan_json(model, plan);
      json["notes"] = notes;
      print_json(json);
    } else if (!common.quiet) {
      print_notes(common, notes);
      print_plan(model, plan);
    }
    return Exit::done;
  }

  if (!model.checkpoint().left_behind().empty()) {
    std::string left;
    for (const std::string& name : model.checkpoint().left_behind()) left += (left.empty() ? "" : ", ") + name;
    notes.push_back("not copied, since they may hold the old weights: " + left);
  }
  model::RunOptions run;
  run.threads = common.threads;
  run.fsync = !options.no_fsync;
  run.force = options.force;
  run.again = options.again;
  model::RunSummary summary;
  {
    ProgressLine progress(common, options.is_fold ? "folding" : "rotating", "B");
    run.progress = [&](std::uint64_t finished, std::uint64_t total) { progress.update(finished, total); };
    summary = model::transform(model, plan, options.out, run);
  }
  notes.insert(notes.end(), summary.notes.begin(), summary.notes.end());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (common.json) {
    print_json({{"out", options.out}, {"step", model::to_json(plan.step, plan.basis)}, {"bytes", summary.bytes}, {"transformed", summary.transformed},
                {"neutralised", summary.neutralised}, {"copied", summary.copied}, {"seconds", seconds}, {"notes", notes}});
    return Exit::done;
  }
  print_notes(common, notes);
  if (!common.quiet) {
    fmt::print("{}: {} tensors multiplied, {} gains set to 1, {} copied; {} in {:.2f} s ({}/s)\n", options.out, summary.transformed, summary.neutralised,
               summary.copied, human_bytes(static_cast<double>(summary.bytes)), seconds, human_bytes(static_cast<double>(summary.bytes) / seconds));
  }
  return Exit::done;
}

}  // namespace rmsfold::tool
