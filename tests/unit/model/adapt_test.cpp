// SPDX-License-Identifier: MIT
// LoRA adapters and draft heads of a transformed model (G1, G3): W + BA transformed is W' + B'A'.
#include <rmsfold/model/adapt.hpp>

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

constexpr Index rank = 3;

std::string lora(const std::string& module, char side) {
  return "base_model.model." + module + ".lora_" + side + ".weight";
}

/// An adapter in F64 for some modules of a model, with random pairs.
fs::path write_adapter(const fs::path& directory, const fs::path& model, const std::vector<std::string>& modules,
                       const std::function<void(io::Json&)>& edit = {}) {
  fs::create_directory(directory);
  io::Json config{{"peft_type", "LORA"}, {"r", rank}, {"lora_alpha", 6}, {"bias", "none"}, {"use_dora", false}, {"modules_to_save", nullptr}};
  if (edit) edit(config);
  write_bytes(directory / "adapter_config.json", config.dump());
  std::vector<io::TensorInfo> infos;
  for (const std::string& module : modules) {
    const io::Checkpoint checkpoint(model);
    const Shape& shape = checkpoint.find(module + ".weight")->info->shape;
    infos.push_back(io::make_tensor(lora(module, 'A'), "F64", {rank, shape[1]}));
    infos.push_back(io::make_tensor(lora(module, 'B'), "F64", {shape[0], rank}));
  }
  io::SafetensorsWriter file(directory / "adapter_model.safetensors", infos);
  Random random(9);
  for (std::size_t i = 0; i < infos.size(); ++i) {
    std::vector<double> values(static_cast<std::size_t>(element_count(infos[i].shape)));
    for (double& value : values) value = random.normal();
    file.write(i, 0, std::as_bytes(std::span(values)));
  }
  file.finish(false);
  return directory;
}

Matrix<double> matrix_in(const fs::path& file, const std::string& name) {
  const io::SafetensorsFile opened(file);
  const io::TensorInfo& info = *opened.find(name);
  Matrix<double> values(static_cast<Index>(info.shape[0]), static_cast<Index>(info.shape[1]));
  load_as_double(*dtype_from_name(info.dtype), opened.read(info), {values.data(), static_cast<std::size_t>(values.size())});
  return values;
}

Matrix<double> product(const fs::path& adapter, const std::string& module) {
  return matrix_in(adapter / "adapter_model.safetensors", lora(module, 'B')) *
         matrix_in(adapter / "adapter_model.safetensors", lora(module, 'A'));
}

model::AdaptSummary run_adapt(const fs::path& adapter, const fs::path& a, const fs::path& b, const fs::path& out,
                              const std::string& draft = {}, bool force = false) {
  const model::Model opened(a);
  model::AdaptOptions options;
  options.fsync = false;
  options.force = force;
  options.keep = {b};
  options.draft_fc = draft;
  return model::adapt(opened, model::plan_that_made(b, opened), adapter, out, options);
}

std::vector<std::string> all_modules() {
  std::vector<std::string> modules;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
      modules.push_back(std::string(layer) + name);
    }
  }
  return modules;
}

}  // namespace

TEST_CASE("adapt: the adapted adapter is the adapter of the transformed model (G1)", "[model][adapt]") {
  for (const char* words : {"fold", "orthogonal --heads", "hadamard --heads", "permutation --heads", "signed-permutation", "signed-permutation --fold"}) {
    const TempDir temp;
    TinyModel spec = tiny("llama");
    spec.dtype = "F64";
    const fs::path a = write_model(temp / "a", spec);
    const fs::path lora_a = write_adapter(temp / "lora", a, all_modules());
    run_step(a, temp / "b", step(words));
    const model::AdaptSummary summary = run_adapt(lora_a, a, temp / "b", temp / "adapted");
    CHECK(summary.adapted + summary.copied == 28);
    CHECK(read_bytes(temp / "adapted" / "adapter_config.json") == read_bytes(lora_a / "adapter_config.json"));

    // The adapter merged into the model, and then the same step.
    const fs::path merged = temp / "merged";
    fs::copy(a, merged);
    for (const std::string& module : all_modules()) {
      const Matrix<double> w = tensor_matrix(a, module + ".weight") + product(lora_a, module);
      set_tensor_values(merged, module + ".weight", {w.data(), w.data() + w.size()});
    }
    run_step(merged, temp / "transformed", step(words));
    for (const std::string& module : all_modules()) {
      INFO(words << " " << module);
      const Matrix<double> want = tensor_matrix(temp / "transformed", module + ".weight");
      const Matrix<double> found = tensor_matrix(temp / "b", module + ".weight") + product(temp / "adapted", module);
      const double scale = want.norm();
      CHECK((found - want).norm() <= 1e-14 * scale * 50);  // some fifty roundings of 2^-53 on the way
      // Forgotten, the adapter is wrong wherever anything acts on the layer.
      const Matrix<double> forgotten = tensor_matrix(temp / "b", module + ".weight") + product(lora_a, module);
      const bool acts = std::string(words) != "fold" || (module.find("o_proj") == std::string::npos && module.find("down_proj") == std::string::npos);
      CHECK(((forgotten - want).norm() > 1e-3 * scale) == acts);
    }
  }
}

TEST_CASE("adapt: numbers of a public report (G1)", "[model][adapt]") {
  // A = [1, 0], g = [2, 1], Q = [[0.6, 0.8], [-0.8, 0.6]]: A diag(g) Q = [1.2, 1.6]; of a writer, B = [1, 0]^T: Q^T B = [0.6, 0.8]^T.
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.dtype = "F64";
  spec.hidden = spec.head_dim = 2;
  spec.heads = spec.kv_heads = 1;
  const fs::path a = write_model(temp / "a", spec);
  set_tensor_values(a, "model.layers.0.input_layernorm.weight", {2, 1});
  const std::vector<double> q{0.6, 0.8, -0.8, 0.6};
  {
    io::SafetensorsWriter file(temp / "q.safetensors", {io::make_tensor("rotation", "F64", {2, 2})});
    file.write(0, 0, std::as_bytes(std::span(q)));
    file.finish(false);
  }
  run_step(a, temp / "b", step_from_file(temp / "q.safetensors"));
  const std::string reader = "model.layers.0.self_attn.q_proj", writer = "model.layers.0.self_attn.o_proj";
  fs::create_directory(temp / "lora");
  write_bytes(temp / "lora" / "adapter_config.json", R"({"peft_type": "LORA"})");
  {
    std::vector<io::TensorInfo> infos;
    for (const std::string& module : {reader, writer}) {
      infos.push_back(io::make_tensor(lora(module, 'A'), "F64", {1, 2}));
      infos.push_back(io::make_tensor(lora(module, 'B'), "F64", {2, 1}));
    }
    io::SafetensorsWriter file(temp / "lora" / "adapter_model.safetensors", infos);
    const std::vector<double> unit{1, 0};
    for (std::size_t i = 0; i < 4; ++i) file.write(i, 0, std::as_bytes(std::span(unit)));
    file.finish(false);
  }
  run_adapt(temp / "lora", a, temp / "b", temp / "adapted");
  const auto found = [&](const std::string& module, char side) {
    const Matrix<double> m = matrix_in(temp / "adapted" / "adapter_model.safetensors", lora(module, side));
    return std::vector<double>(m.data(), m.data() + m.size());
  };
  CHECK(found(reader, 'A')[0] == Approx(1.2));
  CHECK(found(reader, 'A')[1] == Approx(1.6));
  CHECK(found(reader, 'B') == std::vector<double>{1, 0});
  CHECK(found(writer, 'A') == std::vector<double>{1, 0});
  CHECK(found(writer, 'B')[0] == Approx(0.6));
  CHECK(found(writer, 'B')[1] == Approx(0.8));
}

TEST_CASE("adapt: gain and rotation are composed in double and rounded once", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  run_step(a, temp / "b", step("hadamard --heads"));
  // The same numbers, which BF16 holds, in both types.
  const fs::path source = write_adapter(temp / "source", a, all_modules());
  const fs::path wide = temp / "wide", narrow = temp / "narrow";
  for (const fs::path& directory : {wide, narrow}) {
    fs::create_directory(directory);
    fs::copy(source / "adapter_config.json", directory / "adapter_config.json");
  }
  {
    const std::vector<io::TensorInfo> doubles = io::SafetensorsFile(source / "adapter_model.safetensors").tensors();
    std::vector<io::TensorInfo> halves;
    for (const io::TensorInfo& info : doubles) halves.push_back(io::make_tensor(info.name, "BF16", info.shape));
    io::SafetensorsWriter wide_file(wide / "adapter_model.safetensors", doubles), narrow_file(narrow / "adapter_model.safetensors", halves);
    for (std::size_t i = 0; i < doubles.size(); ++i) {
      Matrix<double> values = matrix_in(source / "adapter_model.safetensors", doubles[i].name);
      const std::span<double> all(values.data(), static_cast<std::size_t>(values.size()));
      std::vector<std::byte> bytes(all.size() * 2);
      CHECK(store_rounded(Dtype::bf16, all, bytes) < 0);
      narrow_file.write(i, 0, bytes);
      load_as_double(Dtype::bf16, bytes, all);
      wide_file.write(i, 0, std::as_bytes(all));
    }
    wide_file.finish(false);
    narrow_file.finish(false);
  }
  run_adapt(wide, a, temp / "b", temp / "wide2");
  run_adapt(narrow, a, temp / "b", temp / "narrow2");
  const io::SafetensorsFile file(temp / "narrow2" / "adapter_model.safetensors");
  for (const io::TensorInfo& info : file.tensors()) {
    INFO(info.name);
    const Matrix<double> values = matrix_in(temp / "wide2" / "adapter_model.safetensors", info.name);
    std::vector<std::byte> want(static_cast<std::size_t>(values.size()) * 2);
    CHECK(store_rounded(Dtype::bf16, {values.data(), static_cast<std::size_t>(values.size())}, want) < 0);
    CHECK(file.read(info) == want);
  }
}

TEST_CASE("adapt: a head that takes over the scale of a tie", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_family(temp / "a", family_fixture("t5"), "F64");
  run_step(a, temp / "b", step("fold"));
  const model::Model opened(a);
  const model::Plan plan = model::plan_that_made(temp / "b", opened);
  const Index hidden = opened.graph().size.hidden, vocabulary = static_cast<Index>(opened.info("shared.weight").shape[0]);
  REQUIRE(opened.head_is_tied());
  REQUIRE_FALSE(plan.output_is_tied);
  fs::create_directory(temp / "lora");
  write_bytes(temp / "lora" / "adapter_config.json", R"({"peft_type": "LORA"})");
  const Matrix<double> in = Matrix<double>::Random(rank, hidden), out = Matrix<double>::Random(vocabulary, rank);
  {
    io::SafetensorsWriter file(temp / "lora" / "adapter_model.safetensors",
                               {io::make_tensor(lora("lm_head", 'A'), "F64", {rank, static_cast<std::uint64_t>(hidden)}),
                                io::make_tensor(lora("lm_head", 'B'), "F64", {static_cast<std::uint64_t>(vocabulary), rank})});
    file.write(0, 0, std::as_bytes(std::span(in.data(), static_cast<std::size_t>(in.size()))));
    file.write(1, 0, std::as_bytes(std::span(out.data(), static_cast<std::size_t>(out.size()))));
    file.finish(false);
  }
  run_adapt(temp / "lora", a, temp / "b", temp / "adapted");
  // The stored head is W·diag(g)·d^-1/2 of the tied W, so its adapter is A·diag(g)·d^-1/2.
  const Matrix<double> w = tensor_matrix(a, "shared.weight"), head = tensor_matrix(temp / "b", "lm_head.weight");
  const RowVector<double> factors = head.row(0).cwiseQuotient(w.row(0));
  const Matrix<double> want = in * factors.asDiagonal();
  const Matrix<double> found = matrix_in(temp / "adapted" / "adapter_model.safetensors", lora("lm_head", 'A'));
  CHECK((found - want).norm() <= 1e-13 * want.norm());
  CHECK(matrix_in(temp / "adapted" / "adapter_model.safetensors", lora("lm_head", 'B')) == out);
}

TEST_CASE("adapt: neither model nor companion is ever written", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  run_step(a, temp / "b", step("fold"));
  const fs::path adapter = write_adapter(temp / "lora", a, {"model.layers.0.mlp.up_proj"});
  const auto before = std::vector{all_files(a), all_files(temp / "b"), all_files(adapter)};
  for (const fs::path& out : {a, temp / "b", adapter, a / "x", temp / "b" / "x", adapter / "x", fs::path(temp / ".")}) {
    INFO(out.string());
    CHECK_THROWS_WITH(run_adapt(adapter, a, temp / "b", out, {}, true), has_text("never written"));
    CHECK(std::vector{all_files(a), all_files(temp / "b"), all_files(adapter)} == before);
  }
}

TEST_CASE("adapt: fused projections, and biases that were moved", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_family(temp / "a", family_fixture("phi3"), "F64");
  const std::string qkv = "model.layers.0.self_attn.qkv_proj";
  const fs::path adapter = write_adapter(temp / "lora", a, {qkv});
  run_step(a, temp / "b", step("orthogonal --heads"));
  run_adapt(adapter, a, temp / "b", temp / "adapted");
  const fs::path merged = temp / "merged";
  fs::copy(a, merged);
  const Matrix<double> w = tensor_matrix(a, qkv + ".weight") + product(adapter, qkv);
  set_tensor_values(merged, qkv + ".weight", {w.data(), w.data() + w.size()});
  run_step(merged, temp / "transformed", step("orthogonal --heads"));
  const Matrix<double> want = tensor_matrix(temp / "transformed", qkv + ".weight");
  CHECK((tensor_matrix(temp / "b", qkv + ".weight") + product(temp / "adapted", qkv) - want).norm() <= 1e-12 * want.norm());

  const fs::path phi = write_family(temp / "phi", family_fixture("phi"), "F64");
  const fs::path biased = write_adapter(temp / "lora2", phi, {"model.layers.0.self_attn.q_proj"});
  run_step(phi, temp / "phi_folded", step("fold"));
  CHECK_THROWS_WITH(run_adapt(biased, phi, temp / "phi_folded", temp / "x"), has_text("input_layernorm") && has_text("merge the adapter"));
}

TEST_CASE("adapt: a draft head reads several states (G3)", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  const Index n = 48;
  run_step(a, temp / "b", step("orthogonal"));
  fs::create_directory(temp / "draft");
  const Matrix<double> fc = Matrix<double>::Random(n, 3 * n);
  const std::vector<double> other(5, 0.5);
  const auto bytes_of = [](const double* data, Index count) { return std::as_bytes(std::span(data, static_cast<std::size_t>(count))); };
  {
    io::SafetensorsWriter file(temp / "draft" / "model.safetensors", {io::make_tensor("fc.weight", "F64", {48, 144}), io::make_tensor("norm.weight", "F64", {5})});
    file.write(0, 0, bytes_of(fc.data(), fc.size()));
    file.write(1, 0, bytes_of(other.data(), 5));
    file.finish(false);
  }
  write_bytes(temp / "draft" / "config.json", "{}");
  run_adapt(temp / "draft", a, temp / "b", temp / "adapted", "fc.weight");
  const model::Model opened(a);
  const Matrix<double> q = model::plan_that_made(temp / "b", opened).basis.stream->as_dense()->matrix();
  const Matrix<double> found = matrix_in(temp / "adapted" / "model.safetensors", "fc.weight");
  for (Index block = 0; block < 3; ++block) {
    CHECK((found.middleCols(block * n, n) - fc.middleCols(block * n, n) * q).cwiseAbs().maxCoeff() < 1e-13);
    CHECK((found.middleCols(block * n, n) - fc.middleCols(block * n, n) * q.transpose()).cwiseAbs().maxCoeff() > 1e-2);
  }
  CHECK_THROWS_WITH(run_adapt(temp / "draft", a, temp / "b", temp / "x", "fc2.weight"), has_text("no file holds tensor fc2.weight"));
  CHECK_THROWS_WITH(run_adapt(temp / "draft", a, temp / "b", temp / "x", "norm.weight"), has_text("norm.weight") && has_text("[5]"));

  // A fold alone leaves the stream what it is; what does not read it is told apart all the same.
  run_step(a, temp / "folded", step("fold"));
  const model::AdaptSummary same = run_adapt(temp / "draft", a, temp / "folded", temp / "same", "fc.weight");
  CHECK(same.adapted == 0);
  REQUIRE(same.notes.size() == 1);
  CHECK_THAT(same.notes.front(), has_text("fc.weight") && has_text("stays as it is"));
  CHECK(read_bytes(temp / "same" / "model.safetensors") == read_bytes(temp / "draft" / "model.safetensors"));
  CHECK_THROWS_WITH(run_adapt(temp / "draft", a, temp / "folded", temp / "x", "norm.weight"), has_text("norm.weight") && has_text("[5]"));
  CHECK_FALSE(fs::exists(temp / "x"));
}

TEST_CASE("adapt: what is no LoRA adapter of this model is refused", "[model][adapt]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  run_step(a, temp / "b", step("fold"));
  const std::vector<std::string> one{"model.layers.0.mlp.up_proj"};
  int number = 0;
  const auto refuses = [&](const fs::path& adapter, const auto& text) {
    CHECK_THROWS_WITH(run_adapt(adapter, a, temp / "b", temp / "x"), text);
    CHECK_FALSE(fs::exists(temp / "x"));
  };
  const auto with = [&](const std::function<void(io::Json&)>& edit) { return write_adapter(temp / std::to_string(++number), a, one, edit); };
  refuses(with([](io::Json& c) { c["use_dora"] = true; }), has_text("DoRA"));
  refuses(with([](io::Json& c) { c["peft_type"] = "IA3"; }), has_text("LORA"));
  refuses(with([](io::Json& c) { c["bias"] = "all"; }), has_text("biases"));
  refuses(with([](io::Json& c) { c["modules_to_save"] = {"lm_head"}; }), has_text("modules_to_save"));
  // What makes the pair something else than W + sBA, or of other layers.
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "something new"}) {
    INFO(init);
    refuses(with([&](io::Json& c) { c["init_lora_weights"] = init; }), has_text("init_lora_weights") && has_text(init));
  }
  refuses(with([](io::Json& c) { c["layer_replication"] = {{0, 2}, {1, 2}}; }), has_text("layer_replication"));
  refuses(with([](io::Json& c) { c["ensure_weight_tying"] = true; }), has_text("ensure_weight_tying"));
  refuses(with([](io::Json& c) { c["target_parameters"] = {"mlp.experts.gate_up_proj"}; }), has_text("target_parameters"));
  refuses(with([](io::Json& c) { c["trainable_token_indices"] = {1, 2}; }), has_text("trainable_token_indices"));
  refuses(with([](io::Json& c) { c["lora_bias"] = true; }), has_text("biases"));
  refuses(with([](io::Json& c) { c["use_qalora"] = true; }), has_text("use_qalora"));
  refuses(with([](io::Json& c) { c["use_bdlora"] = {{"nblocks", 2}}; }), has_text("use_bdlora"));
  refuses(with([](io::Json& c) { c["arrow_config"] = {{"top_k", 3}}; }), has_text("arrow_config"));
  for (const io::Json& init : {io::Json(true), io::Json(false), io::Json("gaussian"), io::Json("eva"), io::Json("orthogonal"), io::Json()}) {
    INFO(init.dump());
    const fs::path out = temp / ("out" + std::to_string(number));
    CHECK_NOTHROW(run_adapt(with([&](io::Json& c) {
      c["init_lora_weights"] = init;
      for (const char* key : {"layer_replication", "target_parameters", "trainable_token_indices", "arrow_config", "use_bdlora"}) c[key] = nullptr;
      c["use_qalora"] = c["ensure_weight_tying"] = false;
      c["modules_to_save"] = io::Json::array();
    }), a, temp / "b", out));
  }
  const auto with_tensor = [&](const std::string& name, const Shape& shape) {
    const fs::path adapter = with({});
    fs::remove(adapter / "adapter_model.safetensors");
    io::SafetensorsWriter file(adapter / "adapter_model.safetensors", {io::make_tensor(name, "F32", shape)});
    file.write(0, 0, std::vector<std::byte>(static_cast<std::size_t>(element_count(shape)) * 4));
    file.finish(false);
    return adapter;
  };
  refuses(with_tensor("base_model.model.model.layers.0.mlp.sideways.lora_A.weight", {3, 48}), has_text("sideways"));
  refuses(with_tensor("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", {3, 47}), has_text("[3, 47]") && has_text("reads 48 channels"));
  refuses(with_tensor("base_model.model.model.embed_tokens.lora_embedding_A", {3, 72}), has_text("no lora_A or lora_B"));
  refuses(with_tensor("base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector.weight", {40, 1}), has_text("magnitude"));

  // A pair of which one half is missing, or that do not fit each other.
  refuses(with_tensor("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", {3, 48}), has_text("up_proj") && has_text("lora_B"));
  const fs::path uneven = with({});
  fs::remove(uneven / "adapter_model.safetensors");
  {
    io::SafetensorsWriter file(uneven / "adapter_model.safetensors", {io::make_tensor(lora(one[0], 'A'), "F32", {3, 48}), io::make_tensor(lora(one[0], 'B'), "F32", {40, 4})});
    file.write(0, 0, std::vector<std::byte>(3 * 48 * 4));
    file.write(1, 0, std::vector<std::byte>(40 * 4 * 4));
    file.finish(false);
  }
  refuses(uneven, has_text("up_proj") && has_text("rank 3") && has_text("4"));

  // What is no adapter, or was not made by this library.
  CHECK_THROWS_AS(run_adapt(temp / "nowhere", a, temp / "b", temp / "x"), FormatError);
  fs::create_directory(temp / "empty");
  CHECK_THROWS_AS(run_adapt(temp / "empty", a, temp / "b", temp / "x"), FormatError);
  CHECK_THROWS_AS(run_adapt(with({}), a, a, temp / "x"), RefusedError);

  // The manifest of another model.
  TinyModel other = tiny("llama");
  other.seed = 77;
  const fs::path stranger = write_model(temp / "stranger", other);
  CHECK_THROWS_WITH(run_adapt(with({}), stranger, temp / "b", temp / "x"), has_text("another model"));
}
