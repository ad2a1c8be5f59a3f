// SPDX-License-Identifier: MIT
// Weights that are stored as codes with block scales (E7): refused, or converted exactly and rounded once.
#include <cmath>
#include <cstring>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/family_fixture.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void write_tensors(const fs::path& directory, const std::vector<io::TensorInfo>& infos, const std::vector<std::vector<std::byte>>& data) {
  io::SafetensorsWriter file(directory / "model.safetensors", infos, io::Metadata{{"format", "pt"}});
  for (std::size_t i = 0; i < infos.size(); ++i) file.write(i, 0, data[i]);
  file.finish(false);
}

bool is_projection(const std::string& name) { return name.find("_proj.weight") != std::string::npos; }

/// A llama of width 160, so that blocks of 128 do not divide it, with codes and scales for every projection. The codes
/// are bytes, so the tensors are written by hand.
struct Fp8Model {
  std::map<std::string, std::vector<std::uint8_t>> codes;
  std::map<std::string, std::vector<float>> scales;
  std::map<std::string, Shape> shapes;
  fs::path path;
};

Fp8Model write_fp8(const fs::path& directory, const std::function<void(io::Json&)>& edit = {}) {
  TinyModel spec = tiny("llama");
  spec.hidden = 160;
  spec.intermediate = 136;
  spec.dtype = "BF16";
  spec.attention_bias = spec.mlp_bias = false;
  const fs::path plain = write_model(fs::path(directory.string() + ".plain"), spec);
  io::Json config = io::read_json_file(plain / "config.json");
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  if (edit) edit(config);
  fs::create_directory(directory);
  write_bytes(directory / "config.json", config.dump(2));
  Fp8Model made;
  made.path = directory;
  Random random(5);
  const io::Checkpoint from(plain);
  std::vector<io::TensorInfo> infos;
  std::vector<std::vector<std::byte>> data;
  for (const std::string& name : from.tensor_names()) {
    const Shape shape = from.find(name)->info->shape;
    if (!is_projection(name)) {
      infos.push_back(io::make_tensor(name, "BF16", shape));
      data.push_back(from.read(name));
      continue;
    }
    made.shapes[name] = shape;
    std::vector<std::uint8_t>& codes = made.codes[name];
    for (std::uint64_t i = 0; i < element_count(shape); ++i) {
      std::uint8_t code = 0;
      do {
        code = static_cast<std::uint8_t>(random.below(256));
      } while ((code & 0x7f) == 0x7f);  // NaN
      codes.push_back(code);
    }
    const Shape blocks{(shape[0] + 127) / 128, (shape[1] + 127) / 128};
    std::vector<float>& scales = made.scales[name];
    for (std::uint64_t i = 0; i < element_count(blocks); ++i) scales.push_back(static_cast<float>(1e-3 * (0.5 + random.uniform())));
    infos.push_back(io::make_tensor(name, "F8_E4M3", shape));
    data.push_back(bytes_of(codes));
    infos.push_back(io::make_tensor(name + "_scale_inv", "F32", blocks));
    data.push_back(bytes_of(scales));
  }
  write_tensors(directory, infos, data);
  return made;
}

/// The exact weight, by the definition of the format and not by the code under test.
Matrix<double> exact(const Fp8Model& model, const std::string& name) {
  const Shape& shape = model.shapes.at(name);
  const std::uint64_t blocks = (shape[1] + 127) / 128;
  Matrix<double> w(static_cast<Index>(shape[0]), static_cast<Index>(shape[1]));
  for (std::uint64_t i = 0; i < shape[0]; ++i) {
    for (std::uint64_t j = 0; j < shape[1]; ++j) {
      const unsigned code = model.codes.at(name)[i * shape[1] + j];
      const int exponent = static_cast<int>(code / 8 % 16);
      const double mantissa = static_cast<double>(code % 8) / 8 + (exponent > 0 ? 1 : 0);
      const double value = (code >= 128 ? -1 : 1) * mantissa * std::pow(2.0, (exponent > 0 ? exponent : 1) - 7);
      w(static_cast<Index>(i), static_cast<Index>(j)) = value * static_cast<double>(model.scales.at(name)[i / 128 * blocks + j / 128]);
    }
  }
  return w;
}

/// A tiny gpt-oss with its experts as they are published: transposed, two codes in a byte, a shared exponent for each 32.
struct Mxfp4Model {
  std::map<std::string, std::vector<std::uint8_t>> codes;   // of NAME, unpacked
  std::map<std::string, std::vector<std::uint8_t>> scales;  // of NAME
  std::map<std::string, Shape> shapes;                      // of the numbers, [experts, in, out]
  fs::path path;
};

/// @param edit  called with every tensor before it is written; an empty name leaves it out
Mxfp4Model write_mxfp4(const fs::path& directory, const std::function<void(io::TensorInfo&, std::vector<std::byte>&)>& edit = {}) {
  FamilyFixture fixture = family_fixture("gpt_oss");
  const std::map<std::uint64_t, std::uint64_t> sizes{{48, 64}, {40, 96}, {80, 192}};  // whole blocks; no two axes alike
  fixture.config["hidden_size"] = 64;
  fixture.config["intermediate_size"] = 96;
  for (auto& [name, shape] : fixture.tensors.items()) {
    for (io::Json& extent : shape) {
      const auto larger = sizes.find(extent.get<std::uint64_t>());
      if (larger != sizes.end()) extent = larger->second;
    }
  }
  const fs::path plain = write_family(fs::path(directory.string() + ".plain"), fixture, "BF16");
  io::Json config = io::read_json_file(plain / "config.json");
  config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.layers.*.self_attn", "lm_head"}}};
  fs::create_directory(directory);
  write_bytes(directory / "config.json", config.dump(2));
  Mxfp4Model made;
  made.path = directory;
  Random random(7);
  const io::Checkpoint from(plain);
  std::vector<io::TensorInfo> infos;
  std::vector<std::vector<std::byte>> data;
  const auto add = [&](io::TensorInfo info, std::vector<std::byte> bytes) {
    if (edit) edit(info, bytes);
    if (info.name.empty()) return;
    infos.push_back(io::make_tensor(info.name, info.dtype, info.shape));
    data.push_back(std::move(bytes));
  };
  for (const std::string& name : from.tensor_names()) {
    const Shape shape = from.find(name)->info->shape;
    if (shape.size() != 3) {
      add(io::make_tensor(name, "BF16", shape), from.read(name));
      continue;
    }
    made.shapes[name] = shape;
    std::vector<std::uint8_t>& codes = made.codes[name];
    std::vector<std::uint8_t> packed;
    for (std::uint64_t i = 0; i < element_count(shape); ++i) codes.push_back(static_cast<std::uint8_t>(random.below(16)));
    for (std::size_t i = 0; i < codes.size(); i += 2) packed.push_back(static_cast<std::uint8_t>(codes[i] | codes[i + 1] << 4));
    std::vector<std::uint8_t>& scales = made.scales[name];
    for (std::size_t i = 0; i < codes.size() / 32; ++i) scales.push_back(static_cast<std::uint8_t>(118 + random.below(8)));
    add(io::make_tensor(name + "_blocks", "U8", {shape[0], shape[2], shape[1] / 32, 16}), bytes_of(packed));
    add(io::make_tensor(name + "_scales", "U8", {shape[0], shape[2], shape[1] / 32}), bytes_of(scales));
  }
  write_tensors(directory, infos, data);
  return made;
}

/// The exact numbers in the order `[experts, in, out]`, by the definition of the format and not by the code under test.
std::vector<double> exact(const Mxfp4Model& model, const std::string& name) {
  const Shape& shape = model.shapes.at(name);
  std::vector<double> values;
  for (std::uint64_t e = 0; e < shape[0]; ++e) {
    for (std::uint64_t i = 0; i < shape[1]; ++i) {
      for (std::uint64_t o = 0; o < shape[2]; ++o) {
        const std::uint64_t at = (e * shape[2] + o) * shape[1] + i;
        const unsigned code = model.codes.at(name)[at];
        const int exponent = static_cast<int>(code / 2 % 4);
        const double magnitude = exponent == 0 ? 0.5 * (code % 2) : (1 + 0.5 * (code % 2)) * std::pow(2.0, exponent - 1);
        values.push_back((code >= 8 ? -1 : 1) * magnitude * std::pow(2.0, model.scales.at(name)[at / 32] - 127));
      }
    }
  }
  return values;
}

model::OpenOptions as(Dtype dtype) {
  model::OpenOptions options;
  options.dequantize = dtype;
  return options;
}

}  // namespace

TEST_CASE("float8: every code", "[model][dequantize]") {
  for (unsigned code = 0; code < 256; ++code) {
    const double value = value_of_e4m3(static_cast<std::byte>(code));
    if (code % 128 == 127) {
      CHECK(std::isnan(value));
      continue;
    }
    CHECK(std::signbit(value) == (code >= 128));
    if (code % 128 > 0) CHECK(std::fabs(value) > std::fabs(value_of_e4m3(static_cast<std::byte>(code - 1))));
  }
  CHECK(value_of_e4m3(std::byte{0x01}) == 0x1p-9);
  CHECK(value_of_e4m3(std::byte{0x08}) == 0x1p-6);
  CHECK(value_of_e4m3(std::byte{0x38}) == 1);
  CHECK(value_of_e4m3(std::byte{0xc5}) == -3.25);
  CHECK(value_of_e4m3(std::byte{0x7e}) == 448);
}

TEST_CASE("dequantize: refused without the option, and the remedy is named", "[model][dequantize]") {
  const TempDir temp;
  const Fp8Model made = write_fp8(temp / "a");
  CHECK_THROWS_WITH(model::Model(made.path), has_text("quantization_config") && has_text("--dequantize"));
  const Fp8Model unknown = write_fp8(temp / "b", [](io::Json& c) { c["quantization_config"] = {{"quant_method", "gptq"}}; });
  CHECK_THROWS_WITH(model::Model(unknown.path, as(Dtype::bf16)), has_text("gptq") && has_text("de-quantise"));
  const Fp8Model blocks = write_fp8(temp / "c", [](io::Json& c) { c["quantization_config"]["weight_block_size"] = {64, 64}; });
  CHECK_THROWS_WITH(model::Model(blocks.path, as(Dtype::bf16)), has_text("weight_block_size"));
  CHECK_THROWS_WITH(model::Model(write_model(temp / "d", tiny("llama")), as(Dtype::bf16)), has_text("no weight is stored as F8_E4M3 or MXFP4"));
}

TEST_CASE("dequantize: converted exactly, folded and rotated, rounded once", "[model][dequantize]") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    const TempDir temp;
    const Fp8Model made = write_fp8(temp / "a");
    const model::Model opened(made.path, as(dtype));
    const std::vector<double> gain = tensor_values(made.path, "model.layers.0.input_layernorm.weight");
    const RowVector<double> g = Eigen::Map<const RowVector<double>>(gain.data(), static_cast<Index>(gain.size()));

    run_step(made.path, temp / "folded", step("fold"), {}, as(dtype));
    for (const auto& [name, codes] : made.codes) {
      INFO(name);
      CHECK_FALSE(has_tensor(temp / "folded", name + "_scale_inv"));
      CHECK(tensor_type(temp / "folded", name).rfind(std::string(name_of(dtype)) + " ", 0) == 0);
      if (name.find("layers.0.self_attn") == std::string::npos && name.find("down_proj") == std::string::npos) continue;
      Matrix<double> want = exact(made, name);
      if (name.find("layers.0.self_attn") != std::string::npos && name.find("o_proj") == std::string::npos) want = want * g.asDiagonal();
      const Matrix<double> rounded_once = visit_dtype(dtype, [&](auto s) { return widened(rounded<decltype(s)>(want)).template cast<double>().eval(); });
      CHECK((tensor_matrix(temp / "folded", name).array() == rounded_once.array()).all());
    }
    CHECK_FALSE(io::read_json_file(temp / "folded" / "config.json").contains("quantization_config"));
    CHECK(run_verify(made.path, temp / "folded", 0, true, as(dtype)).equal());

    run_step(made.path, temp / "rotated", step("hadamard --heads"), {}, as(dtype));
    CHECK(run_verify(made.path, temp / "rotated", 0, true, as(dtype)).equal());
    run_step(made.path, temp / "moved", step("signed-permutation --heads"), {}, as(dtype));
    CHECK(run_verify(made.path, temp / "moved", 0, true, as(dtype)).equal());
    CHECK_THROWS_WITH(run_verify(made.path, temp / "moved", 0, false, as(dtype)), has_text("rmsfold.json") && has_text("needed"));
    const model::Basis basis = model::make_basis(step("hadamard --heads"), opened.graph());
    const std::string up = "model.layers.0.self_attn.q_proj.weight";
    Matrix<double> want = exact(made, up) * g.asDiagonal();
    basis.stream->apply(want.data(), want.rows(), 1);
    const double unit = visit_dtype(dtype, [](auto s) { return unit_roundoff<decltype(s)>(); });
    CHECK(((tensor_matrix(temp / "rotated", up) - want).array().abs() <= 1.001 * unit * want.array().abs() + 1e-12).all());

    // One scale that is off is found.
    std::vector<double> scales = tensor_values(made.path, up + "_scale_inv");
    scales[1] *= 1.01;
    set_tensor_values(made.path, up + "_scale_inv", scales);
    const model::VerifyReport report = run_verify(made.path, temp / "rotated", 0, true, as(dtype));
    CHECK_FALSE(report.equal());
    CHECK(finds(report, up));
  }
}

TEST_CASE("dequantize: scales that are missing, of another shape or not finite", "[model][dequantize]") {
  const std::string up = "model.layers.0.mlp.up_proj.weight";
  const TempDir temp;
  const Fp8Model made = write_fp8(temp / "a");
  std::vector<double> scales = tensor_values(made.path, up + "_scale_inv");
  scales[0] = std::numeric_limits<double>::infinity();
  set_tensor_values(made.path, up + "_scale_inv", scales);
  CHECK_THROWS_WITH(model::Model(made.path, as(Dtype::bf16)), has_text(up + "_scale_inv") && has_text("infinite"));
  const auto rewrite = [&](const fs::path& to, const std::function<void(io::TensorInfo&, bool&)>& edit) {
    fs::create_directory(to);
    fs::copy_file(made.path / "config.json", to / "config.json");
    const io::Checkpoint from(made.path);
    std::vector<io::TensorInfo> infos;
    std::vector<std::vector<std::byte>> data;
    for (const std::string& name : from.tensor_names()) {
      io::TensorInfo info = io::make_tensor(name, from.find(name)->info->dtype, from.find(name)->info->shape);
      bool keep = true;
      edit(info, keep);
      if (!keep) continue;
      infos.push_back(io::make_tensor(info.name, info.dtype, info.shape));
      data.emplace_back(static_cast<std::size_t>(infos.back().bytes()));
    }
    write_tensors(to, infos, data);
    return to;
  };
  const fs::path missing = rewrite(temp / "b", [&](io::TensorInfo& info, bool& keep) { keep = info.name != up + "_scale_inv"; });
  CHECK_THROWS_WITH(model::Model(missing, as(Dtype::bf16)), has_text(up + "_scale_inv") && has_text("there is no"));
  const fs::path misshapen = rewrite(temp / "c", [&](io::TensorInfo& info, bool&) {
    if (info.name == up + "_scale_inv") info.shape = {1, 1};
  });
  CHECK_THROWS_WITH(model::Model(misshapen, as(Dtype::bf16)), has_text("[1, 1]") && has_text("[2, 2]"));
}

TEST_CASE("float4: every code and scale", "[model][dequantize]") {
  const std::vector<double> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (unsigned code = 0; code < 16; ++code) {
    CHECK(std::fabs(value_of_e2m1(code)) == magnitudes[code % 8]);
    CHECK(std::signbit(value_of_e2m1(code)) == (code >= 8));
  }
  CHECK(value_of_e8m0(std::byte{0}) == 0x1p-127);
  CHECK(value_of_e8m0(std::byte{127}) == 1);
  CHECK(value_of_e8m0(std::byte{254}) == 0x1p127);
  CHECK(std::isnan(value_of_e8m0(std::byte{255})));
}

TEST_CASE("dequantize: MXFP4 is read exactly, in any rectangle", "[model][dequantize]") {
  const TempDir temp;
  const Mxfp4Model made = write_mxfp4(temp / "a");
  CHECK_THROWS_WITH(model::Model(made.path), has_text("mxfp4") && has_text("--dequantize"));
  const model::Model opened(made.path, as(Dtype::bf16));
  Random random(8);
  for (const auto& [name, shape] : made.shapes) {
    INFO(name);
    CHECK(opened.shape(name) == shape);
    const std::vector<double> want = exact(made, name);
    const RowVector<double> all = opened.read_vector(name);
    CHECK(std::equal(want.begin(), want.end(), all.begin(), all.end()));
    for (int trial = 0; trial < 50; ++trial) {
      const std::uint64_t height = shape[0] * shape[1], width = shape[2];
      const std::uint64_t row = random.below(height), col = random.below(width);
      const std::uint64_t rows = 1 + random.below(height - row), cols = 1 + random.below(width - col);
      std::vector<double> part(static_cast<std::size_t>(rows * cols));
      opened.quantised_of(name)->read(opened.checkpoint(), row, col, rows, cols, std::as_writable_bytes(std::span(part)));
      bool same = true;
      for (std::uint64_t i = 0; i < rows; ++i) {
        for (std::uint64_t j = 0; j < cols; ++j) same = same && part[i * cols + j] == want[(row + i) * width + col + j];
      }
      CHECK(same);
    }
  }
}

TEST_CASE("dequantize: MXFP4 is converted exactly, folded and rotated, rounded once", "[model][dequantize]") {
  const std::string experts = "model.layers.1.mlp.experts.";
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    const TempDir temp;
    const Mxfp4Model made = write_mxfp4(temp / "a");
    const std::vector<double> gain = tensor_values(made.path, "model.layers.1.post_attention_layernorm.weight");

    run_step(made.path, temp / "folded", step("fold"), {}, as(dtype));
    for (const auto& [name, shape] : made.shapes) {
      INFO(name);
      CHECK_FALSE(has_tensor(temp / "folded", name + "_blocks"));
      CHECK_FALSE(has_tensor(temp / "folded", name + "_scales"));
      CHECK(tensor_type(temp / "folded", name) == std::string(name_of(dtype)) + " " + to_string(shape));
    }
    std::vector<double> want = exact(made, experts + "gate_up_proj");
    for (std::size_t k = 0; k < want.size(); ++k) want[k] *= gain[k / 192 % 64];
    const Eigen::Map<const Matrix<double>> products(want.data(), 3 * 64, 192);
    const Matrix<double> rounded_once = visit_dtype(dtype, [&](auto s) { return widened(rounded<decltype(s)>(Matrix<double>(products))).template cast<double>().eval(); });
    const std::vector<double> found = tensor_values(temp / "folded", experts + "gate_up_proj");
    CHECK(std::equal(found.begin(), found.end(), rounded_once.data(), rounded_once.data() + rounded_once.size()));
    CHECK(tensor_values(temp / "folded", experts + "down_proj") == exact(made, experts + "down_proj"));
    CHECK_FALSE(io::read_json_file(temp / "folded" / "config.json").contains("quantization_config"));
    CHECK(model::Model(temp / "folded").graph().size.hidden == 64);  // a model like any other

    CHECK(run_verify(made.path, temp / "folded", 0, true, as(dtype)).equal());
    run_step(made.path, temp / "rotated", step("hadamard --heads"), {}, as(dtype));
    CHECK(run_verify(made.path, temp / "rotated", 0, true, as(dtype)).equal());
    run_step(made.path, temp / "moved", step("signed-permutation --heads"), {}, as(dtype));
    CHECK(run_verify(made.path, temp / "moved", 0, true, as(dtype)).equal());

    // One exponent that is off is found.
    const Mxfp4Model other = write_mxfp4(temp / "b", [&](const io::TensorInfo& info, std::vector<std::byte>& bytes) {
      if (info.name == experts + "down_proj_scales") bytes[5] = std::byte{117};
    });
    const model::VerifyReport report = run_verify(other.path, temp / "rotated", 0, true, as(dtype));
    CHECK_FALSE(report.equal());
    CHECK(finds(report, experts + "down_proj"));
  }
}

TEST_CASE("dequantize: MXFP4 whose scales are missing, of another shape or NaN, or beside the numbers", "[model][dequantize]") {
  const std::string down = "model.layers.0.mlp.experts.down_proj";
  const TempDir temp;
  using Bytes = std::vector<std::byte>;
  const Mxfp4Model missing = write_mxfp4(temp / "a", [&](io::TensorInfo& info, Bytes&) {
    if (info.name == down + "_scales") info.name = "";
  });
  CHECK_THROWS_WITH(model::Model(missing.path, as(Dtype::bf16)), has_text("there is no " + down + "_scales"));
  const Mxfp4Model misshapen = write_mxfp4(temp / "b", [&](io::TensorInfo& info, Bytes& bytes) {
    if (info.name != down + "_scales") return;
    info.shape.back() += 1;
    bytes.resize(bytes.size() / 3 * 4);
  });
  CHECK_THROWS_WITH(model::Model(misshapen.path, as(Dtype::bf16)), has_text(down + "_scales of U8 [3, 64, 3]"));
  const Mxfp4Model nan = write_mxfp4(temp / "c", [&](const io::TensorInfo& info, Bytes& bytes) {
    if (info.name == down + "_scales") bytes[7] = std::byte{255};
  });
  CHECK_THROWS_WITH(run_step(nan.path, temp / "out", step("fold"), {}, as(Dtype::bf16)), has_text(down + "_scales") && has_text("NaN"));
  CHECK_FALSE(fs::exists(temp / "out"));
  const Mxfp4Model twice = write_mxfp4(temp / "d", [&](io::TensorInfo& info, Bytes& bytes) {
    if (info.name != "model.layers.1.mlp.experts.down_proj_blocks") return;
    info = io::make_tensor("model.layers.1.mlp.experts.down_proj", "BF16", {3, 96, 64});
    bytes.assign(3 * 96 * 64 * 2, std::byte{0});
  });
  CHECK_THROWS_WITH(model::Model(twice.path, as(Dtype::bf16)), has_text("model.layers.1.mlp.experts.down_proj_scales") && has_text("nothing was changed"));
  const Mxfp4Model another = write_mxfp4(temp / "e", [&](io::TensorInfo& info, Bytes& bytes) {  // of another shape than config.json says
    if (info.name != down + "_blocks" && info.name != down + "_scales") return;
    info.shape[1] += 1;
    bytes.resize(static_cast<std::size_t>(element_count(info.shape)));
  });
  CHECK_THROWS_WITH(model::Model(another.path, as(Dtype::bf16)), has_text(down) && has_text("[3, 96, 65]"));
}
