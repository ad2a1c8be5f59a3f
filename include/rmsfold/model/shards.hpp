// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model written shard by shard, by one process or many: who writes which shard, what a finished one leaves beside itself, and how all of them become a model.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/io/hash.hpp>
#include <rmsfold/io/output_directory.hpp>
#include <rmsfold/model/manifest.hpp>

namespace rmsfold::model {

/// One of several workers that write a model together.
struct Part {
  std::size_t number = 1;  ///< from 1
  std::size_t of = 1;      ///< how many there are
};

/// Number of the part, from 1 to `parts`, that writes each shard: the largest shard goes first, each to the part that has least.
///
/// No part gets more than 4/3 of what the best assignment would give its fullest part (Graham 1969). Depends on nothing but the sizes, so workers agree
/// without talking. @par Cost O((s+p) log(s+p))
[[nodiscard]] inline std::vector<std::size_t> assign_shards(const std::vector<std::uint64_t>& bytes, std::size_t parts) {
  std::vector<std::size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
  using Load = std::pair<std::uint64_t, std::size_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  // Never more parts than shards have anything to do; the first ones do.
  for (std::size_t part = 1; part <= (std::min)(parts, bytes.size()); ++part) loads.emplace(0, part);
  std::vector<std::size_t> part_of(bytes.size());
  for (const std::size_t shard : order) {
    const auto [load, part] = loads.top();
    loads.pop();
    part_of[shard] = part;
    loads.emplace(load + bytes[shard], part);
  }
  return part_of;
}

/// What a run did.
struct RunSummary {
  std::uint64_t bytes = 0;         ///< tensor bytes of the shards that are counted here
  std::size_t transformed = 0;     ///< tensors multiplied by factors
  std::size_t neutralised = 0;     ///< of norms, set to a gain of 1 or a bias of 0
  std::size_t copied = 0;          ///< tensors copied byte for byte
  std::size_t shards = 0;          ///< files with these tensors: of the model, or of one part
  std::size_t shards_kept = 0;     ///< of them, those that an earlier run had finished
  std::vector<std::string> notes;  ///< for the user
};

/// What a finished shard leaves beside itself in the partial directory.
struct ShardRecord {
  std::string plan;                     ///< hash of what was done
  std::uint64_t bytes = 0;              ///< size of the file
  std::string header;                   ///< hash of its header
  std::uint64_t source_bytes = 0;       ///< size of the input's file
  std::int64_t source_modified = 0;     ///< when that was changed last; on the system's clock, in its unit
  RunSummary summary;                   ///< of this shard
  std::vector<std::string> tensors;     ///< names, in the order of the bytes
  std::vector<TensorHashes> hashes;     ///< of each
};

/// What all workers have agreed on: written once, before the first shard.
struct ShardJob {
  std::string plan;                 ///< hash of what is done
  std::size_t parts = 0;            ///< 0: one process does everything
  std::string model;                ///< the input's directory
  std::vector<std::string> shards;  ///< files of the output
  std::vector<std::size_t> part_of;  ///< number of the part that writes each
  io::Json manifest;                ///< of the output, without the hashes
};

namespace detail {

/// Folder inside the partial directory, removed at the end, with `job.json`, a record per finished shard, and the parts' locks.
inline constexpr std::string_view job_folder = "rmsfold.job";
/// Format of the job and of records.
inline constexpr int job_format = 1;

[[nodiscard]] inline std::filesystem::path job_path(const std::filesystem::path& partial) { return partial / job_folder / "job.json"; }
[[nodiscard]] inline std::filesystem::path record_path(const std::filesystem::path& partial, const std::string& shard) {
  return partial / job_folder / (shard + ".json");
}

/// Writes a small file so that a reader finds all of it or none.
inline void put_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path next = path;
  next += ".new";
  std::error_code ignored;  // when it cannot be removed, it cannot be written either
  std::filesystem::remove(next, ignored);
  io::write_text_file(next, text);
  io::detail::rename_or_raise(next, path);
}

/// Reads one of our own files; nothing when it is not there, cut short, or of another version.
template <class Read>
[[nodiscard]] auto read_own(const std::filesystem::path& path, const Read& read) -> std::optional<decltype(read(io::Json()))> {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  try {
    const io::Json json = io::read_json_file(path, std::uint64_t{1} << 32);
    if (json.at("format") != job_format) return std::nullopt;
    return read(json);
  } catch (const FormatError&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

[[nodiscard]] inline std::optional<ShardJob> read_job(const std::filesystem::path& partial) {
  return read_own(job_path(partial), [](const io::Json& json) {
    ShardJob job;
    json.at("plan").get_to(job.plan);
    json.at("parts").get_to(job.parts);
    json.at("model").get_to(job.model);
    json.at("shards").get_to(job.shards);
    json.at("part_of").get_to(job.part_of);
    if (job.part_of.size() != job.shards.size()) rmsfold::detail::raise<FormatError>("not every shard has a part");
    job.manifest = json.at("manifest");
    return job;
  });
}

inline void write_job(const std::filesystem::path& partial, const ShardJob& job) {
  io::Json json{{"format", job_format}, {"plan", job.plan}, {"parts", job.parts}, {"model", job.model}, {"shards", job.shards}, {"part_of", job.part_of}};
  json["manifest"] = job.manifest;
  // A path need not be UTF-8; that it is only there to be looked at again makes replacing harmless.
  put_file(job_path(partial), json.dump(-1, ' ', false, io::Json::error_handler_t::replace) + "\n");
}

[[nodiscard]] inline std::optional<ShardRecord> read_record(const std::filesystem::path& partial, const std::string& shard) {
  return read_own(record_path(partial, shard), [](const io::Json& json) {
    ShardRecord record;
    json.at("plan").get_to(record.plan);
    json.at("bytes").get_to(record.bytes);
    json.at("header").get_to(record.header);
    json.at("source_bytes").get_to(record.source_bytes);
    json.at("source_modified").get_to(record.source_modified);
    json.at("tensor_bytes").get_to(record.summary.bytes);
    json.at("transformed").get_to(record.summary.transformed);
    json.at("neutralised").get_to(record.summary.neutralised);
    json.at("copied").get_to(record.summary.copied);
    json.at("notes").get_to(record.summary.notes);
    for (const io::Json& tensor : json.at("tensors")) {
      tensor.at(0).get_to(record.tensors.emplace_back());
      TensorHashes& hashes = record.hashes.emplace_back();
      tensor.at(1).get_to(hashes.before);
      tensor.at(2).get_to(hashes.after);
    }
    return record;
  });
}

inline void write_record(const std::filesystem::path& partial, const std::string& shard, const ShardRecord& record) {
  io::Json json{{"format", job_format},
                {"plan", record.plan},
                {"bytes", record.bytes},
                {"header", record.header},
                {"source_bytes", record.source_bytes},
                {"source_modified", record.source_modified},
                {"tensor_bytes", record.summary.bytes},
                {"transformed", record.summary.transformed},
                {"neutralised", record.summary.neutralised},
                {"copied", record.summary.copied},
                {"notes", record.summary.notes}};
  io::Json& tensors = json["tensors"] = io::Json::array();
  for (std::size_t i = 0; i < record.tensors.size(); ++i) tensors.push_back({record.tensors[i], record.hashes[i].before, record.hashes[i].after});
  put_file(record_path(partial, shard), json.dump() + "\n");
}

/// Reads every record of a job. @throws RefusedError naming the shards that are missing, and the parts that write them.
[[nodiscard]] inline std::vector<ShardRecord> collect_records(const ShardJob& job, const std::filesystem::path& partial) {
  std::vector<ShardRecord> records;
  std::vector<std::string> missing;
  std::set<std::size_t> parts;
  for (std::size_t i = 0; i < job.shards.size(); ++i) {
    const std::string& shard = job.shards[i];
    std::optional<ShardRecord> record = read_record(partial, shard);
    std::error_code error;
    const bool is_whole = record && record->plan == job.plan && std::filesystem::file_size(partial / shard, error) == record->bytes && !error;
    if (is_whole) {
      records.push_back(std::move(*record));
    } else {
      missing.push_back(shard);
      parts.insert(job.part_of[i]);
    }
  }
  if (!missing.empty()) {
    constexpr std::size_t shown = 8;
    std::string names;
    for (std::size_t i = 0; i < missing.size() && i < shown; ++i) names += (i == 0 ? "" : ", ") + io::printable(missing[i]);
    if (missing.size() > shown) names += fmt::format(" and {} more", missing.size() - shown);
    rmsfold::detail::raise<RefusedError>("{}: {} of {} shards are not there yet: {}; {}", io::printable(partial), missing.size(), job.shards.size(), names,
                                         job.parts == 0 ? std::string("run the same command again with --resume")
                                                        : fmt::format("run again, of {} parts: {}", job.parts, fmt::join(parts, ", ")));
  }
  return records;
}

/// The end of every run: when all shards are there, the manifest gets their hashes and the directory its name.
///
/// A manifest that is there already says that this was found before, by a process that was killed on the way from here to the name.
inline RunSummary complete(io::OutputDirectory& out, bool fsync) {
  const std::filesystem::path manifest_path = out.path() / io::Checkpoint::manifest_name;
  RunSummary summary;
  std::error_code error;
  if (!std::filesystem::exists(manifest_path, error)) {
    std::optional<ShardJob> job = read_job(out.path());
    if (!job) rmsfold::detail::raise<RefusedError>("{} holds nothing that this version of rmsfold could finish: begin again", io::printable(out.path()));
    std::map<std::string, TensorHashes> hashes;
    for (ShardRecord& record : collect_records(*job, out.path())) {
      for (std::size_t i = 0; i < record.tensors.size(); ++i) hashes[std::move(record.tensors[i])] = std::move(record.hashes[i]);
      summary.bytes += record.summary.bytes;
      summary.transformed += record.summary.transformed;
      summary.neutralised += record.summary.neutralised;
      summary.copied += record.summary.copied;
      ++summary.shards;
      summary.notes.insert(summary.notes.end(), record.summary.notes.begin(), record.summary.notes.end());
    }
    add_hashes(job->manifest, hashes);
    put_file(manifest_path, job->manifest.dump(1) + "\n");
  }
  std::filesystem::remove(job_path(out.path()), error);  // first: without it, the manifest is what counts
  std::filesystem::remove_all(out.path() / job_folder, error);
  if (error) io::detail::raise_system("remove", out.path() / job_folder, error.value());
  out.commit(fsync);
  return summary;
}

}  // namespace detail

/// How to finish.
struct FinishOptions {
  bool fsync = true;   ///< wait until the disk has everything before the output appears
  bool force = false;  ///< replace an existing output
};

/// Makes `out` of what the parts wrote: checks that every shard is there, adds the manifest, and gives the directory its name. Needs the input no more.
/// @throws RefusedError, naming the shards that are missing; IoError when a part is still running.
inline RunSummary finish(const std::filesystem::path& out, const FinishOptions& options = {}) {
  const std::optional<ShardJob> job = detail::read_job(io::OutputDirectory::partial_path(out));
  std::error_code error;
  const bool has_model = job && std::filesystem::exists(job->model, error);
  io::OutputOptions how;
  how.force = options.force;
  how.existing = true;
  how.stays = true;
  io::OutputDirectory directory(out, has_model ? std::filesystem::path(job->model) : std::filesystem::path(), how);
  RunSummary summary = detail::complete(directory, options.fsync);
  summary.notes.insert(summary.notes.end(), directory.notes().begin(), directory.notes().end());
  return summary;
}

}  // namespace rmsfold::model
