// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// `rmsfold.json`: what was done to a model, in enough detail to do it again, check it, or undo it.

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/io/checkpoint.hpp>
#include <rmsfold/model/plan.hpp>
#include <rmsfold/version.hpp>

namespace rmsfold::model {

/// Format of the manifest; a file with a larger number is refused.
inline constexpr int manifest_format = 1;

/// Hashes of one tensor, XXH3-64 in hexadecimal; `before` is the source's.
struct TensorHashes {
  std::string before;  ///< bytes it was made from
  std::string after;   ///< bytes written
  friend bool operator==(const TensorHashes&, const TensorHashes&) = default;  ///< both the same
};

/// A manifest that was read.
struct Manifest {
  std::vector<io::Json> steps;                 ///< every step since the original model, as written
  std::map<std::string, TensorHashes> hashes;  ///< of the last step
};

/// A step as JSON. Nothing that differs between two equal runs: no times, paths or hosts.
[[nodiscard]] inline io::Json to_json(const Step& step, const Basis& basis) {
  io::Json json;
  json["fold"] = step.fold;
  if (step.keep_final_norm) json["keep_final_norm"] = true;
  json["rotation"] = std::string(name_of(step.rotation));
  if (step.rotation == RotationKind::none) return json;
  json["inverse"] = step.inverse;
  json["heads"] = step.heads;
  if (step.rotation != RotationKind::file || step.heads) {
    json["seed"] = step.seed;
    json["generator"] = "xoshiro256** seeded by SplitMix64; stream 0: residual stream, 1 + layer * n_kv + head: values";
  }
  if (const Hadamard* hadamard = basis.stream->as_hadamard()) json["hadamard_factors"] = hadamard->factors();
  if (stores_matrix(step, basis)) json["matrix"] = std::string(rotation_file_name);
  return json;
}

/// The step that a manifest's entry describes. @param directory  of the manifest, where the dense matrices are. @throws FormatError.
[[nodiscard]] inline Step step_from_json(const io::Json& json, const std::filesystem::path& directory) {
  const Config entry(json, (directory / io::Checkpoint::manifest_name).string());
  Step step;
  step.fold = entry.flag_or("fold", false);
  step.keep_final_norm = entry.flag_or("keep_final_norm", false);
  const std::string kind = entry.text_or("rotation", "none");
  if (!rotation_kind_from_name(kind)) rmsfold::detail::raise<FormatError>("{}: unknown rotation \"{}\"", entry.file(), kind);
  step.rotation = *rotation_kind_from_name(kind);
  step.inverse = entry.flag_or("inverse", false);
  step.heads = entry.flag_or("heads", false);
  if (entry.has("seed")) {
    if (!json.at("seed").is_number_unsigned()) rmsfold::detail::raise<FormatError>("{}: \"seed\" is no unsigned integer", entry.file());
    step.seed = json.at("seed").get<std::uint64_t>();
  }
  if (entry.has("matrix")) step.file = directory / rotation_file_name;
  return step;
}

/// Reads a manifest. @throws FormatError when it is malformed or from a newer version; IoError.
[[nodiscard]] inline Manifest read_manifest(const std::filesystem::path& path) {
  const Config root(io::read_json_file(path), path.string());
  if (!root.json().is_object()) rmsfold::detail::raise<FormatError>("{}: not a JSON object", path.string());
  if (root.positive("format") > manifest_format) {
    rmsfold::detail::raise<FormatError>("{}: format {} is newer than this version of rmsfold reads ({})", path.string(), root.positive("format"),
                                        manifest_format);
  }
  Manifest manifest;
  const io::Json steps = root.json().value("steps", io::Json::array());
  if (!steps.is_array() || steps.empty()) rmsfold::detail::raise<FormatError>("{}: \"steps\" is no list of steps", path.string());
  for (const io::Json& step : steps) {
    if (!step.is_object()) rmsfold::detail::raise<FormatError>("{}: \"steps\" is no list of steps", path.string());
    manifest.steps.push_back(step);
  }
  const std::optional<Config> tensors = root.section("tensors");
  if (!tensors) rmsfold::detail::raise<FormatError>("{}: key \"tensors\" is missing", path.string());
  for (const auto& [name, json] : tensors->json().items()) {
    if (!json.is_object()) rmsfold::detail::raise<FormatError>("{}: tensor {} is described by no object", path.string(), name);
    const Config entry(json, path.string() + ": tensors: " + name);
    manifest.hashes[name] = {entry.text_or("before", ""), entry.text_or("after", "")};
  }
  return manifest;
}

/// Whether a step is the inverse of another one; folds, which are not undone, do not count.
[[nodiscard]] inline bool undoes(io::Json step, io::Json earlier) {
  step.erase("fold");
  earlier.erase("fold");
  earlier["inverse"] = !earlier.value("inverse", false);
  return step == earlier;
}

/// The rotations that separate a model's basis from the original's: those that no later inverse has undone.
[[nodiscard]] inline std::vector<io::Json> open_rotations(const std::vector<io::Json>& steps) {
  std::vector<io::Json> open;
  for (const io::Json& step : steps) {
    if (step.value("rotation", "none") == name_of(RotationKind::none)) continue;
    if (!open.empty() && undoes(step, open.back())) {
      open.pop_back();
    } else {
      open.push_back(step);
    }
  }
  return open;
}

/// The manifest of a run without the hashes, which `add_hashes` adds when they are known.
/// @param earlier  steps of the input's own manifest. @param stored  names of the tensors of the output
[[nodiscard]] inline io::Json make_manifest(const Model& model, const Plan& plan, const std::vector<io::Json>& earlier, const std::set<std::string>& stored) {
  io::Json root;
  root["format"] = manifest_format;
  root["rmsfold"] = fmt::format("{}.{}.{}", RMSFOLD_VERSION_MAJOR, RMSFOLD_VERSION_MINOR, RMSFOLD_VERSION_PATCH);
  root["family"] = model.graph().family->model_type;
  root["steps"] = earlier;
  root["steps"].push_back(to_json(plan.step, plan.basis));
  io::Json::object_t tensors;  // appended to, since looking a key up is linear
  std::set<std::string> left_alone = stored;
  for (const TensorPlan& tensor : plan.tensors) {
    if (left_alone.erase(tensor.name) == 0) continue;  // a tied head that is not stored
    io::Json entry;
    if (tensor.source != tensor.name) entry["source"] = tensor.source;
    entry["result"] = detail::formula(tensor, model.shape(tensor.name).size());
    for (const Factor& factor : tensor.factors) {
      if (factor.kind == Factor::Kind::gain || factor.kind == Factor::Kind::inverse_gain) entry["gain"] = factor.of;
    }
    if (!tensor.absorbs.empty()) entry["bias_of"] = tensor.absorbs;
    if (!tensor.why.empty()) entry["why"] = tensor.why;
    tensors.emplace_back(tensor.name, std::move(entry));
  }
  for (const std::string& name : left_alone) tensors.emplace_back(name, io::Json{{"result", "unchanged"}, {"why", "left alone"}});
  root["tensors"] = std::move(tensors);
  return root;
}

/// Completes a manifest. @throws FormatError when a tensor of it has no hashes.
inline void add_hashes(io::Json& manifest, const std::map<std::string, TensorHashes>& hashes) {
  for (auto& [name, entry] : manifest.at("tensors").get_ref<io::Json::object_t&>()) {
    const auto hash = hashes.find(name);
    if (hash == hashes.end()) rmsfold::detail::raise<FormatError>("tensor {} is in no finished shard", io::printable(name));
    entry["before"] = hash->second.before;
    entry["after"] = hash->second.after;
  }
}

}  // namespace rmsfold::model
