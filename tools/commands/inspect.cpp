// SPDX-License-Identifier: MIT
#include <algorithm>
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

/// A module's name without "…layers.N." and with * for other numbers.
std::string name_in_layer(const model::Node& node) {
  const std::string number = fmt::format(".{}.", node.layer);
  const std::size_t at = node.layer < 0 ? std::string::npos : node.module.find(number);
  std::string name = at == std::string::npos ? node.module : node.module.substr(at + number.size());
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {  // experts are many
    const std::size_t end = name.find_first_not_of("0123456789", dot + 1);
    if (end != std::string::npos && end > dot + 1 && name[end] == '.') name.replace(dot + 1, end - dot - 1, "*");
  }
  return name;
}

/// The class of config.json, or the first that the table describes.
std::string class_of(const model::Model& model) {
  const io::Json& config = model.config().json();
  const bool is_named = config.contains("architectures") && config["architectures"].is_array() && !config["architectures"].empty();
  return is_named ? config["architectures"][0].get<std::string>() : model.graph().family->architectures.front();
}

/// The numbers that the family has.
std::string sizes(const model::Dimensions& size) {
  std::string words = fmt::format("{} layers, hidden {}", size.layers, size.hidden);
  if (size.heads > 0) words += fmt::format(", {} heads ({} kv) of {}", size.heads, size.kv_heads, size.head_dim);
  if (size.intermediate > 0) words += fmt::format(", MLP {}", size.intermediate);
  if (size.vocabulary > 0) words += fmt::format(", vocabulary {}", size.vocabulary);
  return words;
}

/// Names of modules that differ, each once: experts are many.
std::string names_of(const std::vector<const model::Node*>& nodes) {
  std::vector<std::pair<std::string, int>> names;
  for (const model::Node* node : nodes) {
    const std::string name = node->module.substr(node->module.rfind('.') + 1);
    const auto known = std::find_if(names.begin(), names.end(), [&](const auto& entry) { return entry.first == name; });
    if (known == names.end()) {
      names.emplace_back(name, 1);
    } else {
      ++known->second;
    }
  }
  std::string text;
  for (const auto& [name, count] : names) text += (text.empty() ? "" : ", ") + name + (count > 1 ? fmt::format(" (x{})", count) : "");
  return text;
}

/// What dense rotations there are.
std::string rotation_words(const model::Graph& graph, const model::Verdict& verdict) {
  if (verdict.after_folding == Gauge::orthogonal) return "--rotation hadamard (" + hadamard_words(graph.size.hidden) + ") or orthogonal, with the fold";
  if (verdict.after_folding == Gauge::fixes_ones) {
    return "--rotation hadamard (" + hadamard_words(graph.size.hidden) + ") or orthogonal, with the fold: ones that fix the ones vector are taken";
  }
  for (const model::Restriction& restriction : verdict.restrictions) {
    if (!contains(restriction.after_folding, Gauge::fixes_ones)) return fmt::format("dense rotations are impossible: {} {}", restriction.node, restriction.why);
  }
  return "dense rotations are impossible";
}

std::string permutation_words(const model::Verdict& verdict) {
  if (contains(verdict.as_stored, Gauge::signed_permutation)) return "--rotation signed-permutation or permutation, as stored: no weight is rounded";
  if (contains(verdict.as_stored, Gauge::permutation)) return "--rotation permutation, as stored: no weight is rounded; signs are not allowed";
  return "not as stored";
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
  const bool unties = model.has_head() && model.head_is_tied() && std::any_of(sites.begin(), sites.end(), [&](const model::Site& site) {
    return site.is_foldable() && !site.is_neutral() && std::any_of(site.readers.begin(), site.readers.end(), [&](const model::Node* reader) {
      return reader->weight && graph.params[*reader->weight].name == model.head_tensor();
    });
  });
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
    json["why_no_heads"] = model::why_no_heads(graph);
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
  fmt::print("  family      {} ({}), {}\n", graph.family->model_type, class_of(model), sizes(graph.size));
  fmt::print("  weights     {} tensors, {} in {} file{}, {}{}\n", tensors, human_bytes(static_cast<double>(bytes)), model.checkpoint().shards().size(),
             model.checkpoint().shards().size() == 1 ? "" : "s", types,
             !model.has_head() ? "" : model.head_is_tied() ? "; head tied to the embedding" : "; head stored");
  for (const io::Json& step : steps) fmt::print("  history     {}\n", step_words(step));

  fmt::print("\nNorm sites, with the linear layers that read them\n");
  fmt::print("  {:<42} {:<22} {}\n", "norm (eps " + fmt::format("{}", graph.size.eps) + ")", "gain |g|", "readers");
  for (const model::Site& site : sites) {
    const std::string readers = names_of(site.readers);
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
    const auto lasting = std::find_if(verdict.restrictions.begin(), verdict.restrictions.end(), [](const model::Restriction& r) { return r.after_folding != Gauge::orthogonal; });
    const model::Restriction& first = lasting == verdict.restrictions.end() ? verdict.restrictions.front() : *lasting;
    fmt::print("  since {} {}{}\n", first.node, first.why,
               verdict.restrictions.size() > 1 ? fmt::format(" (and {} more)", verdict.restrictions.size() - 1) : "");
  }

  fmt::print("\nWhat can be done\n");
  fmt::print("  fold            {} of {} gains fold{}{}\n", foldable, sites.size(), neutral > 0 ? fmt::format("; {} are neutral already", neutral) : "",
             unties ? "; the head gets its own tensor" : "");
  fmt::print("  rotate          {}\n", rotation_words(graph, verdict));
  fmt::print("  permute         {}\n", permutation_words(verdict));
  const std::string no_heads = model::why_no_heads(graph);
  const bool turns = contains(verdict.as_stored, Gauge::permutation) || contains(verdict.after_folding, Gauge::fixes_ones);
  fmt::print("  heads           {}\n", !turns ? "not possible: --heads goes with a change of basis of the stream" : no_heads.empty() ? "--heads rotates values per kv head (" + hadamard_words(graph.size.head_dim) + ")" : "not possible: " + no_heads);
  if (graph.family->rows.end() != std::find_if(graph.family->rows.begin(), graph.family->rows.end(), [](const model::Row& row) { return row.mtp; })) {
    fmt::print("  drafts          {}\n", graph.dropped.empty() ? "blocks that draft further tokens, if there are any, are moved along; --drop-mtp leaves them out" : "left out, as --drop-mtp says");
  }
  if (options.weights) print_weights(model);
  return Exit::done;
}

}  // namespace rmsfold::tool
