// SPDX-License-Identifier: MIT
#include "support/family_fixture.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <rmsfold/core/random.hpp>
#include <rmsfold/io/safetensors.hpp>
#include <rmsfold/tensor/convert.hpp>

#include "support/bytes.hpp"
#include "support/random_layer.hpp"

namespace rmsfold::test {

namespace fs = std::filesystem;

const std::vector<FamilyFixture>& family_fixtures() {
  static const std::vector<FamilyFixture> all = [] {
    std::vector<FamilyFixture> list;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(RMSFOLD_SOURCE_DIR) / "tests/data/families")) {
      if (entry.path().filename() == "oracle.json") continue;
      const io::Json json = io::read_json_file(entry.path());
      list.push_back({entry.path().stem().string(), json.at("config"), json.at("tensors"), json.at("dense").get<bool>(),
                      json.at("signs").get<bool>(), json.at("heads").get<bool>(), json.at("moves").get<bool>()});
    }
    std::sort(list.begin(), list.end(), [](const FamilyFixture& a, const FamilyFixture& b) { return a.name < b.name; });
    return list;
  }();
  return all;
}

const FamilyFixture& family_fixture(const std::string& name) {
  for (const FamilyFixture& fixture : family_fixtures()) {
    if (fixture.name == name) return fixture;
  }
  throw std::logic_error("no such family: " + name);
}

fs::path write_family(const fs::path& directory, const FamilyFixture& fixture, const std::string& dtype,
                      std::uint64_t seed) {
  if (!fs::create_directory(directory)) throw std::runtime_error("exists: " + directory.string());
  write_bytes(directory / "config.json", fixture.config.dump(2) + "\n");
  std::vector<io::TensorInfo> infos;
  for (const auto& [name, shape] : fixture.tensors.items()) {
    infos.push_back(io::make_tensor(name, dtype, shape.get<Shape>()));
  }
  io::SafetensorsWriter file(directory / "model.safetensors", infos, io::Metadata{{"format", "pt"}});
  Random random(seed);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const io::TensorInfo& info = infos[i];
    const std::size_t count = static_cast<std::size_t>(element_count(info.shape));
    std::vector<double> values;
    const bool is_gain = info.shape.size() == 1 && info.name.ends_with("weight");
    if (is_gain) {
      const RowVector<double> gain = random_gain(static_cast<Index>(count), random);
      values.assign(gain.data(), gain.data() + count);
    } else {
      const double scale = info.shape.size() < 2 ? 0.5 : 1 / std::sqrt(static_cast<double>(info.shape.back()));
      for (std::size_t k = 0; k < count; ++k) values.push_back(scale * random.normal());
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes()));
    static_cast<void>(store_rounded(dtype_from_name(dtype).value(), values, bytes));
    file.write(i, 0, bytes);
  }
  file.finish(false);
  return directory;
}

}  // namespace rmsfold::test
