// SPDX-License-Identifier: MIT
// The reference forward against logits that transformers computed.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/model/decoder.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using model::Decoder;
using model::ForwardOptions;
using model::Model;

struct Golden {
  fs::path directory;
  std::vector<Index> tokens;
  Matrix<double> stock, exact;  ///< logits of the stock class, and with all of it in double
};

Matrix<double> matrix_of(const io::SafetensorsFile& file, const char* name) {
  const io::TensorInfo& info = *file.find(name);
  Matrix<double> values(static_cast<Index>(info.shape.at(info.shape.size() - 2)),
                        static_cast<Index>(info.shape.back()));
  load_as_double(Dtype::f64, file.read(info), {values.data(), static_cast<std::size_t>(values.size())});
  return values;
}

std::vector<Golden> golden_cases() {
  std::vector<Golden> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(RMSFOLD_SOURCE_DIR) / "tests/data/golden")) {
    const io::SafetensorsFile file(entry.path() / "golden.safetensors");
    Golden one{entry.path(), {}, matrix_of(file, "logits_stock"), matrix_of(file, "logits_double")};
    const std::vector<std::byte> bytes = file.read(*file.find("tokens"));
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::int64_t)) {
      std::int64_t token = 0;
      std::memcpy(&token, bytes.data() + at, sizeof token);
      one.tokens.push_back(static_cast<Index>(token));
    }
    cases.push_back(std::move(one));
  }
  std::sort(cases.begin(), cases.end(), [](const Golden& a, const Golden& b) { return a.directory < b.directory; });
  REQUIRE(cases.size() >= 16);
  return cases;
}

Golden golden_case(const std::string& name) {
  for (Golden& golden : golden_cases()) {
    if (golden.directory.filename() == name) return golden;
  }
  FAIL("no golden case " << name);
  return {};
}

Matrix<double> logits(const fs::path& directory, const std::vector<Index>& tokens, const ForwardOptions& options = {}) {
  const Model opened(directory);
  return Decoder(opened).logits(tokens, options);
}

ForwardOptions in_double() {
  ForwardOptions options;
  options.float_tables = false;
  return options;
}

double relative_distance(const Matrix<double>& a, const Matrix<double>& b) { return (a - b).norm() / b.norm(); }

/// Roundings one behind the other on the longest way from a token to a logit, in two computations: per layer two norms,
/// five dot products (input side, scores, values, output side, and the two of the MLP), rotary angles, softmax and
/// activation of a few each, two residual sums; then the last norm and the head. A bound without a condition number, so
/// it also claims that these models are well conditioned.
double rounding_bound(const Model& opened, Index tokens) {
  const model::Dimensions& size = opened.graph().size;
  const Index norm = size.hidden + 8;
  const Index layer = 2 * norm + size.head_dim + 8 + size.hidden + 8 + size.head_dim + tokens + 8 + tokens +
                      size.heads * size.head_dim + 1 + size.hidden + 8 + size.intermediate + 1;
  return 2 * gamma_n(static_cast<double>(size.layers * layer + norm + size.hidden), 0x1p-53);
}

}  // namespace

TEST_CASE("decoder: logits of transformers in double, to the last digits", "[model]") {
  for (const Golden& golden : golden_cases()) {
    const double distance = relative_distance(logits(golden.directory, golden.tokens, in_double()), golden.exact);
    const double bound = rounding_bound(Model(golden.directory), static_cast<Index>(golden.tokens.size()));
    INFO(golden.directory.filename() << ": " << distance << ", bound " << bound);
    CHECK(distance <= bound);
    CHECK(bound < 1e-12);
  }
}

TEST_CASE("decoder: logits of the stock classes, whose norms, rotary tables and softmax are in float", "[model]") {
  for (const Golden& golden : golden_cases()) {
    const double distance = relative_distance(logits(golden.directory, golden.tokens), golden.stock);
    INFO(golden.directory.filename() << ": " << distance);
    CHECK(distance <= 1e-5);
    // Otherwise the two golden tables would be one.
    CHECK(relative_distance(golden.stock, golden.exact) > 1e-9);
  }
}

TEST_CASE("decoder: float tables are not the double ones", "[model]") {
  for (const Golden& golden : golden_cases()) {
    INFO(golden.directory.filename());
    CHECK(relative_distance(logits(golden.directory, golden.tokens),
                            logits(golden.directory, golden.tokens, in_double())) > 1e-10);
  }
}

TEST_CASE("decoder: every tensor matters", "[model]") {
  for (const Golden& golden : golden_cases()) {
    const Model opened(golden.directory);
    const Decoder decoder(opened);
    for (const model::Param& param : opened.graph().params) {
      ForwardOptions options = in_double();
      options.edit = [&](const std::string& name, Index, Matrix<double>& rows) {
        if (name == param.name) rows *= 0.5;
      };
      INFO(golden.directory.filename() << ": " << param.name);
      // A bias of the keys adds the same score for every position, which softmax ignores, but for the rotation of
      // positions.
      CHECK(relative_distance(decoder.logits(golden.tokens, options), golden.exact) > 1e-6);
    }
  }
}

TEST_CASE("decoder: the wrong variant of each part is far off", "[model]") {
  struct Row {
    std::string golden;
    std::function<void(io::Json&)> wrong;
  };
  for (const Row& row : std::vector<Row>{
           {"llama", [](io::Json& c) { c["rope_parameters"]["partial_rotary_factor"] = 0.67; }},
           {"llama", [](io::Json& c) { c["rope_parameters"]["rope_theta"] = 500.0; }},
           {"llama", [](io::Json& c) { c["rms_norm_eps"] = 1e-2; }},
           {"llama_partial_rotary", [](io::Json& c) { c["rope_parameters"].erase("partial_rotary_factor"); }},
           {"llama_tied_llama3_rope",
            [](io::Json& c) {
              c["rope_parameters"] = {{"rope_theta", 100.0}, {"rope_type", "default"}};
            }},
           {"llama_tied_llama3_rope",
            [](io::Json& c) { c["rope_parameters"]["original_max_position_embeddings"] = 64; }},
           {"llama_tied_llama3_rope", [](io::Json& c) { c["rope_parameters"]["low_freq_factor"] = 2.0; }},
           {"llama_tied_llama3_rope", [](io::Json& c) { c["rope_parameters"]["high_freq_factor"] = 8.0; }},
           {"llama_tied_llama3_rope", [](io::Json& c) { c["rope_parameters"]["factor"] = 2.0; }},
           {"mistral", [](io::Json& c) { c["rope_parameters"]["factor"] = 1.0; }},
           {"qwen2_tied_old_keys", [](io::Json& c) { c["rope_theta"] = 100.0; }},
           {"qwen2_tied_old_keys",
            [](io::Json& c) {
              c["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
            }},
           {"qwen3", [](io::Json& c) { c["rms_norm_eps"] = 1e-2; }},
           {"apertus_xielu", [](io::Json& c) { c["hidden_act"] = "relu2"; }},
           {"arcee_squared_relu", [](io::Json& c) { c["hidden_act"] = "relu"; }},
           {"ernie4_5_interleaved", [](io::Json& c) { c["hidden_act"] = "gelu"; }},
           {"gemma", [](io::Json& c) { c["hidden_act"] = "silu"; }},
           {"glm_partial_interleaved", [](io::Json& c) { c["rope_parameters"]["partial_rotary_factor"] = 1.0; }},
           {"granite_multipliers", [](io::Json& c) { c["embedding_multiplier"] = 1.0; }},
           {"granite_multipliers", [](io::Json& c) { c["residual_multiplier"] = 1.0; }},
           {"granite_multipliers", [](io::Json& c) { c["attention_multiplier"] = 0.4; }},
           {"granite_multipliers", [](io::Json& c) { c["logits_scaling"] = 1.0; }},
           {"hunyuan_norms_after_rope", [](io::Json& c) { c["rope_parameters"]["alpha"] = 5.0; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["llama_4_scaling_beta"] = 0.0; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["mscale"] = 0.5; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["beta_fast"] = 0.5; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["beta_slow"] = 0.3; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["truncate"] = false; }},
           {"ministral3_yarn", [](io::Json& c) { c["rope_parameters"]["rope_type"] = "default"; }},
           {"phi3_fused_longrope", [](io::Json& c) { c["original_max_position_embeddings"] = 24; }},
           {"phi3_fused_longrope", [](io::Json& c) { c["rope_parameters"]["attention_factor"] = 1.0; }},
           {"phi3_fused_longrope", [](io::Json& c) { c["rope_parameters"]["long_factor"][1] = 1.4; }},
           {"smollm3_layer_without_rope", [](io::Json& c) { c["no_rope_layers"] = {1, 1}; }},
           {"smollm3_layer_without_rope", [](io::Json& c) { c.erase("no_rope_layers"); }}}) {
    const TempDir temp;
    const Golden golden = golden_case(row.golden);
    fs::copy(golden.directory, temp / "m");
    edit_config(temp / "m", row.wrong);
    INFO(row.golden << " with " << io::read_json_file(temp / "m" / "config.json").dump());
    CHECK(relative_distance(logits(temp / "m", golden.tokens, in_double()), golden.exact) > 1e-5);
  }
}

TEST_CASE("decoder: two ways to say the same", "[model]") {
  struct Row {
    std::string golden;
    std::function<void(io::Json&)> otherwise;
  };
  for (const Row& row :
       std::vector<Row>{{"arcee_squared_relu", [](io::Json& c) { c.erase("hidden_act"); }},
                        {"gemma", [](io::Json& c) { c["hidden_act"] = "gelu"; }},
                        {"glm_partial_interleaved",
                         [](io::Json& c) {
                           c["rope_theta"] = c["rope_parameters"]["rope_theta"];
                           c.erase("rope_parameters");
                         }},
                        {"granite_multipliers", [](io::Json& c) { c["use_bidirectional_attention"] = false; }},
                        {"ministral3_yarn",
                         [](io::Json& c) {
                           io::Json& rotary = c["rope_parameters"];
                           rotary["type"] = rotary["rope_type"];
                           rotary.erase("rope_type");
                           rotary["attention_factor"] = (0.1 * std::log(8.0) + 1) / (0.05 * std::log(8.0) + 1);
                         }},
                        {"phi3_fused_longrope",
                         [](io::Json& c) {
                           c["rope_parameters"]["original_max_position_embeddings"] = 16;
                           c.erase("original_max_position_embeddings");
                           c["rope_parameters"]["factor"] = c["max_position_embeddings"].get<double>() / 16;
                         }},
                        {"smollm3_layer_without_rope", [](io::Json& c) {
                           c["rope_scaling"] = nullptr;
                           c["no_rope_layers"] = {0, 7, 0};
                         }}}) {
    const TempDir temp;
    const Golden golden = golden_case(row.golden);
    fs::copy(golden.directory, temp / "m");
    edit_config(temp / "m", row.otherwise);
    INFO(row.golden << " with " << io::read_json_file(temp / "m" / "config.json").dump());
    CHECK(relative_distance(logits(temp / "m", golden.tokens, in_double()), golden.exact) < 1e-12);
  }
}

TEST_CASE("decoder: every second layer without rotation, where config.json gives the distance", "[model]") {
  const Golden golden = golden_case("smollm3_layer_without_rope");
  const TempDir temp;
  fs::copy(golden.directory, temp / "m");
  edit_config(temp / "m", [](io::Json& c) { c["no_rope_layers"] = {1, 0}; });
  const Matrix<double> listed = logits(temp / "m", golden.tokens, in_double());
  edit_config(temp / "m", [](io::Json& c) {
    c.erase("no_rope_layers");
    c["no_rope_layer_interval"] = 2;
  });
  CHECK(same_bits(logits(temp / "m", golden.tokens, in_double()), listed));
}

TEST_CASE("decoder: the same bits for any number of threads, every norm of the stream is shown", "[model]") {
  const Golden golden = golden_case("llama");
  ForwardOptions options;
  options.threads = 1;
  const Matrix<double> alone = logits(golden.directory, golden.tokens, options);
  options.threads = 3;
  std::vector<std::string> norms;
  options.on_norm_input = [&](const model::Node& norm, const Matrix<double>& x) {
    norms.push_back(norm.module);
    CHECK(x.rows() == static_cast<Index>(golden.tokens.size()));
  };
  CHECK(same_bits(logits(golden.directory, golden.tokens, options), alone));
  CHECK(norms == std::vector<std::string>{"model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm",
                                          "model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm",
                                          "model.norm"});
}

TEST_CASE("decoder: causal: a later token changes nothing before it", "[model]") {
  const Golden golden = golden_case("llama");
  const Index prefix = static_cast<Index>(golden.tokens.size()) - 2;
  std::vector<Index> other = golden.tokens;
  other.back() = (other.back() + 1) % 32;
  const Matrix<double> a = logits(golden.directory, golden.tokens);
  const Matrix<double> b = logits(golden.directory, other);
  CHECK(relative_distance(b.topRows(prefix), a.topRows(prefix)) <= rounding_bound(Model(golden.directory), prefix));
  CHECK(relative_distance(b.bottomRows(1), a.bottomRows(1)) > 1e-3);
}

TEST_CASE("decoder: what it does not have is refused by name", "[model]") {
  struct Row {
    std::string key;
    io::Json value;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{{"hidden_act", "mish", "mish"},
                                         {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}, "dynamic"},
                                         {"rope_scaling", {{"rope_type", "dynamic"}, {"alpha", 4.0}}, "dynamic"},
                                         {"partial_rotary_factor", 0.26, "cannot rotate in pairs"},
                                         {"partial_rotary_factor", 1.5, "cannot rotate in pairs"},
                                         {"use_bidirectional_attention", true, "causal"},
                                         {"hidden_act", "xielu", "needs the number"},
                                         {"sliding_window", 2, "sliding window"}}) {
    const TempDir temp;
    TinyModel spec = tiny("llama");
    spec.edit_config = [&](io::Json& config) { config[row.key] = row.value; };
    const Model opened(write_model(temp / "m", spec));
    INFO(row.key);
    const std::vector<Index> tokens{1, 2, 3};
    CHECK_THROWS_AS(Decoder(opened).logits(tokens), RefusedError);
    CHECK_THROWS_WITH(Decoder(opened).logits(tokens), has_text(row.says));
  }
  for (const Row& row : std::vector<Row>{
           {"apertus_xielu", nullptr, "depends on the version"},
           {"ministral3_yarn", nullptr, "depends on the version"},
           {"smollm3_layer_without_rope", {1}, "0 and 1 for every layer"},
           {"phi3_fused_longrope", {{"rope_type", "longrope"}, {"long_factor", {1, 2}}}, "positive numbers"}}) {
    const Golden golden = golden_case(row.key);
    const TempDir temp;
    fs::copy(golden.directory, temp / "m");
    edit_config(temp / "m", [&](io::Json& config) {
      config[row.value.is_array() && row.value.size() == 1 ? "no_rope_layers" : "rope_parameters"] = row.value;
    });
    INFO(row.key);
    CHECK_THROWS_WITH(logits(temp / "m", golden.tokens), has_text(row.says));
  }
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  CHECK_THROWS_AS(Decoder(opened).logits(std::vector<Index>{72}), FormatError);
  CHECK_THROWS_AS(Decoder(opened).logits(std::vector<Index>{-1}), FormatError);
}
