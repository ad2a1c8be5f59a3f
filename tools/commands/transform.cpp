// SPDX-License-Identifier: MIT
#include <rmsfold/model/transform.hpp>

#include <chrono>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

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
    step.keep_final_norm = options.keep_final_norm;
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
  step.keep_final_norm = step.keep_final_norm || options.keep_final_norm;
  if (options.fold) step.fold = true;
  if (options.no_fold) step.fold = false;
  return step;
}

/// A number that is nothing but digits.
std::optional<std::size_t> whole_number(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// Which part the launcher made this process: its rank, counted from 0, of so many.
model::Part part_of_launcher() {
  for (const auto& [rank_name, size_name] : {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, std::pair{"SLURM_PROCID", "SLURM_NTASKS"}}) {
    const char* rank_text = std::getenv(rank_name);
    const char* size_text = std::getenv(size_name);
    if (rank_text == nullptr || size_text == nullptr) continue;
    const std::optional<std::size_t> rank = whole_number(rank_text), size = whole_number(size_text);
    if (!rank || !size || *rank >= *size) rmsfold::detail::raise<RefusedError>("--part auto: {}={} and {}={} are no rank and size", rank_name, rank_text, size_name, size_text);
    if (*size == 1 && std::getenv("SLURM_ARRAY_TASK_ID") != nullptr) {
      rmsfold::detail::raise<RefusedError>(
          "--part auto: each task of a SLURM array is a job of its own, with one process: say --part $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT, with --array=1-n");
    }
    return {*rank + 1, *size};
  }
  rmsfold::detail::raise<RefusedError>(
      "--part auto: neither OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE (Open MPI's mpirun) nor SLURM_PROCID and SLURM_NTASKS (srun) are set: say --part i/n");
}

/// What was typed for --part.
std::optional<model::Part> parse_part(const std::string& typed) {
  if (typed.empty()) return std::nullopt;
  if (typed == "auto") return part_of_launcher();
  const std::size_t slash = (std::min)(typed.find('/'), typed.size());
  const std::optional<std::size_t> number = whole_number(std::string_view(typed).substr(0, slash));
  const std::optional<std::size_t> of = slash < typed.size() ? whole_number(std::string_view(typed).substr(slash + 1)) : std::nullopt;
  if (!number || !of || *number < 1 || *number > *of) rmsfold::detail::raise<RefusedError>("--part {}: it is i/n, with i from 1 to n, or auto", typed);
  return model::Part{*number, *of};
}

void print_summary(const std::string& what, const model::RunSummary& summary, double seconds) {
  fmt::print("{}: {} tensors multiplied, {} of norms set to neutral, {} copied; {} in {:.2f} s ({}/s)\n", what, summary.transformed, summary.neutralised, summary.copied,
             human_bytes(static_cast<double>(summary.bytes)), seconds, human_bytes(static_cast<double>(summary.bytes) / seconds));
}

void print_plan(const model::Model& model, const model::Plan& plan) {
  fmt::print("{:<50} {:<18} {}\n", "tensor", "becomes", "why");
  for (const model::TensorPlan& tensor : plan.tensors) {
    if (tensor.name == model.head_tensor() && !plan.head_is_written) {
      fmt::print("{:<50} {:<18} {}\n", tensor.name, "(tied)", "stays tied to " + model.embedding_tensor());
      continue;
    }
    const std::string from = tensor.source == tensor.name ? "" : ", made from " + tensor.source;
    fmt::print("{:<50} {:<18} {}{}\n", tensor.name, model::detail::formula(tensor, model.shape(tensor.name).size()), tensor.why, from);
  }
  fmt::print("\nW: as stored (factors to its right act along the last axis, those to its left along another one); g: gain; b, β: biases; Q: change of basis x' = x·Q; R: the same per head.\n"
             "Checked: along every edge the factors multiply to the identity; every neutralised norm has readers, each scaled once.\n");
}

io::Json plan_json(const model::Model& model, const model::Plan& plan) {
  io::Json json;
  json["step"] = model::to_json(plan.step, plan.basis);
  json["head_is_written"] = plan.head_is_written;
  json["output_is_tied"] = plan.output_is_tied;
  for (const model::TensorPlan& tensor : plan.tensors) {
    io::Json entry{{"name", tensor.name}, {"source", tensor.source}, {"becomes", model::detail::formula(tensor, model.shape(tensor.name).size())}, {"why", tensor.why}};
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
  const std::optional<model::Part> part = parse_part(options.part);
  const model::Plan plan = model::make_plan(model, resolve(options));
  std::vector<std::string> notes = model.notes();
  notes.insert(notes.end(), plan.notes.begin(), plan.notes.end());
  if (options.dry_run) {
    if (common.json) {
      io::Json json = plan_json(model, plan);
      json["notes"] = notes;
      print_json(common, std::move(json));
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
  run.resume = options.resume;
  run.part = part;
  model::RunSummary summary;
  {
    ProgressLine progress(common, options.is_fold ? "folding" : "rotating", "B");
    run.progress = [&](std::uint64_t finished, std::uint64_t total) { progress.update(finished, total); };
    summary = model::transform(model, plan, options.out, run);
  }
  notes.insert(notes.end(), summary.notes.begin(), summary.notes.end());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (common.json) {
    io::Json json{{"out", options.out}, {"step", model::to_json(plan.step, plan.basis)}, {"bytes", summary.bytes}, {"transformed", summary.transformed},
                  {"neutralised", summary.neutralised}, {"copied", summary.copied}, {"shards", summary.shards}, {"shards_kept", summary.shards_kept},
                  {"seconds", seconds}, {"notes", notes}};
    if (part) json["part"] = {{"number", part->number}, {"of", part->of}};
    print_json(common, std::move(json));
    return Exit::done;
  }
  print_notes(common, notes);
  if (common.quiet) return Exit::done;
  if (!part) {
    print_summary(options.out, summary, seconds);
    return Exit::done;
  }
  const std::string name = fmt::format("{}, part {}/{}", options.out, part->number, part->of);
  const std::size_t shards = model.checkpoint().shards().size();
  if (summary.shards == 0) {
    fmt::print("{}: nothing to do, since there {} only {} shard{}\n", name, shards == 1 ? "is" : "are", shards, shards == 1 ? "" : "s");
  } else {
    print_summary(fmt::format("{}, {} of {} shards", name, summary.shards, shards), summary, seconds);
  }
  fmt::print("when all parts are done: rmsfold finish {}\n", options.out);
  return Exit::done;
}

int finish(const Common& common, const FinishCommandOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  model::FinishOptions how;
  how.fsync = !options.no_fsync;
  how.force = options.force;
  const model::RunSummary summary = model::finish(options.out, how);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (common.json) {
    print_json(common, {{"out", options.out}, {"bytes", summary.bytes}, {"transformed", summary.transformed}, {"neutralised", summary.neutralised},
                        {"copied", summary.copied}, {"shards", summary.shards}, {"seconds", seconds}, {"notes", summary.notes}});
    return Exit::done;
  }
  print_notes(common, summary.notes);
  if (!common.quiet) {
    fmt::print("{}: complete, {} in {} shard{}\n", options.out, human_bytes(static_cast<double>(summary.bytes)), summary.shards, summary.shards == 1 ? "" : "s");
  }
  return Exit::done;
}

}  // namespace rmsfold::tool
