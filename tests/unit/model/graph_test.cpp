// SPDX-License-Identifier: MIT
// The families' tables against real checkpoints, what is refused when a model opens, and the computed verdict.
#include <algorithm>
#include <set>

#include <rmsfold/model/sites.hpp>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using model::Model;

const fs::path golden = fs::path(RMSFOLD_SOURCE_DIR) / "tests/data/golden";

std::vector<std::string> golden_cases() {
  std::vector<std::string> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(golden))
    cases.push_back(entry.path().filename().string());
  std::sort(cases.begin(), cases.end());
  return cases;
}

std::set<std::string> params_of(const io::Json& config) {
  std::set<std::string> names;
  for (const model::Param& param : model::build_graph(model::Config(config, "config.json")).params)
    names.insert(param.name);
  return names;
}

io::Json small_config(const std::string& family) {
  return {{"model_type", family},     {"num_hidden_layers", 1}, {"hidden_size", 8},
          {"intermediate_size", 12},  {"vocab_size", 16},       {"num_attention_heads", 2},
          {"num_key_value_heads", 1}, {"head_dim", 6},          {"rms_norm_eps", 1e-6}};
}

/// The message of what opening throws; fails the test when it is not an E.
template <class E>
std::string refusal(const fs::path& directory, const model::OpenOptions& options = {}) {
  try {
    const Model opened(directory, options);
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    FAIL_CHECK("another exception: " << error.what());
    return "";
  }
  FAIL_CHECK("it was accepted");
  return "";
}

template <class E>
std::string refusal(const TinyModel& spec, const model::OpenOptions& options = {}) {
  const TempDir temp;
  return refusal<E>(write_model(temp / "m", spec), options);
}

TinyModel with_config(const std::function<void(io::Json&)>& edit, const std::string& family = "llama") {
  TinyModel spec = tiny(family);
  spec.edit_config = edit;
  return spec;
}

TinyModel with_tensors(const std::function<void(std::vector<TinyTensor>&)>& edit) {
  TinyModel spec = tiny("llama");
  spec.edit_tensors = edit;
  return spec;
}

TinyTensor& named(std::vector<TinyTensor>& tensors, const std::string& name) {
  for (TinyTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::logic_error("no tensor " + name);
}

}  // namespace

TEST_CASE("families: the tables have exactly the tensors that transformers saved", "[model]") {
  const std::vector<std::string> cases = golden_cases();
  REQUIRE(cases.size() >= 6);
  for (const std::string& name : cases) {
    INFO(name);
    const Model opened(golden / name);
    const std::vector<std::string> stored = opened.checkpoint().tensor_names();
    std::set<std::string> expected(stored.begin(), stored.end());
    if (opened.head_is_tied()) expected.insert("lm_head.weight");
    std::erase_if(expected, [](const std::string& tensor) { return tensor.find(".act_fn.") != std::string::npos; });
    std::set<std::string> params;
    for (const model::Param& param : opened.graph().params) params.insert(param.name);
    CHECK(params == expected);
    for (const model::Param& param : opened.graph().params) CHECK(opened.info(param.name).shape == param.shape);
  }
}

TEST_CASE("families: every bias flag, and only where the family has it", "[model]") {
  const auto has_bias = [](const io::Json& config, const std::string& module) {
    return params_of(config).contains("model.layers.0." + module + ".bias");
  };
  struct Row {
    std::string family, flag;
    bool query, output, mlp;
  };
  // Flag by flag, as the stock classes pass them to their linear layers.
  for (const Row& row : std::vector<Row>{{"llama", "", false, false, false},
                                         {"llama", "attention_bias", true, true, false},
                                         {"llama", "mlp_bias", false, false, true},
                                         {"mistral", "attention_bias", false, false, false},
                                         {"mistral", "mlp_bias", false, false, false},
                                         {"qwen2", "", true, false, false},
                                         {"qwen2", "attention_bias", true, false, false},
                                         {"qwen3", "", false, false, false},
                                         {"qwen3", "attention_bias", true, true, false}}) {
    INFO(row.family << " " << row.flag);
    io::Json config = small_config(row.family);
    if (!row.flag.empty()) config[row.flag] = true;
    for (const char* module : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
      CHECK(has_bias(config, module) == row.query);
    CHECK(has_bias(config, "self_attn.o_proj") == row.output);
    for (const char* module : {"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
      CHECK(has_bias(config, module) == row.mlp);
    CHECK(params_of(config).contains("model.layers.0.self_attn.q_norm.weight") == (row.family == "qwen3"));
  }
}

TEST_CASE("config: null means absent, as in transformers", "[model]") {
  io::Json config = small_config("llama");
  config["head_dim"] = nullptr;
  config["num_key_value_heads"] = nullptr;
  config["tie_word_embeddings"] = nullptr;
  const model::Graph graph = model::build_graph(model::Config(config, "config.json"));
  CHECK(graph.size.head_dim == 4);
  CHECK(graph.size.kv_heads == 2);
  CHECK_FALSE(graph.tied);
}

TEST_CASE("config: numbers that cannot be are refused with key and value", "[model]") {
  struct Row {
    std::string key;
    io::Json value;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{{"hidden_size", 0, "\"hidden_size\" must be a positive integer, not 0"},
                                         {"hidden_size", -8, "positive integer"},
                                         {"hidden_size", 8.5, "positive integer"},
                                         {"hidden_size", "8", "positive integer"},
                                         {"hidden_size", 1e30, "positive integer"},
                                         {"hidden_size", 18446744073709551615u, "positive integer"},
                                         {"hidden_size", nullptr, "\"hidden_size\" is missing"},
                                         {"num_hidden_layers", 100001, "layers"},
                                         {"vocab_size", std::int64_t{1} << 40, "positive integer"},
                                         {"rms_norm_eps", -1e-6, "negative"},
                                         {"rms_norm_eps", "1e-6", "a finite number"},
                                         {"rms_norm_eps", nullptr, "is missing"},
                                         {"num_key_value_heads", 3, "evenly"},
                                         {"attention_bias", 1, "true or false"},
                                         {"tie_word_embeddings", "yes", "true or false"},
                                         {"model_type", 3, "a string"},
                                         {"model_type", nullptr, "\"model_type\" is missing"}}) {
    INFO(row.key << " = " << row.value.dump());
    io::Json config = small_config("llama");
    config[row.key] = row.value;
    CHECK_THROWS_WITH(model::build_graph(model::Config(config, "config.json")),
                      has_text(row.says) && has_text("config.json"));
  }
  io::Json config = small_config("llama");
  config.erase("head_dim");
  config["num_attention_heads"] = 3;
  config["num_key_value_heads"] = 3;
  CHECK_THROWS_WITH(model::build_graph(model::Config(config, "config.json")),
                    has_text("no \"head_dim\"") && has_text("no multiple of 3"));
}

TEST_CASE("config: products of absurd numbers are refused, not wrapped round", "[model]") {
  io::Json config = small_config("llama");
  config["num_attention_heads"] = std::int64_t{1} << 39;
  config["num_key_value_heads"] = std::int64_t{1} << 39;
  config["head_dim"] = std::int64_t{1} << 39;
  CHECK_THROWS_AS(model::build_graph(model::Config(config, "config.json")), Error);
}

TEST_CASE("opening: models that are not known are refused by name (F12)", "[model]") {
  CHECK_THAT(refusal<RefusedError>(with_config([](io::Json& c) { c["model_type"] = "gpt9"; })),
             has_text("gpt9") && has_text("llama") && has_text("qwen3"));
  CHECK_THAT(
      refusal<RefusedError>(with_config([](io::Json& c) { c["architectures"] = {"LlamaForSequenceClassification"}; })),
      has_text("LlamaForSequenceClassification") && has_text("LlamaForCausalLM"));
  CHECK_THAT(refusal<RefusedError>(with_config([](io::Json& c) {
               c["architectures"] = {"LlamaForCausalLM", "LlamaModel"};
             })),
             has_text("LlamaModel"));
  CHECK_THAT(refusal<RefusedError>(with_config([](io::Json& c) { c["architectures"] = {"MistralForCausalLM"}; })),
             has_text("MistralForCausalLM"));
  CHECK_THAT(refusal<RefusedError>(with_config([](io::Json& c) {
               c["quantization_config"] = {{"quant_method", "fp8"}};
             })),
             has_text("quantization_config") && has_text("--dequantize"));
}

TEST_CASE("opening: custom code needs --trust-config", "[model]") {
  const TinyModel spec = with_config([](io::Json& c) { c["auto_map"] = {{"AutoModelForCausalLM", "modeling_x.X"}}; });
  CHECK_THAT(refusal<RefusedError>(spec), has_text("auto_map") && has_text("--trust-config"));
  const TempDir temp;
  model::OpenOptions options;
  options.trust_config = true;
  CHECK_NOTHROW(Model(write_model(temp / "m", spec), options));
}

TEST_CASE("opening: a tensor that is missing, unknown, of another shape or type is named (F12, E7)", "[model]") {
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  CHECK_THAT(refusal<FormatError>(with_tensors([&](std::vector<TinyTensor>& t) {
               std::erase_if(t, [&](const TinyTensor& tensor) { return tensor.name == down; });
             })),
             has_text(down) && has_text("missing") && has_text("[48, 40]"));
  CHECK_THAT(
      refusal<RefusedError>(with_tensors([](std::vector<TinyTensor>& t) {
        t.push_back({"model.layers.0.mlp.shared_expert_gate.weight", "F32", {1, 48}, std::vector<double>(48, 1.0)});
      })),
      has_text("model.layers.0.mlp.shared_expert_gate.weight") && has_text("nothing was changed"));
  CHECK_THAT(refusal<RefusedError>(with_config([](io::Json& c) { c["attention_bias"] = false; })),
             has_text("self_attn.") && has_text(".bias"));
  CHECK_THAT(refusal<FormatError>(with_tensors([&](std::vector<TinyTensor>& t) {
               named(t, down).shape = {40, 48};
             })),
             has_text(down) && has_text("[40, 48]") && has_text("[48, 40]"));
  CHECK_THAT(refusal<RefusedError>(with_tensors([&](std::vector<TinyTensor>& t) { named(t, down).dtype = "F8_E4M3"; })),
             has_text(down) && has_text("F8_E4M3") && has_text("de-quantise"));
  CHECK_THAT(refusal<RefusedError>(
                 with_tensors([&](std::vector<TinyTensor>& t) { named(t, "model.norm.weight").dtype = "I32"; })),
             has_text("model.norm.weight") && has_text("I32"));
}

TEST_CASE("opening: rotary tables of old checkpoints are left alone", "[model]") {
  const TempDir temp;
  TinyModel spec = with_tensors([](std::vector<TinyTensor>& t) {
    t.push_back({"model.layers.1.self_attn.rotary_emb.inv_freq", "F32", {6}, std::vector<double>(6, 0.5)});
  });
  const Model opened(write_model(temp / "m", spec));
  CHECK(opened.param_index("model.layers.1.self_attn.rotary_emb.inv_freq") == -1);
  // One layer further there is no such layer.
  spec.edit_tensors = [](std::vector<TinyTensor>& t) {
    t.push_back({"model.layers.2.self_attn.rotary_emb.inv_freq", "F32", {6}, std::vector<double>(6, 0.5)});
  };
  CHECK_THAT(refusal<RefusedError>(spec), has_text("model.layers.2.self_attn.rotary_emb.inv_freq"));
}

TEST_CASE("opening: tie flag and stored head must agree, or the user decides (B7)", "[model]") {
  const TempDir temp;
  model::OpenOptions stored, tied;
  stored.head = model::HeadChoice::stored;
  tied.head = model::HeadChoice::tied;

  // The flag says untied, and there is no head.
  TinyModel spec = tiny("llama");
  spec.tied = true;
  spec.edit_config = [](io::Json& c) { c["tie_word_embeddings"] = false; };
  const fs::path headless = write_model(temp / "headless", spec);
  CHECK_THAT(refusal<FormatError>(headless),
             has_text("tie_word_embeddings") && has_text("lm_head.weight") && has_text("--head tied"));
  CHECK_THAT(refusal<FormatError>(headless, stored), has_text("lm_head.weight"));
  CHECK(Model(headless, tied).head_is_tied());

  // The flag says tied, and a different head is stored.
  spec = tiny("llama");
  spec.edit_config = [](io::Json& c) { c["tie_word_embeddings"] = true; };
  const fs::path two = write_model(temp / "two", spec);
  CHECK_THAT(refusal<FormatError>(two), has_text("differs") && has_text("--head stored or --head tied"));
  CHECK_FALSE(Model(two, stored).head_is_tied());
  CHECK(Model(two, tied).head_is_tied());
  CHECK(Model(two, tied).stored_head_is_stale());

  // The flag says tied, and the stored head is the same.
  spec.edit_tensors = [](std::vector<TinyTensor>& t) {
    named(t, "lm_head.weight").values = named(t, "model.embed_tokens.weight").values;
  };
  const Model same(write_model(temp / "same", spec));
  CHECK(same.head_is_tied());
  CHECK_FALSE(same.stored_head_is_stale());
}

TEST_CASE("verdict: signed permutations as stored, any rotation after folding, for pre-norm decoders", "[model]") {
  // architectures.md, section 1: R yes, T any signed permutation.
  for (const std::string& name : golden_cases()) {
    INFO(name);
    const Model opened(golden / name);
    const std::vector<model::Site> sites = model::find_sites(opened);
    CHECK(sites.size() == static_cast<std::size_t>(2 * opened.graph().size.layers + 1));
    const model::Verdict verdict = model::judge(opened.graph(), sites);
    CHECK(verdict.as_stored == Gauge::signed_permutation);
    CHECK(verdict.after_folding == Gauge::orthogonal);
    CHECK(verdict.restrictions.size() == sites.size());
  }
}

TEST_CASE("verdict: a constant gain counts as folded", "[model]") {
  for (const std::string& family : tiny_families()) {
    INFO(family);
    const TempDir temp;
    TinyModel spec = tiny(family);
    spec.gain = -2.5;
    const fs::path directory = write_model(temp / "m", spec);
    const Model opened(directory);
    CHECK(model::judge(opened.graph(), model::find_sites(opened)).as_stored == Gauge::orthogonal);

    std::vector<double> gain = tensor_values(directory, "model.norm.weight");
    gain[3] *= 1.5;
    set_tensor_values(directory, "model.norm.weight", gain);
    const model::Verdict verdict = model::judge(opened.graph(), model::find_sites(opened));
    CHECK(verdict.as_stored == Gauge::signed_permutation);
    REQUIRE(verdict.restrictions.size() == 1);
    CHECK(verdict.restrictions[0].node == "model.norm");
  }
}

TEST_CASE("verdict: it is the intersection over nodes (A6)", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  std::vector<model::Site> sites = model::find_sites(opened);
  sites[1].why_not_foldable = "its output is added to the residual stream";  // as behind a post-norm
  const model::Verdict stuck = model::judge(opened.graph(), sites);
  CHECK(stuck.as_stored == Gauge::signed_permutation);
  CHECK(stuck.after_folding == Gauge::signed_permutation);
  CHECK_THAT(stuck.restrictions[1].why, has_text("cannot be folded"));

  // A pointwise function that reads the stream itself.
  model::Family family = *opened.graph().family;
  for (model::Row& row : family.rows) {
    if (row.op == model::Op::gated_activation) row.reads = {std::string(model::residual), "up.{i}"};
  }
  const model::Graph graph = model::build_graph(family, opened.config());
  CHECK(model::judge(graph, {}).after_folding == Gauge::identity);
}

TEST_CASE("sites: each norm with all of its readers, and no norm inside heads", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("qwen3")));
  const auto readers = [](const model::Site& site) {
    std::vector<std::string> names;
    for (const model::Node* reader : site.readers)
      names.push_back(reader->module.substr(reader->module.rfind('.') + 1));
    return names;
  };
  const std::vector<model::Site> sites = model::find_sites(opened);
  REQUIRE(sites.size() == 5);
  CHECK(sites[2].norm->module == "model.layers.1.input_layernorm");
  CHECK(readers(sites[2]) == std::vector<std::string>{"q_proj", "k_proj", "v_proj"});
  CHECK(sites[3].norm->module == "model.layers.1.post_attention_layernorm");
  CHECK(readers(sites[3]) == std::vector<std::string>{"gate_proj", "up_proj"});
  CHECK(sites[4].norm->module == "model.norm");
  CHECK(readers(sites[4]) == std::vector<std::string>{"lm_head"});
  for (const model::Site& site : sites) CHECK(site.is_foldable());
}
