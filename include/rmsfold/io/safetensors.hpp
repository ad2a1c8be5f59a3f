// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The safetensors format: a header that is believed only after every number in it was checked, then plain bytes.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/core/checked.hpp>
#include <rmsfold/core/error.hpp>
#include <rmsfold/io/file.hpp>
#include <rmsfold/io/json.hpp>
#include <rmsfold/tensor/dtype.hpp>
#include <rmsfold/tensor/shape.hpp>

namespace rmsfold::io {

/// One tensor of a file, as the header describes it.
struct TensorInfo {
  std::string name;         ///< Any UTF-8 text that is not empty.
  std::string dtype;        ///< Element type by its name in the header, known to this library or not.
  Shape shape;              ///< Extents, slowest axis first.
  std::uint64_t begin = 0;  ///< First byte, counted from the start of the data.
  std::uint64_t end = 0;    ///< One behind the last byte.

  /// Size of the data in bytes.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }

  /// Same name, type, shape and place.
  bool operator==(const TensorInfo&) const = default;
};

/// Free text of a file, in its order.
using Metadata = std::vector<std::pair<std::string, std::string>>;

/// All that the header of a file says.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;   ///< In the order of the header, which need not be the order of the data.
  std::optional<Metadata> metadata;  ///< Nothing when the header has no `__metadata__`.
};

/// The largest header that is read or written, in bytes: the limit of the reference implementation.
inline constexpr std::uint64_t largest_safetensors_header = 100'000'000;

/// Bytes of a tensor; nothing when the type is not known.
/// @throws FormatError, naming the tensor, when the size does not fit 64 bits or is not a whole number of bytes.
[[nodiscard]] inline std::optional<std::uint64_t> tensor_bytes(std::string_view name, std::string_view dtype,
                                                               const Shape& shape) {
  const std::optional<unsigned> bits_each = bits_of_element(dtype);
  if (!bits_each) return std::nullopt;
  std::uint64_t bits = 0;
  try {
    bits = checked_mul(element_count(shape), *bits_each);
  } catch (const RangeError&) {
    detail::raise<FormatError>("tensor '{}': the size of {} {} does not fit 64 bits", printable(name), dtype,
                               printable(to_string(shape)));
  }
  if (bits % 8 != 0) {
    detail::raise<FormatError>("tensor '{}': {} {} is not a whole number of bytes", printable(name), dtype,
                               printable(to_string(shape)));
  }
  return bits / 8;
}

/// A tensor for a new file, its data still without a place. @throws FormatError as tensor_bytes, and when the type is
/// not known.
[[nodiscard]] inline TensorInfo make_tensor(std::string name, std::string dtype, Shape shape) {
  const std::optional<std::uint64_t> bytes = tensor_bytes(name, dtype, shape);
  if (!bytes) detail::raise<FormatError>("tensor '{}': unknown type '{}'", printable(name), printable(dtype));
  return TensorInfo{std::move(name), std::move(dtype), std::move(shape), 0, *bytes};
}

/// Positions of the tensors in the order of their data.
[[nodiscard]] inline std::vector<std::size_t> data_order(const std::vector<TensorInfo>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // By the end, too: an empty tensor comes before the one that starts where it does.
  const auto place = [&](std::size_t i) { return std::tuple(tensors[i].begin, tensors[i].end, i); };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return order;
}

namespace detail {

/// Collects a header while the parser walks over it, so that a hostile one costs no more memory than an honest one of
/// its size.
class SafetensorsHandler : public JsonHandler {
 public:
  using JsonHandler::JsonHandler;

  bool null() { refuse("null"); }
  bool boolean(bool) { refuse("true or false"); }
  bool number_integer(std::int64_t value) { refuse(fmt::format("{}", value)); }
  bool number_float(double, const std::string& text) { refuse(text); }

  bool number_unsigned(std::uint64_t value) {
    switch (place_) {
      case Place::shape:
        tensor_.shape.push_back(value);
        break;
      case Place::offsets:
        if (offsets_ == 2) complain_here("data_offsets has more than two numbers");
        (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
        break;
      default:
        refuse(fmt::format("{}", value));
    }
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::metadata) {
      header_.metadata->back().second = std::move(value);
    } else if (place_ == Place::entry && field_ == Field::dtype) {
      tensor_.dtype = std::move(value);
    } else {
      refuse("a string");
    }
    return true;
  }

  bool key(std::string& name) {
    if (place_ == Place::metadata) {
      header_.metadata->emplace_back(std::move(name), std::string());
    } else if (place_ == Place::entry) {
      enter(name);
    } else if (name.empty()) {
      complain("a tensor without a name");
    } else {
      tensor_ = TensorInfo{std::move(name), {}, {}, 0, 0};
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::start) {
      place_ = Place::top;
    } else if (place_ != Place::top) {
      refuse("an object");
    } else if (tensor_.name == "__metadata__") {
      if (header_.metadata) complain("duplicate key '__metadata__'");
      header_.metadata.emplace();
      place_ = Place::metadata;
    } else {
      place_ = Place::entry;
      seen_ = {};
      offsets_ = 0;
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::entry) {
      for (std::size_t field = 0; field < seen_.size(); ++field) {
        if (!seen_[field]) complain_here(fmt::format("{} is missing", field_names[field]));
      }
      header_.tensors.push_back(std::move(tensor_));
    } else if (place_ == Place::metadata) {
      std::vector<const std::string*> keys;
      keys.reserve(header_.metadata->size());
      for (const auto& [name, text] : *header_.metadata) keys.push_back(&name);
      if (const std::string* twice = find_duplicate(std::move(keys))) {
        complain(fmt::format("duplicate key '{}' in __metadata__", printable(*twice)));
      }
    }
    place_ = place_ == Place::top ? Place::start : Place::top;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::entry || field_ == Field::dtype) refuse("an array");
    place_ = field_ == Field::shape ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() {
    if (place_ == Place::offsets && offsets_ != 2) complain_here("data_offsets has fewer than two numbers");
    place_ = Place::entry;
    return true;
  }

  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class Place { start, top, metadata, entry, shape, offsets };
  enum class Field : std::size_t { dtype, shape, offsets };
  static constexpr std::array<std::string_view, 3> field_names{"dtype", "shape", "data_offsets"};

  void enter(const std::string& name) {
    const auto found = std::find(field_names.begin(), field_names.end(), name);
    if (found == field_names.end()) complain_here(fmt::format("unknown key '{}'", printable(name)));
    const auto field = static_cast<std::size_t>(found - field_names.begin());
    if (std::exchange(seen_[field], true)) complain_here(fmt::format("duplicate key '{}'", name));
    field_ = static_cast<Field>(field);
  }

  [[noreturn]] void complain_here(std::string_view problem) const {
    complain(fmt::format("tensor '{}': {}", printable(tensor_.name), problem));
  }

  [[noreturn]] void refuse(std::string_view found) const {
    switch (place_) {
      case Place::start:
        complain(fmt::format("found {}, the header must be an object", found));
      case Place::top:
        complain_here(fmt::format("found {} in the place of its description", found));
      case Place::metadata:
        complain(fmt::format("__metadata__ may hold strings only, '{}' is {}",
                             printable(header_.metadata->back().first), found));
      default:
        complain_here(fmt::format("found {} in {}, expected {}", found, field_names[static_cast<std::size_t>(field_)],
                                  field_ == Field::dtype ? "a string" : "a list of whole numbers from 0 to 2^64 - 1"));
    }
  }

  SafetensorsHeader header_;
  TensorInfo tensor_;
  Place place_ = Place::start;
  Field field_ = Field::dtype;
  std::array<bool, 3> seen_{};
  int offsets_ = 0;
};

}  // namespace detail

/// Reads and checks a header.
///
/// @param text        the header alone, padding included
/// @param data_bytes  size of the data behind it
/// @param what        the file, for messages
/// @returns a header whose tensors have different names, are as large as type and shape say (the size of an unknown
/// type cannot be checked), and
///   together cover the data without hole or overlap.
/// @throws FormatError naming `what`, the tensor and the byte when the text is anything else.
[[nodiscard]] inline SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                                std::string_view what) {
  constexpr std::uint64_t length_field = 8;
  if (!text.starts_with('{')) {
    detail::raise<FormatError>("{}: not a safetensors file: the header does not begin with '{{'",
                               printable(what, 4096));
  }
  detail::SafetensorsHandler handler(what, length_field);
  detail::walk_json(text, handler);
  SafetensorsHeader header = handler.take();

  std::vector<const std::string*> names;
  names.reserve(header.tensors.size());
  for (const TensorInfo& tensor : header.tensors) names.push_back(&tensor.name);
  if (const std::string* twice = detail::find_duplicate(std::move(names))) {
    detail::raise<FormatError>("{}: duplicate tensor '{}'", printable(what, 4096), printable(*twice));
  }

  const std::uint64_t data_begin = length_field + text.size();
  std::uint64_t covered = 0;
  const TensorInfo* before = nullptr;
  for (const std::size_t position : data_order(header.tensors)) {
    const TensorInfo& tensor = header.tensors[position];
    std::optional<std::uint64_t> expected;
    try {
      expected = tensor_bytes(tensor.name, tensor.dtype, tensor.shape);
    } catch (const FormatError& error) {
      detail::raise<FormatError>("{}: {}", printable(what, 4096), error.what());
    }
    const auto fail = [&](std::string_view problem) {
      detail::raise<FormatError>("{}: tensor '{}': data_offsets [{}, {}] (data begin at byte {} of the file): {}",
                                 printable(what, 4096), printable(tensor.name), tensor.begin, tensor.end, data_begin,
                                 problem);
    };
    if (tensor.end < tensor.begin) fail("the end lies before the begin");
    if (tensor.end > data_bytes) fail(fmt::format("the file has only {} bytes of data", data_bytes));
    if (tensor.begin > covered) fail(fmt::format("no tensor covers the bytes from {} on", covered));
    if (tensor.begin < covered) {
      fail(fmt::format("overlap with tensor '{}' [{}, {}]", printable(before->name), before->begin, before->end));
    }
    if (expected && *expected != tensor.bytes()) {
      fail(fmt::format("{} {} takes {} bytes", tensor.dtype, printable(to_string(tensor.shape)), *expected));
    }
    covered = tensor.end;
    before = &tensor;
  }
  if (covered != data_bytes) {
    detail::raise<FormatError>("{}: no tensor covers the last {} of {} bytes of data", printable(what, 4096),
                               data_bytes - covered, data_bytes);
  }
  return header;
}

/// A header in the reference implementation's spelling, padded with spaces to a multiple of 8.
[[nodiscard]] inline std::string to_text(const SafetensorsHeader& header) {
  std::string text = "{";
  const auto add_string = [&](const std::string& value) {
    text += Json(value).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const auto separate = [&] {
    if (text.back() != '{') text += ',';
  };
  if (header.metadata) {
    text += "\"__metadata__\":{";
    for (const auto& [name, value] : *header.metadata) {
      separate();
      add_string(name);
      text += ':';
      add_string(value);
    }
    text += '}';
  }
  for (const TensorInfo& tensor : header.tensors) {
    separate();
    add_string(tensor.name);
    text += ":{\"dtype\":";
    add_string(tensor.dtype);
    text += fmt::format(",\"shape\":[{}],\"data_offsets\":[{},{}]}}", fmt::join(tensor.shape, ","), tensor.begin,
                        tensor.end);
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

/// A safetensors file open for reading. The header is checked when it opens; data are read on demand, from any thread.
class SafetensorsFile {
 public:
  /// Opens a file and checks its header.
  /// @throws IoError when the system refuses; FormatError naming file, tensor and byte when the file is malformed.
  explicit SafetensorsFile(const std::filesystem::path& path) : file_(File::open(path)) {
    const std::uint64_t size = file_.size();
    std::array<unsigned char, 8> field{};
    if (size < field.size()) {
      detail::raise<FormatError>("{}: not a safetensors file: it has {} bytes, at least 10 are needed", printable(path),
                                 size);
    }
    file_.read_exact(0, std::as_writable_bytes(std::span(field)));
    std::uint64_t length = 0;
    for (std::size_t i = field.size(); i-- > 0;) length = length << 8 | field[i];
    const std::uint64_t rest = size - field.size();
    if (length > rest || length > largest_safetensors_header) {
      if (std::memcmp(field.data(), "version ", field.size()) == 0) {
        detail::raise<FormatError>(
            "{}: this is a Git LFS pointer, not the file it stands for: fetch it with 'git lfs pull'", printable(path));
      }
      detail::raise<FormatError>(
          "{}: not a safetensors file, or cut short: byte 0 announces a header of {} bytes, {} follow and {} are "
          "allowed",
          printable(path), length, rest, largest_safetensors_header);
    }
    std::string text(static_cast<std::size_t>(length), '\0');
    file_.read_exact(field.size(), std::as_writable_bytes(std::span<char>(text)));
    header_ = parse_safetensors_header(text, rest - length, path.native());
    data_begin_ = field.size() + length;
    data_bytes_ = rest - length;
    by_name_.resize(header_.tensors.size());
    std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
    std::sort(by_name_.begin(), by_name_.end(),
              [&](std::size_t a, std::size_t b) { return header_.tensors[a].name < header_.tensors[b].name; });
  }

  /// The path it was opened by.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  /// All tensors, in the order of the header.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return header_.tensors; }
  /// Whether the header has `__metadata__`, be it empty.
  [[nodiscard]] bool has_metadata() const noexcept { return header_.metadata.has_value(); }
  /// Contents of `__metadata__` in their order; empty when there is none.
  [[nodiscard]] const Metadata& metadata() const noexcept {
    static const Metadata none;
    return header_.metadata ? *header_.metadata : none;
  }
  /// The header as a whole.
  [[nodiscard]] const SafetensorsHeader& header() const noexcept { return header_; }

  /// The tensor of that name, or nullptr. Valid as long as this object, moved or not.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const noexcept {
    const auto found = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [&](std::size_t position, std::string_view wanted) { return header_.tensors[position].name < wanted; });
    return found != by_name_.end() && header_.tensors[*found].name == name ? &header_.tensors[*found] : nullptr;
  }

  /// Where the data begin in the file.
  [[nodiscard]] std::uint64_t data_begin() const noexcept { return data_begin_; }

  /// Fills `out` with bytes of a tensor of this file, from byte `offset` of the tensor on.
  /// @throws ShapeError when the tensor ends before `out` is full; IoError when reading fails; FormatError when the file
  /// has been truncated since.
  void read(const TensorInfo& tensor, std::span<std::byte> out, std::uint64_t offset = 0) const {
    const bool is_inside = tensor.begin <= tensor.end && tensor.end <= data_bytes_;
    if (!is_inside || offset > tensor.bytes() || out.size() > tensor.bytes() - offset) {
      detail::raise<ShapeError>("{}: tensor '{}' has {} bytes, {} from byte {} on were asked for", printable(path()),
                                printable(tensor.name), tensor.bytes(), out.size(), offset);
    }
    file_.read_exact(data_begin_ + tensor.begin + offset, out);
  }

  /// All bytes of a tensor of this file.
  [[nodiscard]] std::vector<std::byte> read(const TensorInfo& tensor) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
    read(tensor, bytes);
    return bytes;
  }

 private:
  File file_;
  SafetensorsHeader header_;
  std::vector<std::size_t> by_name_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_bytes_ = 0;
};

/// Writes a safetensors file: the header at once, the data in any order and in pieces, from any thread.
class SafetensorsWriter {
 public:
  /// Creates the file and writes its header.
  ///
  /// @param tensors   in the order of the header. Known types are as large as their shape says, others keep their
  /// `bytes()`; `begin` and `end` are
  ///   assigned anew.
  /// @param metadata  nothing: no `__metadata__` in the header
  /// @param order     positions of the tensors in the order of their data, as from data_order; empty: as in the header
  /// @param like      where data begin in a file whose bytes will be copied from: the header is padded, so that they begin
  /// at the same place in a cache line here, since the system copies between such places several times as fast
  /// @throws FormatError when a reader would refuse this header; InvariantError when `order` is not a permutation;
  /// IoError when the file exists or
  ///   the system refuses.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                    std::optional<Metadata> metadata = std::nullopt, std::vector<std::size_t> order = {},
                    std::optional<std::uint64_t> like = std::nullopt)
      : header_{std::move(tensors), std::move(metadata)},
        written_(header_.tensors.size(), 0),
        file_(place_and_create(path, std::move(order), like)) {}

  /// The path it was created by.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return file_.path(); }
  /// All tensors, in the order of the header, with their places.
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const noexcept { return header_.tensors; }

  /// Writes `bytes` from byte `offset` of a tensor on. Every byte is to be written once.
  /// @param index  position in tensors()
  /// @throws ShapeError when they do not fit the tensor; InvariantError when the tensor gets more bytes than it has;
  /// IoError
  void write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) {
    if (index >= header_.tensors.size()) detail::raise<ShapeError>("{}: no tensor number {}", printable(path()), index);
    const TensorInfo& tensor = header_.tensors[index];
    if (offset > tensor.bytes() || bytes.size() > tensor.bytes() - offset) {
      detail::raise<ShapeError>("{}: tensor '{}' has {} bytes, {} from byte {} on were to be written",
                                printable(path()), printable(tensor.name), tensor.bytes(), bytes.size(), offset);
    }
    if (std::atomic_ref(written_[index]).fetch_add(bytes.size()) + bytes.size() > tensor.bytes()) {
      detail::raise<InvariantError>("{}: tensor '{}' was written twice", printable(path()), printable(tensor.name));
    }
    file_.write_exact(data_begin_ + tensor.begin + offset, bytes);
  }

  /// The same, by name. @throws ShapeError when there is no such tensor; as above. @par Cost linear in the number of tensors.
  void write(std::string_view name, std::uint64_t offset, std::span<const std::byte> bytes) {
    const auto found = std::find_if(header_.tensors.begin(), header_.tensors.end(),
                                    [&](const TensorInfo& tensor) { return tensor.name == name; });
    if (found == header_.tensors.end()) {
      detail::raise<ShapeError>("{}: no tensor '{}'", printable(path()), printable(name));
    }
    write(static_cast<std::size_t>(found - header_.tensors.begin()), offset, bytes);
  }

  /// Where a tensor's data begin in the file.
  [[nodiscard]] std::uint64_t place_of(std::size_t index) const { return data_begin_ + header_.tensors.at(index).begin; }

  /// Asks the system to begin putting bytes of a tensor on the disk, so that finish() has less to wait for.
  void start_writeback(std::size_t index, std::uint64_t offset, std::uint64_t count) const noexcept {
    file_.start_writeback(data_begin_ + header_.tensors[index].begin + offset, count);
  }

  /// Checks that every byte was written and closes the file.
  /// @param fsync  whether to wait until the disk has it
  /// @throws InvariantError naming the tensor that is incomplete; IoError
  void finish(bool fsync) {
    for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
      if (written_[i] != header_.tensors[i].bytes()) {
        detail::raise<InvariantError>("{}: tensor '{}' is incomplete: {} of {} bytes written", printable(path()),
                                      printable(header_.tensors[i].name), written_[i], header_.tensors[i].bytes());
      }
    }
    if (fsync) file_.sync();
    file_.close();
  }

 private:
  File place_and_create(const std::filesystem::path& path, std::vector<std::size_t> order,
                        std::optional<std::uint64_t> like) {
    std::vector<TensorInfo>& tensors = header_.tensors;
    if (order.empty()) {
      order.resize(tensors.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
    }
    std::vector<bool> placed(tensors.size(), false);
    if (order.size() != tensors.size()) {
      detail::raise<InvariantError>("{}: an order of {} for {} tensors", printable(path), order.size(), tensors.size());
    }
    std::uint64_t end = 0;
    for (const std::size_t position : order) {
      if (position >= placed.size() || placed[position]) {
        detail::raise<InvariantError>("{}: the order of the data is not a permutation: {}", printable(path), position);
      }
      placed[position] = true;
      TensorInfo& tensor = tensors[position];
      const std::uint64_t bytes = tensor_bytes(tensor.name, tensor.dtype, tensor.shape).value_or(tensor.bytes());
      tensor.begin = end;
      tensor.end = end = checked_add(end, bytes);
    }
    std::string text = to_text(header_);
    std::array<std::byte, 8> field{};
    if (like && *like % 8 == 0) {
      while ((field.size() + text.size()) % 64 != *like % 64) text += ' ';
    }
    if (text.size() > largest_safetensors_header) {
      detail::raise<FormatError>("{}: the header would have {} bytes, {} are allowed", printable(path), text.size(),
                                 largest_safetensors_header);
    }
    // What is written can be read: this refuses names that are empty, doubled or not UTF-8 before there is a file.
    const SafetensorsHeader again = parse_safetensors_header(text, end, path.native());
    if (again.tensors != tensors || again.metadata != header_.metadata) {
      detail::raise<FormatError>("{}: a name or a metadata entry is not valid UTF-8", printable(path));
    }
    for (std::size_t i = 0; i < field.size(); ++i) field[i] = static_cast<std::byte>(text.size() >> (8 * i) & 0xFF);
    data_begin_ = field.size() + text.size();
    File file = File::create(path);
    file.write_exact(0, field);
    file.write_exact(field.size(), bytes_of(text));
    return file;
  }

  SafetensorsHeader header_;
  std::vector<std::uint64_t> written_;
  std::uint64_t data_begin_ = 0;
  File file_;
};

}  // namespace rmsfold::io
