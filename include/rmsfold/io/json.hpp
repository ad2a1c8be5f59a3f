// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Strict reading of JSON that others wrote: no duplicate keys, no deep nesting, no bytes that are not text, no rounded
/// integers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <rmsfold/core/error.hpp>
#include <rmsfold/io/file.hpp>

namespace rmsfold::io {

/// JSON whose objects keep the order of the file. Looking up a key is linear: iterate over large objects.
using Json = nlohmann::ordered_json;

namespace detail {

/// Walks over text and lets a handler know how far the parser has come, which the parser itself tells only about its
/// own errors.
class JsonCursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  JsonCursor(const char* at, std::uint64_t* consumed) noexcept : at_(at), consumed_(consumed) {}
  reference operator*() const noexcept { return *at_; }
  JsonCursor& operator++() noexcept {
    ++at_;
    ++*consumed_;
    return *this;
  }
  bool operator==(const JsonCursor& other) const noexcept { return at_ == other.at_; }

 private:
  const char* at_;
  std::uint64_t* consumed_;
};

/// What every handler shares: where the text came from, and how to complain about it.
class JsonHandler {
 public:
  /// @param what   the file, for messages
  /// @param origin position of the text in that file
  JsonHandler(std::string_view what, std::uint64_t origin) : what_(what), origin_(origin) {}

  /// Counted up by the cursor.
  [[nodiscard]] std::uint64_t* consumed() noexcept { return &consumed_; }

  /// The parser's own complaints, without the bytes it quotes: those are somebody else's, and may be many.
  template <class Exception>
  bool parse_error(std::size_t, const std::string&, const Exception& error) {
    std::string_view text = error.what();
    if (const std::size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
    text = text.substr(0, text.find("; last read"));
    complain(text);
  }

  /// Binary values do not occur in text.
  bool binary(Json::binary_t&) { complain("binary value"); }

  /// @throws FormatError with the file, the position and `problem`.
  [[noreturn]] void complain(std::string_view problem) const {
    raise<FormatError>("{}: bad JSON before byte {}: {}", printable(what_, 4096), origin_ + consumed_,
                       printable(problem, 1000));
  }

 private:
  std::string_view what_;
  std::uint64_t origin_;
  std::uint64_t consumed_ = 0;
};

/// Feeds `text` to a handler.
template <class Handler>
void walk_json(std::string_view text, Handler& handler) {
  // The parser takes a NUL for the end of the text and would not look behind it.
  if (text.find('\0') != text.npos) handler.complain("the text contains a NUL byte");
  std::uint64_t ignored = 0;
  Json::sax_parse(JsonCursor(text.data(), handler.consumed()), JsonCursor(text.data() + text.size(), &ignored),
                  &handler);
}

/// Two equal strings in a list, or nullptr. @par Cost `O(n log n)` whatever the strings are: no hash to be flooded.
[[nodiscard]] inline const std::string* find_duplicate(std::vector<const std::string*> strings) {
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::sort(strings.begin(), strings.end(), less);
  const auto twice = std::adjacent_find(strings.begin(), strings.end(),
                                        [](const std::string* a, const std::string* b) { return *a == *b; });
  return twice == strings.end() ? nullptr : *twice;
}

/// Builds a Json value, under the rules of parse_json.
class JsonBuilder : public JsonHandler {
 public:
  using JsonHandler::JsonHandler;

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(std::int64_t value) { return add(value); }
  bool number_unsigned(std::uint64_t value) { return add(value); }
  bool number_float(double value, const std::string& text) {
    const bool is_integer = text.find_first_of(".eE") == text.npos;
    if (is_integer && fmt::format("{:.0f}", value) != text) {
      complain(fmt::format("the integer {} fits neither 64 bits nor a double", printable(text)));
    }
    return add(value);
  }
  bool string(std::string& value) { return add(std::move(value)); }
  bool key(std::string& name) {
    open_.back().name = std::move(name);
    return true;
  }
  bool start_object(std::size_t) { return start(true); }
  bool start_array(std::size_t) { return start(false); }
  bool end_object() {
    Frame closed = std::move(open_.back());
    open_.pop_back();
    std::vector<const std::string*> names;
    names.reserve(closed.members.size());
    for (const auto& [name, value] : closed.members) names.push_back(&name);
    if (const std::string* twice = find_duplicate(std::move(names))) {
      complain(fmt::format("duplicate key '{}'", printable(*twice)));
    }
    return add(std::move(closed.members));
  }
  bool end_array() {
    Frame closed = std::move(open_.back());
    open_.pop_back();
    return add(std::move(closed.elements));
  }

  [[nodiscard]] Json take() { return std::move(result_); }

 private:
  struct Frame {
    bool is_object;
    std::string name;
    Json::object_t members;
    Json::array_t elements;
  };

  bool start(bool is_object) {
    constexpr std::size_t deepest = 64;
    if (open_.size() == deepest) complain("nested too deeply");
    open_.push_back(Frame{is_object, {}, {}, {}});
    return true;
  }

  template <class Value>
  bool add(Value&& value) {
    if (open_.empty()) {
      result_ = Json(std::forward<Value>(value));
    } else if (open_.back().is_object) {
      // Through the vector underneath: the map's own insertion searches all members each time.
      open_.back().members.emplace_back(std::move(open_.back().name), Json(std::forward<Value>(value)));
    } else {
      open_.back().elements.emplace_back(std::forward<Value>(value));
    }
    return true;
  }

  std::vector<Frame> open_;
  Json result_;
};

}  // namespace detail

/// Reads one JSON value.
///
/// @param what  where the text came from, for messages
/// @throws FormatError, naming `what` and the position, when the text is not UTF-8 or not JSON, when something follows
/// the value, when an object has a
///   key twice, when nesting exceeds 64, or when an integer is neither exact in 64 bits nor in a double.
[[nodiscard]] inline Json parse_json(std::string_view text, std::string_view what) {
  detail::JsonBuilder builder(what, 0);
  detail::walk_json(text, builder);
  return builder.take();
}

/// Reads a JSON file of at most `limit` bytes. @throws IoError; FormatError as parse_json.
[[nodiscard]] inline Json read_json_file(const std::filesystem::path& path,
                                         std::uint64_t limit = std::uint64_t{256} << 20) {
  return parse_json(read_text_file(path, limit), path.native());
}

/// What stands before the numbers that Python writes as no JSON, once they are strings.
inline constexpr std::string_view python_literal = "literal of Python: ";

/// JSON as Python writes it, with its numbers NaN, Infinity and -Infinity made strings that `parse_json` reads.
[[nodiscard]] inline std::string quote_python_literals(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (in_string && text[at] == '\\' && at + 1 < text.size()) {
      result += text[at++];
    } else if (text[at] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      std::string_view found;
      for (const std::string_view literal : {"NaN", "Infinity", "-Infinity"}) {
        if (text.substr(at, literal.size()) == literal) found = literal;
      }
      if (!found.empty()) {
        result += fmt::format("\"{}{}\"", python_literal, found);
        at += found.size() - 1;
        continue;
      }
    }
    result += text[at];
  }
  return result;
}

/// The opposite, for text that is written.
[[nodiscard]] inline std::string unquote_python_literals(std::string text) {
  for (const std::string_view literal : {"NaN", "Infinity", "-Infinity"}) {
    const std::string quoted = fmt::format("\"{}{}\"", python_literal, literal);
    for (std::size_t at = text.find(quoted); at != std::string::npos; at = text.find(quoted, at)) text.replace(at, quoted.size(), literal);
  }
  return text;
}

}  // namespace rmsfold::io
