// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Which model a manifest's last step started from.

#include <algorithm>
#include <string>
#include <vector>

#include <rmsfold/io/hash.hpp>
#include <rmsfold/model/manifest.hpp>

namespace rmsfold::model {

namespace detail {

[[nodiscard]] inline std::string hash_of(const Model& model, const std::string& tensor) {
  constexpr std::uint64_t piece = 1 << 20;
  io::Xxh3 hash;
  const std::uint64_t bytes = model.info(tensor).bytes();
  std::vector<std::byte> buffer;
  for (std::uint64_t at = 0; at < bytes; at += buffer.size()) {
    buffer.resize(static_cast<std::size_t>((std::min)(piece, bytes - at)));
    model.checkpoint().read(model.source_of(tensor), at, buffer);
    hash.update(buffer);
  }
  return hash.hex();
}

}  // namespace detail

/// Whether a manifest's last step started from a model: by the hashes of the embedding and of all vectors, among them the gains. @throws IoError.
[[nodiscard]] inline bool is_made_from(const Manifest& manifest, const Model& model) {
  const auto started_from = [&](const std::string& name) {
    const auto hashes = manifest.hashes.find(name);
    return hashes != manifest.hashes.end() && hashes->second.before == detail::hash_of(model, name);
  };
  const std::vector<Param>& params = model.graph().params;
  return started_from(model.embedding_tensor()) &&
         std::all_of(params.begin(), params.end(), [&](const Param& param) { return param.shape.size() != 1 || started_from(param.name); });
}

}  // namespace rmsfold::model
