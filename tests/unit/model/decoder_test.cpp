// SPDX-License-Identifier: MIT
// The reference forward against logits that transformers computed.
#include <algorithm>
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
  REQUIRE(cases.size() >= 6);
  return cases;
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
           {"qwen3", [](io::Json& c) { c["rms_norm_eps"] = 1e-2; }}}) {
    const TempDir temp;
    const std::vector<Golden> cases = golden_cases();
    const auto golden = std::find_if(cases.begin(), cases.end(),
                                     [&](const Golden& one) { return one.directory.filename() == row.golden; });
    REQUIRE(golden != cases.end());
    fs::copy(golden->directory, temp / "m");
    edit_config(temp / "m", row.wrong);
    INFO(row.golden << " with " << io::read_json_file(temp / "m" / "config.json").dump());
    CHECK(relative_distance(logits(temp / "m", golden->tokens, in_double()), golden->exact) > 1e-5);
  }
}

TEST_CASE("decoder: the same bits for any number of threads, every norm of the stream is shown", "[model]") {
  const Golden golden = golden_cases().front();
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
  const Golden golden = golden_cases().front();
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
  for (const Row& row : std::vector<Row>{{"hidden_act", "gelu", "gelu"},
                                         {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}, "yarn"},
                                         {"partial_rotary_factor", 0.26, "cannot rotate in pairs"},
                                         {"partial_rotary_factor", 1.5, "cannot rotate in pairs"},
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
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  CHECK_THROWS_AS(Decoder(opened).logits(std::vector<Index>{72}), FormatError);
  CHECK_THROWS_AS(Decoder(opened).logits(std::vector<Index>{-1}), FormatError);
}
