// SPDX-License-Identifier: MIT
#include "support/bytes.hpp"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace rmsfold::test {

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

std::string pattern(std::size_t count, unsigned first) {
  std::string bytes(count, '\0');
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>((first + i) % 251);
  return bytes;
}

std::string entry(std::string_view name, std::string_view dtype, const std::vector<std::uint64_t>& shape,
                  std::uint64_t begin, std::uint64_t end) {
  std::string text = "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis == 0 ? "" : ",") + std::to_string(shape[axis]);
  return text + "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string object(const std::vector<std::string>& members) {
  std::string text = "{";
  for (const std::string& member : members) text += (text.size() == 1 ? "" : ",") + member;
  return text + "}";
}

std::string safetensors(std::string_view header, std::string_view data) {
  return little_endian(header.size()) + std::string(header) + std::string(data);
}

std::string good_safetensors(const std::vector<std::pair<std::string, std::uint64_t>>& tensors) {
  std::vector<std::string> members;
  std::uint64_t end = 0;
  for (const auto& [name, count] : tensors) {
    members.push_back(entry(name, "F32", {count}, end, end + 4 * count));
    end += 4 * count;
  }
  const std::string header = object(members);
  return safetensors(padded(header, (header.size() + 7) / 8 * 8), pattern(end));
}

std::string padded(std::string text, std::size_t length) {
  if (text.size() > length) throw std::logic_error("longer than " + std::to_string(length) + ": " + text);
  text.resize(length, ' ');
  return text;
}

void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace rmsfold::test
