// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Typed access to a model's `config.json`.

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/finite.hpp>
#include <rmsfold/io/json.hpp>

namespace rmsfold::model {

/// A JSON object read by keys; every error names the file and the key. A key that holds `null` counts as absent, as it does in transformers.
class Config {
 public:
  /// @param file  name for messages.
  Config(io::Json object, std::string file) : object_(std::move(object)), file_(std::move(file)) {}

  /// The whole object.
  [[nodiscard]] const io::Json& json() const noexcept { return object_; }
  /// The file it came from.
  [[nodiscard]] const std::string& file() const noexcept { return file_; }

  /// Whether the key is there and not null.
  [[nodiscard]] bool has(const std::string& key) const {
    const auto found = object_.find(key);
    return found != object_.end() && !found->is_null();
  }

  /// A positive integer below 2^40. @throws FormatError when it is absent or something else.
  [[nodiscard]] Index positive(const std::string& key) const {
    const io::Json& value = require(key);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 || value.get<std::int64_t>() >= (std::int64_t{1} << 40)) {
      complain(key, "a positive integer", value);
    }
    return static_cast<Index>(value.get<std::int64_t>());
  }
  /// The same, with a value for an absent key.
  [[nodiscard]] Index positive_or(const std::string& key, Index otherwise) const { return has(key) ? positive(key) : otherwise; }

  /// A finite number. @throws FormatError when it is absent or something else.
  [[nodiscard]] double number(const std::string& key) const {
    const io::Json& value = require(key);
    if (!value.is_number() || !is_finite(value.get<double>())) complain(key, "a finite number", value);
    return value.get<double>();
  }
  /// The same, with a value for an absent key.
  [[nodiscard]] double number_or(const std::string& key, double otherwise) const { return has(key) ? number(key) : otherwise; }

  /// A boolean, with a value for an absent key. @throws FormatError when it is something else.
  [[nodiscard]] bool flag_or(const std::string& key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const io::Json& value = require(key);
    if (!value.is_boolean()) complain(key, "true or false", value);
    return value.get<bool>();
  }

  /// A string, with a value for an absent key. @throws FormatError when it is something else.
  [[nodiscard]] std::string text_or(const std::string& key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    const io::Json& value = require(key);
    if (!value.is_string()) complain(key, "a string", value);
    return value.get<std::string>();
  }

  /// A nested object, or nothing. @throws FormatError when it is something else.
  [[nodiscard]] std::optional<Config> section(const std::string& key) const {
    if (!has(key)) return std::nullopt;
    const io::Json& value = require(key);
    if (!value.is_object()) complain(key, "an object", value);
    return Config(value, file_ + ": " + key);
  }

 private:
  [[nodiscard]] const io::Json& require(const std::string& key) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) {
      rmsfold::detail::raise<FormatError>("{}: key \"{}\" is missing", file_, key);
    }
    return *found;
  }

  [[noreturn]] void complain(const std::string& key, const char* expected, const io::Json& value) const {
    rmsfold::detail::raise<FormatError>("{}: \"{}\" must be {}, not {}", file_, key, expected, value.dump());
  }

  io::Json object_;
  std::string file_;
};

}  // namespace rmsfold::model
