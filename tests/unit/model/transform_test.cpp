// SPDX-License-Identifier: MIT
// Written checkpoints: their numbers, bits, layout and flags, and that verification finds them equal with and without
// the manifest.
#include <cmath>

#include <rmsfold/model/decoder.hpp>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using model::HeadChoice;

const std::string embedding = "model.embed_tokens.weight";
const std::string head = "lm_head.weight";

/// A matrix as a rotation file.
fs::path write_rotation(const fs::path& path, const Matrix<double>& q, const std::string& dtype = "F64") {
  const Shape shape{static_cast<std::uint64_t>(q.rows()), static_cast<std::uint64_t>(q.cols())};
  io::SafetensorsWriter file(path, {io::make_tensor("rotation", dtype, shape)});
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tensors()[0].bytes()));
  static_cast<void>(store_rounded(*dtype_from_name(dtype), {q.data(), static_cast<std::size_t>(q.size())}, bytes));
  file.write(std::size_t{0}, 0, bytes);
  file.finish(false);
  return path;
}

/// Correctly rounded to `bits` of significand with this smallest exponent, from a product that long double holds
/// exactly.
double rounded_to(long double value, int bits, int smallest_exponent) {
  if (value == 0) return static_cast<double>(value);
  int exponent = 0;
  std::frexp(value, &exponent);
  const long double unit = std::ldexp(1.0L, (std::max)(exponent, smallest_exponent + 1) - bits);
  return static_cast<double>(std::nearbyint(value / unit) * unit);
}

double rounded_product(const std::string& dtype, double w, double g) {
  const long double product = static_cast<long double>(w) * static_cast<long double>(g);
  if (dtype == "F64") return w * g;
  if (dtype == "F32") return rounded_to(product, 24, -126);
  if (dtype == "F16") return rounded_to(product, 11, -14);
  return rounded_to(product, 8, -126);
}

void check_same_tensors(const fs::path& a, const fs::path& b) {
  CHECK(tensor_names(a) == tensor_names(b));
  for (const std::string& name : tensor_names(a)) {
    INFO(name);
    CHECK(tensor_type(a, name) == tensor_type(b, name));
    CHECK(tensor_bytes(a, name) == tensor_bytes(b, name));
  }
}

/// One layer of width 2 in which nothing but embedding, last gain and head says anything: E2 and Qa of the case list.
TinyModel two_wide(bool tied) {
  TinyModel spec = tiny("llama");
  spec.dtype = "F64";
  spec.layers = 1;
  spec.hidden = spec.intermediate = spec.vocabulary = spec.head_dim = 2;
  spec.heads = spec.kv_heads = 1;
  spec.attention_bias = spec.mlp_bias = false;
  spec.tied = tied;
  spec.eps = 0;
  spec.edit_tensors = [](std::vector<TinyTensor>& tensors) {
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == embedding || tensor.name == head) tensor.values = {1, 2, 3, 4};
      if (tensor.name == "model.norm.weight") tensor.values = {2, 0.5};
      if (tensor.name.find("o_proj") != std::string::npos || tensor.name.find("down_proj") != std::string::npos)
        tensor.values = {0, 0, 0, 0};
    }
  };
  return spec;
}

const Matrix<double> qa = rows({{0.6, 0.8}, {-0.8, 0.6}});

Matrix<double> logits(const fs::path& directory, Index token) {
  const model::Model opened(directory);
  return model::Decoder(opened).logits(std::vector<Index>{token});
}

}  // namespace

TEST_CASE("transform: equal with the manifest and without it, for every family, step and type", "[model]") {
  struct Row {
    std::string family, words, dtype, norm_dtype, basis;
    bool tied;
    std::size_t shards;
  };
  const std::vector<Row> table{
      {"llama", "fold", "F32", "", "unchanged", true, 1},
      {"llama", "hadamard", "F16", "F32", "Hadamard-like", false, 2},
      {"llama", "orthogonal", "BF16", "F32", "dense rotation", true, 3},
      {"llama", "signed-permutation", "BF16", "", "signed permutation", true, 1},
      {"llama", "permutation", "F64", "", "signed permutation", false, 1},
      {"llama", "hadamard --heads", "F64", "", "values rotated per head in 2 layers", true, 2},
      {"llama", "signed-permutation --heads", "F32", "", "values rotated per head in 2 layers", false, 1},
      {"llama", "signed-permutation --fold", "F16", "", "signed permutation", true, 1},
      {"mistral", "fold", "BF16", "F32", "unchanged", false, 2},
      {"mistral", "hadamard", "F32", "", "Hadamard-like", false, 1},
      {"mistral", "orthogonal --heads", "F32", "F64", "values rotated per head in 2 layers", true, 1},
      {"mistral", "signed-permutation --heads --fold", "F16", "F32", "values rotated per head in 2 layers", true, 1},
      {"qwen2", "fold", "F64", "", "unchanged", true, 1},
      {"qwen2", "hadamard --heads", "F32", "", "values rotated per head in 2 layers", true, 3},
      {"qwen2", "orthogonal", "F64", "", "dense rotation", false, 1},
      {"qwen2", "permutation", "BF16", "F32", "signed permutation", true, 1},
      {"qwen3", "hadamard", "BF16", "", "Hadamard-like", true, 1},
      {"qwen3", "hadamard --heads", "F16", "F32", "values rotated per head in 2 layers", false, 1},
      {"qwen3", "signed-permutation --fold", "F64", "", "signed permutation", true, 2},
      {"qwen3", "fold", "F16", "F16", "unchanged", false, 1},
  };
  for (const Row& row : table) {
    const TempDir temp;
    TinyModel spec = tiny(row.family);
    spec.dtype = row.dtype;
    spec.norm_dtype = row.norm_dtype;
    spec.tied = row.tied;
    spec.shards = row.shards;
    const fs::path a = write_model(temp / "a", spec);
    const fs::path b = temp / "b";
    run_step(a, b, step(row.words));
    INFO(row.family << " " << row.words << " " << row.dtype << " " << row.norm_dtype << (row.tied ? " tied" : ""));
    const model::VerifyReport known = run_verify(a, b, 24);
    INFO(text_of(known));
    CHECK(known.equal());
    CHECK(known.logits.done);
    CHECK_THAT(known.basis, has_text("from rmsfold.json"));
    CHECK(known.tensors.size() == known.plan.tensors.size());
    const model::VerifyReport guessed = run_verify(a, b, 0, false);
    INFO(text_of(guessed));
    CHECK(guessed.equal());
    CHECK(guessed.basis_is_known);
    CHECK_THAT(guessed.basis, has_text("estimated") && has_text(row.basis));
  }
}

TEST_CASE("transform: names, shapes, types and order stay (H1, E5)", "[model]") {
  for (const char* words : {"hadamard --heads", "fold", "signed-permutation"}) {
    const TempDir temp;
    TinyModel spec = tiny("qwen3");
    spec.dtype = "BF16";
    spec.norm_dtype = "F32";
    spec.shards = 2;
    const fs::path a = write_model(temp / "a", spec);
    run_step(a, temp / "b", step(words));
    CHECK(tensor_names(temp / "b") == tensor_names(a));
    for (const std::string& name : tensor_names(a)) CHECK(tensor_type(temp / "b", name) == tensor_type(a, name));
    CHECK(read_bytes(temp / "b" / "config.json") == read_bytes(a / "config.json"));
    CHECK(io::SafetensorsFile(temp / "b" / "model-00001-of-00002.safetensors").metadata() ==
          io::Metadata{{"format", "pt"}});
  }
}

TEST_CASE("fold: stored weights are the correctly rounded products, norms become 1, nothing else moves (F13, F14)",
          "[model]") {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) {
    const TempDir temp;
    TinyModel spec = tiny("llama");
    spec.dtype = dtype;
    const fs::path a = write_model(temp / "a", spec);
    const fs::path b = temp / "b";
    run_step(a, b, step("fold"));
    for (const std::string& name : tensor_names(a)) {
      INFO(dtype << " " << name);
      std::string norm;
      for (const char* reader : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) {
        if (name.ends_with(reader)) norm = name.substr(0, name.find("self_attn")) + "input_layernorm.weight";
      }
      for (const char* reader : {"gate_proj.weight", "up_proj.weight"}) {
        if (name.ends_with(reader)) norm = name.substr(0, name.find("mlp")) + "post_attention_layernorm.weight";
      }
      if (name == head) norm = "model.norm.weight";
      if (name.find("norm.weight") != std::string::npos) {
        CHECK(tensor_values(b, name) == std::vector<double>(tensor_values(a, name).size(), 1.0));
      } else if (norm.empty()) {
        CHECK(tensor_bytes(b, name) == tensor_bytes(a, name));
      } else {
        const std::vector<double> g = tensor_values(a, norm);
        std::vector<double> wanted = tensor_values(a, name);
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = rounded_product(dtype, wanted[i], g[i % g.size()]);
        CHECK(tensor_values(b, name) == wanted);
      }
    }
  }
}

TEST_CASE("rotate: permutations come back bit for bit, by seed and by recipe", "[model]") {
  for (const char* words : {"permutation", "signed-permutation", "signed-permutation --heads", "permutation --heads"}) {
    for (const char* dtype : {"BF16", "F16", "F32"}) {
      INFO(words << " " << dtype);
      const TempDir temp;
      TinyModel spec = tiny("llama");
      spec.dtype = dtype;
      spec.tied = true;
      const fs::path a = write_model(temp / "a", spec);
      run_step(a, temp / "b", step(words));
      for (const std::string& name : tensor_names(a)) {
        const bool is_moved =
            name.find("q_proj.bias") == std::string::npos && name.find("k_proj.bias") == std::string::npos &&
            name.find("gate_proj.bias") == std::string::npos && name.find("up_proj.bias") == std::string::npos &&
            (name.find("v_proj.bias") == std::string::npos || step(words).heads);
        INFO(name);
        CHECK((tensor_bytes(a, name) != tensor_bytes(temp / "b", name)) == is_moved);
      }
      run_step(temp / "b", temp / "c", step(std::string(words) + " --inverse"));
      check_same_tensors(a, temp / "c");
      CHECK(read_bytes(temp / "c" / "config.json") == read_bytes(a / "config.json"));
      model::Step back = recorded_step(temp / "b");
      back.inverse = !back.inverse;
      run_step(temp / "b", temp / "d", back);
      check_same_tensors(a, temp / "d");
      // Undone is not rotated: no --again is needed.
      CHECK_NOTHROW(run_step(temp / "d", temp / "e", step("permutation")));
    }
  }
}

TEST_CASE("rotate: a dense rotation and its inverse leave rounding only, and no shrinking (D10)", "[model]") {
  for (const char* words : {"hadamard", "orthogonal"}) {
    const TempDir temp;
    TinyModel spec = tiny("mistral");
    spec.dtype = "BF16";
    spec.gain = 1;
    spec.vocabulary = 2000;
    const fs::path a = write_model(temp / "a", spec);
    run_step(a, temp / "b", step(words));
    model::Step back = recorded_step(temp / "b");
    back.inverse = true;
    run_step(temp / "b", temp / "c", back);
    const Matrix<double> before = tensor_matrix(a, embedding);
    const Matrix<double> after = tensor_matrix(temp / "c", embedding);
    CHECK(tensor_bytes(temp / "b", embedding) != tensor_bytes(a, embedding));
    // Storing W' moves row i by at most u|W'_i|, storing W'' each entry by u|W''_ij|.
    const double u = 0x1p-8;
    Matrix<double> allowed = (1 + 0x1p-20) * u * after.cwiseAbs();
    allowed.colwise() += 1.01 * u * before.rowwise().norm();
    const Comparison comparison = compare(after, before, allowed);
    INFO(words << ": " << comparison);
    CHECK(comparison.within());
    // Relative roundings are independent and below u: over N Gaussian entries, of kurtosis 3, the norm wanders by at
    // most u/sqrt(N) per step; five of these. A matrix in BF16 would shrink it by 2e-4.
    const double shrink = std::fabs(after.norm() / before.norm() - 1);
    INFO("shrink " << shrink);
    const double allowed_shrink = 5 * std::sqrt(2.0) * u / std::sqrt(static_cast<double>(before.size()));
    CHECK(shrink <= allowed_shrink);
    CHECK(allowed_shrink < 1e-4);
  }
}

TEST_CASE("transform: equal bytes for any number of threads, and again (D12)", "[model]") {
  for (const char* words : {"fold", "hadamard --heads", "orthogonal --heads", "signed-permutation --heads --fold"}) {
    const TempDir temp;
    TinyModel spec = tiny("llama");
    spec.dtype = "BF16";
    spec.vocabulary = 700;  // several tiles
    spec.shards = 2;
    const fs::path a = write_model(temp / "a", spec);
    std::map<std::string, std::string> first;
    for (const unsigned threads : {1u, 2u, 5u, 1u}) {
      const fs::path out = temp / ("b" + std::to_string(first.size()) + std::to_string(threads) + words);
      if (fs::exists(out)) fs::remove_all(out);
      model::RunOptions options;
      options.threads = threads;
      run_step(a, out, step(words), options);
      const std::map<std::string, std::string> files = all_files(out);
      if (first.empty()) first = files;
      INFO(words << ", " << threads << " threads");
      CHECK(files == first);
    }
  }
}

TEST_CASE("rotate: seed 0 is a seed, and each seed, layer and head has its own rotation (D12)", "[model]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  for (const char* words : {"hadamard --heads", "signed-permutation --heads"}) {
    std::string texts[2];
    for (const std::uint64_t seed : {0u, 1u}) {
      const fs::path out = temp / (words + std::to_string(seed));
      run_step(a, out, step(words, seed));
      CHECK(recorded_step(out).seed == seed);
      texts[seed] = tensor_bytes(out, embedding);
      CHECK(texts[seed] != tensor_bytes(a, embedding));
    }
    CHECK(texts[0] != texts[1]);
    const model::Model opened(a);
    const model::Plan plan = model::make_plan(opened, step(words));
    const auto first_row = [](const model::Rotation& q) {
      std::vector<double> row(static_cast<std::size_t>(q.dim()));
      for (std::size_t j = 0; j < row.size(); ++j) row[j] = 1 + static_cast<double>(j);
      q.apply(row.data(), 1, 1);
      return row;
    };
    std::vector<std::vector<double>> seen;
    for (const auto& [space, heads] : plan.basis.heads) {
      for (const model::Rotation& block : heads.blocks()) seen.push_back(first_row(block));
    }
    REQUIRE(seen.size() == 4);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) CHECK(seen[i] != seen[j]);
    }
  }
}

TEST_CASE("transform: an identity run leaves a tied model as it was (B5, A1)", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.tied = true;
  spec.gain = 1;
  const fs::path a = write_model(temp / "a", spec);
  const model::RunSummary summary = run_step(a, temp / "b", step("fold"));
  CHECK(summary.transformed == 0);
  check_same_tensors(a, temp / "b");
  CHECK(read_bytes(temp / "b" / "config.json") == read_bytes(a / "config.json"));
  CHECK(read_bytes(temp / "b" / "model.safetensors") == read_bytes(a / "model.safetensors"));
  CHECK(run_verify(a, temp / "b").equal());

  // The identity as a rotation: no mean is removed from anything.
  write_rotation(temp / "identity", Matrix<double>::Identity(48, 48));
  run_step(a, temp / "c", step_from_file(temp / "identity"));
  check_same_tensors(a, temp / "c");
}

TEST_CASE("rotate: a tied head gets its own tensor, with the numbers of B1", "[model]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", two_wide(true));
  write_rotation(temp / "qa", qa);
  const fs::path b = temp / "b";
  run_step(a, b, step_from_file(temp / "qa"));
  // One rounding of the product and one of the sum, each below 5·2^-53; and that of Qa's own entries.
  const double allowed = 4 * 5 * 0x1p-53;
  CHECK(compare(tensor_matrix(b, embedding), rows({{-1, 2}, {-1.4, 4.8}}), allowed).within());
  CHECK(compare(tensor_matrix(b, head), rows({{0.4, 2.2}, {2, 6}}), allowed).within());
  CHECK_FALSE(io::read_json_file(b / "config.json").at("tie_word_embeddings").get<bool>());
  CHECK(tensor_names(b)[1] == head);
  const Matrix<double> wanted = rows({{2.52982, 6.32456}});
  CHECK(compare(logits(a, 0), wanted, 5e-6).within());
  CHECK(compare(logits(b, 0), wanted, 5e-6).within());
  CHECK(compare(logits(b, 0), logits(a, 0), 1e-14).within());
  CHECK(run_verify(a, b).equal());
  CHECK(run_verify(a, b, 0, false).equal());
}

TEST_CASE("rotate: a symmetric rotation is merged into a tied pair once (B2, B4)", "[model]") {
  const TempDir temp;
  const double s = 1 / std::sqrt(2.0);
  const Matrix<double> h2 = rows({{s, s}, {s, -s}});
  write_rotation(temp / "h2", h2);
  const fs::path a = write_model(temp / "a", two_wide(true));
  run_step(a, temp / "b", step_from_file(temp / "h2"));
  const Matrix<double> e2 = rows({{1, 2}, {3, 4}});
  CHECK(compare(tensor_matrix(temp / "b", embedding), e2 * h2, 4 * 7 * 0x1p-53).within());
  CHECK_FALSE(compare(tensor_matrix(temp / "b", embedding), e2, 0.1).within());
  CHECK(has_tensor(temp / "b", head));
  CHECK(tensor_bytes(temp / "b", head) != tensor_bytes(temp / "b", embedding));
}

TEST_CASE("rotate: all factors of a weight are rounded once (E1)", "[model]") {
  const TempDir temp;
  TinyModel spec = two_wide(false);
  spec.dtype = "BF16";
  const auto others = spec.edit_tensors;
  spec.edit_tensors = [&](std::vector<TinyTensor>& tensors) {
    others(tensors);
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == head) tensor.values = {1.5, 1.015625, 1, 1};
      if (tensor.name == "model.norm.weight") tensor.values = {1.0078125, 1.0078125};
    }
  };
  const fs::path a = write_model(temp / "a", spec);
  const double s = 1 / std::sqrt(2.0);
  write_rotation(temp / "h2", rows({{s, s}, {s, -s}}));
  run_step(a, temp / "b", step_from_file(temp / "h2"));
  CHECK(tensor_values(temp / "b", head)[0] == 1.7890625);
}

TEST_CASE("transform: the new head stands right behind the embedding, and the index knows it (K20)", "[model]") {
  for (const std::size_t shards : {std::size_t{1}, std::size_t{3}}) {
    const TempDir temp;
    TinyModel spec = tiny("llama");
    spec.tied = true;
    spec.shards = shards;
    spec.edit_config = [](io::Json& config) { config["a_key_of_mine"] = {1, 2.5, "three"}; };
    const fs::path a = write_model(temp / "a", spec);
    const fs::path b = temp / "b";
    run_step(a, b, step("fold"));
    std::vector<std::string> names = tensor_names(a);
    names.insert(names.begin() + 1, head);
    CHECK(tensor_names(b) == names);
    const io::Checkpoint checkpoint(b);
    const io::TensorInfo& first = *checkpoint.find(embedding)->info;
    const io::TensorInfo& second = *checkpoint.find(head)->info;
    CHECK(second.begin == first.end);
    CHECK(checkpoint.find(head)->shard == checkpoint.find(embedding)->shard);
    CHECK(checkpoint.shards().size() == shards);
    io::Json config = io::read_json_file(b / "config.json");
    CHECK_FALSE(config.at("tie_word_embeddings").get<bool>());
    config["tie_word_embeddings"] = true;
    CHECK(config == io::read_json_file(a / "config.json"));
    CHECK(fs::exists(b / "model.safetensors.index.json") == (shards > 1));
    if (shards > 1) {
      const io::Json index = io::read_json_file(b / "model.safetensors.index.json");
      CHECK(index.at("weight_map").at(head) == index.at("weight_map").at(embedding));
      CHECK(index.at("weight_map").size() == names.size());
      std::uint64_t total = 0;
      for (const std::string& name : names) total += checkpoint.find(name)->info->bytes();
      CHECK(index.at("metadata").at("total_size") == total);
    }
    CHECK(run_verify(a, b).equal());
  }
}

TEST_CASE("transform: --head decides between a flag and a stored tensor", "[model]") {
  const TempDir temp;
  model::OpenOptions stored, tied;
  stored.head = HeadChoice::stored;
  tied.head = HeadChoice::tied;
  TinyModel spec = tiny("llama");
  spec.edit_config = [](io::Json& config) { config["tie_word_embeddings"] = true; };
  const fs::path a = write_model(temp / "a", spec);
  CHECK_THROWS_AS(run_step(a, temp / "b", step("fold")), FormatError);
  CHECK_FALSE(fs::exists(temp / "b"));

  run_step(a, temp / "as-stored", step("hadamard"), {}, stored);
  CHECK_FALSE(io::read_json_file(temp / "as-stored" / "config.json").at("tie_word_embeddings").get<bool>());
  CHECK(run_verify(a, temp / "as-stored", 0, true, stored).equal());

  const model::RunSummary summary = run_step(a, temp / "as-tied", step("signed-permutation"), {}, tied);
  CHECK_FALSE(has_tensor(temp / "as-tied", head));
  CHECK(io::read_json_file(temp / "as-tied" / "config.json").at("tie_word_embeddings").get<bool>());
  CHECK(run_verify(a, temp / "as-tied", 8, true, tied).equal());
  CHECK(summary.transformed > 0);

  run_step(a, temp / "untied", step("hadamard"), {}, tied);
  CHECK(run_verify(a, temp / "untied", 8, true, tied).equal());
  CHECK_FALSE(run_verify(a, temp / "untied", 0, true, stored).equal());
}

TEST_CASE("fold: a second one changes nothing and says so, a second rotation must be meant (H5)", "[model]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  run_step(a, temp / "folded", step("fold"));
  const model::RunSummary again = run_step(temp / "folded", temp / "folded2", step("fold"));
  check_same_tensors(temp / "folded", temp / "folded2");
  REQUIRE(!again.notes.empty());
  CHECK_THAT(again.notes[0], has_text("nothing to fold"));

  run_step(a, temp / "rotated", step("hadamard"));
  CHECK_THROWS_AS(run_step(temp / "rotated", temp / "twice", step("hadamard")), RefusedError);
  CHECK_THROWS_WITH(run_step(temp / "rotated", temp / "twice", step("hadamard")),
                    has_text("already rotated") && has_text("--again"));
  CHECK_FALSE(fs::exists(temp / "twice"));
  model::RunOptions meant;
  meant.again = true;
  run_step(temp / "rotated", temp / "twice", step("hadamard"), meant);
  CHECK(run_verify(temp / "rotated", temp / "twice").equal());
  CHECK(run_verify(a, temp / "twice").equal());  // a composition is a rotation like any other, to be estimated
}

TEST_CASE("transform: an overflow names the tensor and leaves nothing (E3)", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.dtype = "F16";
  spec.edit_tensors = [](std::vector<TinyTensor>& tensors) {
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == "model.layers.1.mlp.up_proj.weight") tensor.values[5] = 300;
      if (tensor.name == "model.layers.1.post_attention_layernorm.weight") tensor.values[5] = 300;
    }
  };
  const fs::path a = write_model(temp / "a", spec);
  const std::map<std::string, std::string> before = all_files(a);
  CHECK_THROWS_AS(run_step(a, temp / "b", step("fold")), RangeError);
  CHECK_THROWS_WITH(run_step(a, temp / "b", step("fold")),
                    has_text("model.layers.1.mlp.up_proj.weight") && has_text("90000") && has_text("F16"));
  CHECK(all_files(a) == before);
  CHECK(all_files(temp.path()).size() == 1);

  spec.dtype = "BF16";
  const fs::path wide = write_model(temp / "wide", spec);
  run_step(wide, temp / "c", step("fold"));
  CHECK(tensor_values(temp / "c", "model.layers.1.mlp.up_proj.weight")[5] == 90112);
}

TEST_CASE("transform: what is not finite stays where it is, or is refused (E4, H4)", "[model]") {
  const TempDir temp;
  TinyModel spec = two_wide(false);
  const auto others = spec.edit_tensors;
  const double infinity = std::numeric_limits<double>::infinity();
  spec.edit_tensors = [&](std::vector<TinyTensor>& tensors) {
    others(tensors);
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == head) tensor.values = {infinity, 1, 3, 4};
      if (tensor.name == "model.norm.weight") tensor.values = {1, 2};
    }
  };
  const fs::path a = write_model(temp / "a", spec);
  const model::RunSummary summary = run_step(a, temp / "b", step("fold"));
  CHECK(tensor_values(temp / "b", head) == std::vector<double>{infinity, 2, 3, 8});
  REQUIRE(!summary.notes.empty());
  CHECK_THAT(summary.notes.back(), has_text(head) && has_text("infinite or NaN"));

  write_rotation(temp / "qa", qa);
  const std::map<std::string, std::string> before = all_files(a);
  CHECK_THROWS_AS(run_step(a, temp / "c", step_from_file(temp / "qa")), RefusedError);
  CHECK_THROWS_WITH(run_step(a, temp / "c", step_from_file(temp / "qa")), has_text(head) && has_text("(0, 0)"));
  CHECK_FALSE(fs::exists(temp / "c"));
  CHECK_FALSE(fs::exists((temp / "c").string() + ".rmsfold-partial"));
  CHECK(all_files(a) == before);
}

TEST_CASE("rotate: matrices from files (D11)", "[model]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  const model::Model opened(a);
  const model::Basis haar = model::make_basis(step("orthogonal", 3), opened.graph());
  const Matrix<double> q = haar.stream->as_dense()->matrix();

  run_step(a, temp / "good", step_from_file(write_rotation(temp / "q64", q)));
  CHECK(run_verify(a, temp / "good").equal());
  CHECK(run_verify(a, temp / "good", 0, false).equal());
  CHECK(compare(tensor_matrix(temp / "good", embedding), tensor_matrix(a, embedding) * q, 0x1p-24 * 16).within());

  const model::RunSummary narrow = run_step(a, temp / "narrow", step_from_file(write_rotation(temp / "q32", q, "F32")));
  REQUIRE(!narrow.notes.empty());
  CHECK_THAT(narrow.notes[0], has_text("F32") && has_text("projected"));
  CHECK(run_verify(a, temp / "narrow").equal());

  Matrix<double> scaled = q;
  scaled.row(3) *= 1.0005;
  CHECK_THROWS_WITH(
      run_step(a, temp / "x", step_from_file(write_rotation(temp / "scaled", scaled))),
      has_text("not orthogonal") && has_text("QᵀQ") && has_text("QQᵀ") && has_text("0.001") && has_text("eps"));
  CHECK_THROWS_AS(
      run_step(a, temp / "x", step_from_file(write_rotation(temp / "small", Matrix<double>::Identity(47, 47)))),
      ShapeError);
  CHECK_THROWS_AS(run_step(a, temp / "x", step_from_file(write_rotation(temp / "flat", q.topRows(40)))), ShapeError);
  Matrix<double> broken = q;
  broken(2, 2) = std::nan("");
  CHECK_THROWS_AS(run_step(a, temp / "x", step_from_file(write_rotation(temp / "broken", broken))), Error);
  write_bytes(temp / "text", "no matrix at all");
  CHECK_THROWS_AS(run_step(a, temp / "x", step_from_file(temp / "text")), FormatError);
  CHECK_FALSE(fs::exists(temp / "x"));

  // A signed permutation in a file is one: nothing is rounded, a tie stays.
  Matrix<double> p = Matrix<double>::Zero(48, 48);
  for (Index i = 0; i < 48; ++i) p(i, (i * 5 + 2) % 48) = i % 3 == 0 ? -1 : 1;
  model::Step moves = step_from_file(write_rotation(temp / "p", p, "BF16"));
  moves.fold = false;
  run_step(a, temp / "moved", moves);
  CHECK(compare(tensor_matrix(temp / "moved", embedding), tensor_matrix(a, embedding) * p, 0).within());
}

TEST_CASE("manifest: equal inputs give equal bytes, and nothing of this machine is in it", "[model]") {
  const TempDir temp;
  const fs::path a = write_model(temp / "a", tiny("llama"));
  fs::create_directory(temp / "elsewhere");
  fs::copy(a, temp / "elsewhere" / "copy");
  run_step(a, temp / "b", step("orthogonal --heads"));
  run_step(temp / "elsewhere" / "copy", temp / "elsewhere" / "out", step("orthogonal --heads"));
  CHECK(all_files(temp / "b") == all_files(temp / "elsewhere" / "out"));
  CHECK(read_bytes(temp / "b" / "rmsfold.json").find(temp.path().string()) == std::string::npos);
}

TEST_CASE("transform: the bytes depend on neither threads nor instruction set", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.dtype = "BF16";
  spec.layers = 1;
  spec.hidden = 768;  // a block of 12 and a power of two that the kernels of rows take
  spec.head_dim = 64;
  spec.vocabulary = 1000;  // more than one piece
  const fs::path a = write_model(temp / "a", spec);
  const kernel::Target fastest = kernel::supported_targets().back();
  for (const std::string words : {"fold", "hadamard --heads", "signed-permutation --heads"}) {
    const auto bytes = [&](kernel::Target target, unsigned threads, std::uint64_t seed = 7) {
      const kernel::WithTarget with(target);
      model::RunOptions options;
      options.threads = threads;
      options.force = true;
      run_step(a, temp / "out", step(words, seed), options);
      return all_files(temp / "out");
    };
    const std::map<std::string, std::string> reference = bytes(kernel::Target::scalar, 1);
    for (const kernel::Target target : kernel::supported_targets()) {
      INFO(words << ", " << kernel::name_of(target));
      CHECK(bytes(target, 2) == reference);
    }
    INFO(words << ", other threads");
    CHECK(bytes(fastest, 1) == reference);
    CHECK(bytes(fastest, 3) == reference);
    CHECK((bytes(fastest, 1, 8) == reference) == (words == "fold"));  // it does see bytes that differ
  }
}
