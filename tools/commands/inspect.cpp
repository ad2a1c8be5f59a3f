// SPDX-License-Identifier: MIT
#include <map>
#include <set>

#include <fmt/format.h>

#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/model/manifest.hpp>
#include <rmsfold/model/sites.hpp>
#include <rmsfold/model/statistics.hpp>

#include "commands/commands.hpp"

namespace rmsfold::tool {

namespace {

/// "order 576 = 12·12·2·2", or why there is none.
std::string hadamard_words(Index n) {
  const auto factors = hadamard_factors(n);
  if (!factors) return fmt::format("no Hadamard matrix of order {} in this version", n);
  std::string product;
  for (const Index f : *factors) product += (product.empty() ? "" : "·") + std::to_string(f);
  return fmt::format("Hadamard order {} = {}", n, product.empty() ? "1" : product);
}

/// A step of the manifest, as a user would say it.
std::string step_words(const io::Json& json) {
  const model::Step step = model::step_from_json(json, "");
  std::string words = step.fold ? "gains folded" : "";
  if (step.rotation == model::RotationKind::none) return words;
  words += fmt::format("{}rotated: {}", words.empty() ? "" : ", ", model::name_of(step.rotation));
  if (json.contains("seed")) words += fmt::format(", seed {}", step.seed);
  return words + (step.inverse ? ", inverse" : "") + (step.heads ? ", heads" : "");
}

/// A module's name without "…layers.N.".
std::string name_in_layer(const model::Node& node) {
  const std::string number = fmt::format(".{}.", node.layer);
  const std::size_t at = node.layer < 0 ? std::string::npos : node.module.find(number);
  return at == std::string::npos ? node.module : node.module.substr(at + number.size());
}

void print_weights(const model::Model& model) {
  fmt::print("\n{:<50} {:>12} {:>12} {:>12}\n", "tensor", "max |W|", "RMS", "kurtosis");
  for (const model::Param& param : model.graph().params) {
    const model::WeightStatistics s = model::weight_statistics(model, param.name);
    fmt::print("{:<50} {:>12.4g} {:>12.4g} {:>12.4g}\n", param.name, s.largest, s.rms, s.kurtosis);
  }
  fmt::print("kurtosis: 3 for Gaussian entries, larger with outliers, which cost a quantiser its range.\n");
}

}  // namespace

int inspect(const Common& common, const InspectOptions& options) {
  const model::Model model(options.model, common.open_options());
  const model::Graph& graph = model.graph();
  const std::vector<model::Site> sites = model::find_sites(model);
  const model::Verdict verdict = model::judge(graph, sites);
  std::set<std::string> dtypes;
  std::uint64_t bytes = 0, tensors = 0;
  for (const io::Shard& shard : model.checkpoint().shards()) {
    for (const io::TensorInfo* tensor : shard.tensors) {
      dtypes.insert(tensor->dtype);
      bytes += tensor->bytes();
      ++tensors;
    }
  }
  std::size_t foldable = 0, neutral = 0;
  for (const model::Site& site : sites) {
    if (site.is_neutral()) {
      ++neutral;
    } else if (site.is_foldable()) {
      ++foldable;
    }
  }
  std::vector<io::Json> steps;
  if (const auto manifest = model.checkpoint().manifest_path()) steps = model::read_manifest(*manifest).steps;

  if (common.json) {
    io::Json json;
    json["family"] = graph.family->model_type;
    json["layers"] = graph.size.layers;
    json["hidden"] = graph.size.hidden;
    json["heads"] = graph.size.heads;
    json["kv_heads"] = graph.size.kv_heads;
    json["head_dim"] = graph.size.head_dim;
    json["tensors"] = tensors;
    json["bytes"] = bytes;
    json["dtypes"] = dtypes;
    json["head_is_tied"] = model.head_is_tied();
    json["gauge"] = {{"as_stored", std::string(name_of(verdict.as_stored))}, {"after_folding", std::string(name_of(verdict.after_folding))}};
    for (const model::Site& site : sites) {
      io::Json entry;
      entry["norm"] = site.norm->module;
      for (const model::Node* reader : site.readers) entry["readers"].push_back(reader->module);
      entry["smallest_gain"] = site.magnitudes().first;
      entry["largest_gain"] = site.magnitudes().second;
      entry["foldable"] = site.is_foldable();
      entry["neutral"] = site.is_neutral();
      if (!site.is_foldable()) entry["why_not"] = site.why_not_foldable;
      json["sites"].push_back(std::move(entry));
    }
    for (const model::Restriction& restriction : verdict.restrictions) {
      json["restrictions"].push_back({{"node", restriction.node}, {"group", std::string(name_of(restriction.gauge))}, {"why", restriction.why}});
    }
    for (std::size_t i = 0; options.weights && i < graph.params.size(); ++i) {
      const model::WeightStatistics s = model::weight_statistics(model, graph.params[i].name);
      json["weights"][graph.params[i].name] = {{"largest", s.largest}, {"rms", s.rms}, {"kurtosis", s.kurtosis}};
    }
    json["steps"] = steps;
    json["notes"] = model.notes();
    print_json(common, std::move(json));
    return Exit::done;
  }

  if (common.quiet) return Exit::done;
  print_notes(common, model.notes());
  std::string types;
  for (const std::string& dtype : dtypes) types += (types.empty() ? "" : ", ") + dtype;
  fmt::print("{}\n", options.model);
  fmt::print("  family      {} ({}), {} layers, hidden {}, {} heads ({} kv) of {}, MLP {}, vocabulary {}\n", graph.family->model_type,
             model::detail::joined(graph.family->architectures), graph.size.layers, graph.size.hidden, graph.size.heads, graph.size.kv_heads, graph.size.head_dim,
             graph.size.intermediate, graph.size.vocabulary);
  fmt::print("  weights     {} tensors, {} in {} file{}, {}; head {}\n", tensors, human_bytes(static_cast<double>(bytes)), model.checkpoint().shards().size(),
             model.checkpoint().shards().size() == 1 ? "" : "s", types, model.head_is_tied() ? "tied to the embedding" : "stored");
  for (const io::Json& step : steps) fmt::print("  history     {}\n", step_words(step));

  fmt::print("\nNorm sites of the residual stream, with the linear layers that read them\n");
  fmt::print("  {:<42} {:<22} {}\n", "norm (eps " + fmt::format("{}", graph.size.eps) + ")", "gain |g|", "readers");
  for (const model::Site& site : sites) {
    std::string readers;
    for (const model::Node* reader : site.readers) {
      readers += (readers.empty() ? "" : ", ") + reader->module.substr(reader->module.rfind('.') + 1);
    }
    const auto [least, most] = site.magnitudes();
    const std::string gain = site.is_neutral()    ? "1 (neutral)"
                             : site.is_constant() ? fmt::format("{:.4g} (constant)", site.gain[0])
                                                  : fmt::format("{:.4g} … {:.4g}", least, most);
    fmt::print("  {:<42} {:<22} {}{}\n", site.norm->module, gain, readers, site.is_foldable() ? "" : " — stuck: " + site.why_not_foldable);
  }
  fmt::print("\nWriters of the residual stream\n ");
  std::map<std::string, int> writers;
  for (const model::Node& node : graph.nodes) {
    if (graph.writes_stream(node)) ++writers[name_in_layer(node)];
  }
  for (const auto& [name, count] : writers) fmt::print(" {}{}", name, count > 1 ? fmt::format(" (x{})", count) : "");

  fmt::print("\n\nWhich changes of basis leave the model the same function\n");
  fmt::print("  as stored       {}\n", name_of(verdict.as_stored));
  fmt::print("  after folding   {}\n", name_of(verdict.after_folding));
  if (!verdict.restrictions.empty()) {
    const model::Restriction& first = verdict.restrictions.front();
    fmt::print("  since {} {}{}\n", first.node, first.why,
               verdict.restrictions.size() > 1 ? fmt::format(" (and {} more norms)", verdict.restrictions.size() - 1) : "");
  }

  fmt::print("\nWhat can be done\n");
  fmt::print("  fold            {} of {} gains fold{}{}\n", foldable, sites.size(), neutral > 0 ? fmt::format("; {} are neutral already", neutral) : "",
             model.head_is_tied() && foldable > 0 && !sites.back().is_neutral() ? "; the head gets its own tensor" : "");
  const bool dense = verdict.after_folding == Gauge::orthogonal;
  fmt::print("  rotate          {}\n", dense ? "--rotation hadamard (" + hadamard_words(graph.size.hidden) + ") or orthogonal, with the fold"
                                             : "dense rotations are impossible; signed permutations are exact");
  fmt::print("  permute         {}\n", contains(verdict.as_stored, Gauge::signed_permutation)
                                         ? "--rotation signed-permutation or permutation, as stored: no weight is rounded"
                                         : "not as stored");
  fmt::print("  heads           --heads rotates values per kv head ({})\n", hadamard_words(graph.size.head_dim));
  if (options.weights) print_weights(model);
  return Exit::done;
}

}  // namespace rmsfold::tool
