// SPDX-License-Identifier: MIT
// Weights that are stored as eight-bit codes with block scales (E7): refused, or converted exactly and rounded once.
#include <cmath>
#include <cstring>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;

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
    data.emplace_back(codes.size());
    std::memcpy(data.back().data(), codes.data(), codes.size());
    infos.push_back(io::make_tensor(name + "_scale_inv", "F32", blocks));
    data.emplace_back(scales.size() * sizeof(float));
    std::memcpy(data.back().data(), scales.data(), data.back().size());
  }
  io::SafetensorsWriter file(directory / "model.safetensors", infos, io::Metadata{{"format", "pt"}});
  for (std::size_t i = 0; i < infos.size(); ++i) file.write(i, 0, data[i]);
  file.finish(false);
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
  const Fp8Model mxfp4 = write_fp8(temp / "b", [](io::Json& c) { c["quantization_config"] = {{"quant_method", "mxfp4"}}; });
  CHECK_THROWS_WITH(model::Model(mxfp4.path, as(Dtype::bf16)), has_text("mxfp4") && has_text("de-quantise"));
  const Fp8Model blocks = write_fp8(temp / "c", [](io::Json& c) { c["quantization_config"]["weight_block_size"] = {64, 64}; });
  CHECK_THROWS_WITH(model::Model(blocks.path, as(Dtype::bf16)), has_text("weight_block_size"));
  CHECK_THROWS_WITH(model::Model(write_model(temp / "d", tiny("llama")), as(Dtype::bf16)), has_text("no weight is stored as F8_E4M3"));
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
    io::SafetensorsWriter file(to / "model.safetensors", infos);
    for (std::size_t i = 0; i < infos.size(); ++i) file.write(i, 0, data[i]);
    file.finish(false);
    return to;
  };
  const fs::path missing = rewrite(temp / "b", [&](io::TensorInfo& info, bool& keep) { keep = info.name != up + "_scale_inv"; });
  CHECK_THROWS_WITH(model::Model(missing, as(Dtype::bf16)), has_text(up + "_scale_inv") && has_text("there is no"));
  const fs::path misshapen = rewrite(temp / "c", [&](io::TensorInfo& info, bool&) {
    if (info.name == up + "_scale_inv") info.shape = {1, 1};
  });
  CHECK_THROWS_WITH(model::Model(misshapen, as(Dtype::bf16)), has_text("[1, 1]") && has_text("[2, 2]"));
}
