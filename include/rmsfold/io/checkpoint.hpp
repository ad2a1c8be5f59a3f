// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model directory: its configuration, its weight files, the one place where each tensor is read from, and what else
/// lies there.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/core/error.hpp>
#include <rmsfold/io/file.hpp>
#include <rmsfold/io/json.hpp>
#include <rmsfold/io/safetensors.hpp>

namespace rmsfold::io {

/// One weight file of a checkpoint.
struct Shard {
  std::string name;                        ///< File name inside the model directory.
  SafetensorsFile file;                    ///< Open for reading.
  std::vector<const TensorInfo*> tensors;  ///< Those that belong to the model, in the order of the header.
};

/// Where a tensor is read from.
struct TensorPlace {
  std::size_t shard = 0;             ///< Position in Checkpoint::shards().
  const TensorInfo* info = nullptr;  ///< Its description there.
};

/// A model directory in the Hugging Face layout. Only headers are read when it opens; links are followed.
class Checkpoint {
 public:
  static constexpr std::string_view config_name = "config.json";                  ///< The configuration.
  static constexpr std::string_view single_name = "model.safetensors";            ///< All weights in one file.
  static constexpr std::string_view index_name = "model.safetensors.index.json";  ///< Which file holds which tensor.
  static constexpr std::string_view manifest_name = "rmsfold.json";               ///< What this library did to a model.

  /// What says which files hold the model.
  enum class Source {
    index,   ///< `model.safetensors.index.json` when it is there; else the weights are `model.safetensors`.
    headers  ///< All safetensors files but `consolidated*`, none of which may repeat a tensor of another.
  };

  /// @throws IoError when the system refuses; FormatError when something is malformed, missing or contradictory: the
  /// message names file and tensor.
  explicit Checkpoint(std::filesystem::path directory, Source source = Source::index)
      : directory_(std::move(directory)) {
    list_directory();
    if (!is_present(config_name)) {
      detail::raise<FormatError>("{} is not a model directory: it has no {}", printable(directory_), config_name);
    }
    config_ = parse_json(quote_python_literals(read_text_file(directory_ / config_name, std::uint64_t{256} << 20)), (directory_ / config_name).native());
    if (!config_.is_object()) detail::raise<FormatError>("{}: not a JSON object", printable(directory_ / config_name));
    if (source == Source::index && is_present(index_name)) {
      open_by_index();
    } else {
      open_by_headers(source);
    }
    sort_other_files();
  }

  /// The directory as it was given.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return directory_; }
  /// Contents of `config.json`.
  [[nodiscard]] const Json& config() const noexcept { return config_; }
  /// The weight files, sorted by name.
  [[nodiscard]] const std::vector<Shard>& shards() const noexcept { return shards_; }
  /// Whether an index decided.
  [[nodiscard]] bool has_index() const noexcept { return !index_.is_null(); }
  /// Contents of the index file that decided; null when none did.
  [[nodiscard]] const Json& index() const noexcept { return index_; }
  /// The `metadata` of that index; null when there is none.
  [[nodiscard]] Json index_metadata() const { return index_.is_object() ? index_.value("metadata", Json()) : Json(); }
  /// Oddities that were settled while opening, for the user to read.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// Where a tensor is, or nullptr.
  [[nodiscard]] const TensorPlace* find(std::string_view name) const noexcept {
    const auto found = places_.find(name);
    return found == places_.end() ? nullptr : &found->second;
  }

  /// Names of all tensors of the model: shard after shard, in the order of the headers.
  [[nodiscard]] std::vector<std::string> tensor_names() const {
    std::vector<std::string> names;
    names.reserve(places_.size());
    for (const Shard& shard : shards_) {
      for (const TensorInfo* tensor : shard.tensors) names.push_back(tensor->name);
    }
    return names;
  }

  /// Fills `out` from byte `offset` of a tensor on. @throws FormatError when there is no such tensor; else as
  /// SafetensorsFile::read
  void read(std::string_view name, std::uint64_t offset, std::span<std::byte> out) const {
    const TensorPlace& place = require(name);
    shards_[place.shard].file.read(*place.info, out, offset);
  }

  /// The path of the file that holds a tensor. @throws FormatError when there is no such tensor.
  [[nodiscard]] std::string file_of(std::string_view name) const { return (directory_ / shards_[require(name).shard].name).string(); }

  /// Where a tensor's bytes begin in its file. @throws FormatError when there is no such tensor.
  [[nodiscard]] std::uint64_t place_of(std::string_view name) const {
    const TensorPlace& place = require(name);
    return shards_[place.shard].file.data_begin() + place.info->begin;
  }

  /// All bytes of a tensor. @throws FormatError when there is no such tensor; IoError
  [[nodiscard]] std::vector<std::byte> read(std::string_view name) const {
    const TensorPlace& place = require(name);
    return shards_[place.shard].file.read(*place.info);
  }

  /// The path of `rmsfold.json`, when it is there.
  [[nodiscard]] std::optional<std::filesystem::path> manifest_path() const {
    return is_present(manifest_name) ? std::optional(directory_ / manifest_name) : std::nullopt;
  }

  /// Names of the files to carry over unchanged: all regular ones except weights, `config.json`, the index and
  /// `rmsfold.json`, which a change of the weights may concern. Sorted.
  [[nodiscard]] const std::vector<std::string>& other_files() const noexcept { return other_files_; }

  /// Names of what a copy leaves behind, since it holds or describes the old weights: other weight files, their
  /// indexes, folders, and whatever is not a file at all. Sorted; folders end in '/'.
  [[nodiscard]] const std::vector<std::string>& left_behind() const noexcept { return left_behind_; }

 private:
  void list_directory() {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::file_status status = fs::status(directory_, error);
    if (status.type() == fs::file_type::not_found) {
      detail::raise<FormatError>("{}: there is no such model directory", printable(directory_));
    }
    if (fs::exists(status) && !fs::is_directory(status)) {
      detail::raise<FormatError>("{} is not a directory: a model is given by its folder", printable(directory_));
    }
    for (fs::directory_iterator entry(directory_, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code broken;
      entries_.emplace(entry->path().filename().native(), entry->status(broken).type());
    }
    if (error) detail::raise_system("list", directory_, error.value());
  }

  /// Whether a regular file of that name is there.
  [[nodiscard]] bool is_present(std::string_view name) const {
    const auto found = entries_.find(name);
    return found != entries_.end() && found->second == std::filesystem::file_type::regular;
  }

  /// A few of many names, for a message.
  [[nodiscard]] static std::string list(const std::vector<std::string>& names, std::size_t most) {
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + printable(names[i]);
    return names.size() > most ? fmt::format("{} and {} more", text, names.size() - most) : text;
  }

  void open_shard(const std::string& name) { shards_.push_back(Shard{name, SafetensorsFile(directory_ / name), {}}); }

  void add_place(std::size_t shard, const TensorInfo& tensor) {
    const auto [place, is_new] = places_.try_emplace(tensor.name, TensorPlace{shard, &tensor});
    if (!is_new) {
      detail::raise<FormatError>("{}: tensor '{}' is in both {} and {}, and no index says which one counts",
                                 printable(directory_), printable(tensor.name),
                                 printable(shards_[place->second.shard].name), printable(shards_[shard].name));
    }
    shards_[shard].tensors.push_back(&tensor);
  }

  void open_by_index() {
    const std::filesystem::path path = directory_ / index_name;
    index_ = read_json_file(path);
    const auto weight_map = index_.is_object() ? index_.find("weight_map") : index_.end();
    if (!index_.is_object() || weight_map == index_.end() || !weight_map->is_object()) {
      detail::raise<FormatError>("{}: no object 'weight_map'", printable(path));
    }
    std::map<std::string_view, std::string_view> promised;  // tensor to file name; the texts live in index_
    std::map<std::string_view, std::size_t> files;          // file name to its position, later
    for (const auto& [tensor, value] : weight_map->get_ref<const Json::object_t&>()) {
      if (!value.is_string()) {
        detail::raise<FormatError>("{}: the file of tensor '{}' is not a string", printable(path), printable(tensor));
      }
      const std::string& file = value.get_ref<const std::string&>();
      if (file.find_first_of(std::string_view("/\\\0", 3)) != file.npos || !file.ends_with(".safetensors")) {
        detail::raise<FormatError>(
            "{}: tensor '{}' is said to be in '{}', which is not the name of a safetensors file in this directory",
            printable(path), printable(tensor), printable(file));
      }
      promised.emplace(tensor, file);
      files.emplace(file, 0);
    }
    if (files.empty()) detail::raise<FormatError>("{}: 'weight_map' is empty", printable(path));
    std::vector<std::string> missing;
    for (const auto& [file, position] : files) {
      if (!is_present(file)) missing.emplace_back(file);
    }
    if (!missing.empty()) {
      detail::raise<FormatError>("{} names {} of {} files that are not there (stale index or incomplete download): {}",
                                 printable(path), missing.size(), files.size(), list(missing, missing.size()));
    }
    for (auto& [file, position] : files) {
      position = shards_.size();
      open_shard(std::string(file));
    }

    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      std::vector<std::string> stale;
      std::vector<std::string> unlisted;
      for (const TensorInfo& tensor : shards_[shard].file.tensors()) {
        const auto promise = promised.find(tensor.name);
        if (promise != promised.end() && files.at(promise->second) != shard) {
          stale.push_back(tensor.name);
          continue;
        }
        if (promise == promised.end()) unlisted.push_back(tensor.name);
        add_place(shard, tensor);
      }
      const std::string file = printable(shards_[shard].name);
      if (!stale.empty()) {
        notes_.push_back(
            fmt::format("{}: dropped {} stale, the index places elsewhere: {}", file, count(stale), list(stale, 3)));
      }
      if (!unlisted.empty()) {
        notes_.push_back(
            fmt::format("{}: kept {} that the index does not list: {}", file, count(unlisted), list(unlisted, 3)));
      }
    }
    for (const auto& [tensor, file] : promised) {
      if (find(tensor) == nullptr) {
        detail::raise<FormatError>("{} places tensor '{}' in {}, but it is not there", printable(path),
                                   printable(tensor), printable(file));
      }
    }
    if (is_present(single_name) && !files.contains(single_name)) {
      notes_.push_back(
          fmt::format("{} lies beside the shards and is ignored: the index does not name it", single_name));
    }
  }

  void open_by_headers(Source source) {
    std::vector<std::string> candidates;
    for (const auto& [name, type] : entries_) {
      if (is_present(name) && name.ends_with(".safetensors") && !name.starts_with("consolidated")) {
        candidates.push_back(name);
      }
    }
    if (source == Source::index) {
      const bool has_shards = std::any_of(candidates.begin(), candidates.end(),
                                          [](const std::string& name) { return name.starts_with("model-"); });
      if (is_present(single_name) && !has_shards) {
        candidates = {std::string(single_name)};
      } else if (!candidates.empty()) {
        detail::raise<FormatError>(
            "{} has no {} to say which of these files hold the model (incomplete download, or ask for the index to be "
            "ignored): {}",
            printable(directory_), index_name, list(candidates, candidates.size()));
      }
    }
    if (candidates.empty()) {
      detail::raise<FormatError>("{} has no weights: neither {} nor {}", printable(directory_), single_name,
                                 index_name);
    }
    for (const std::string& name : candidates) open_shard(name);
    for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
      for (const TensorInfo& tensor : shards_[shard].file.tensors()) add_place(shard, tensor);
    }
  }

  void sort_other_files() {
    for (const auto& [name, type] : entries_) {
      const bool is_open = std::any_of(shards_.begin(), shards_.end(),
                                       [&, &file = name](const Shard& shard) { return shard.name == file; });
      if (is_open || name == config_name || name == index_name || name == manifest_name) continue;
      if (type == std::filesystem::file_type::directory) {
        left_behind_.push_back(name + "/");
      } else if (type == std::filesystem::file_type::regular && !is_weights(name)) {
        other_files_.push_back(name);
      } else {
        left_behind_.push_back(name);
      }
    }
  }

  /// Whether a file of that name holds weights, or is the index of some.
  [[nodiscard]] static bool is_weights(std::string name) {
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (name.starts_with("consolidated")) return true;
    for (const std::string_view ending :
         {".safetensors", ".bin", ".pth", ".pt", ".ckpt", ".pkl", ".gguf", ".ggml", ".onnx", ".onnx_data", ".h5",
          ".msgpack", ".npz", ".ot", ".tflite", ".index.json"}) {
      if (name.ends_with(ending)) return true;
    }
    return false;
  }

  [[nodiscard]] static std::string count(const std::vector<std::string>& tensors) {
    return fmt::format("{} tensor{}", tensors.size(), tensors.size() == 1 ? "" : "s");
  }

  [[nodiscard]] const TensorPlace& require(std::string_view name) const {
    const TensorPlace* place = find(name);
    if (place == nullptr) {
      detail::raise<FormatError>("{}: no tensor '{}' in this checkpoint", printable(directory_), printable(name));
    }
    return *place;
  }

  std::filesystem::path directory_;
  std::map<std::string, std::filesystem::file_type, std::less<>> entries_;
  Json config_;
  Json index_;
  std::vector<Shard> shards_;
  std::map<std::string, TensorPlace, std::less<>> places_;
  std::vector<std::string> other_files_;
  std::vector<std::string> left_behind_;
  std::vector<std::string> notes_;
};

}  // namespace rmsfold::io
