// SPDX-License-Identifier: MIT
// Verification must fail, and name the tensor and the mistake, for every single step that is left out, doubled or
// turned round.
#include <cmath>

#include "support/catch.hpp"
#include "support/model_run.hpp"
#include "support/random_layer.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;

const std::string embedding = "model.embed_tokens.weight";
const std::string head = "lm_head.weight";

bool is_norm(const std::string& tensor) {
  return tensor.find("layernorm.weight") != std::string::npos || tensor == "model.norm.weight";
}

std::vector<std::string> readers_of(const std::string& norm) {
  if (norm == "model.norm.weight") return {head};
  const std::string layer = norm.substr(0, norm.rfind('.', norm.size() - 8) + 1);
  if (norm.find("input_layernorm") != std::string::npos) {
    return {layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight", layer + "self_attn.v_proj.weight"};
  }
  return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
}

/// Bytes of a tensor; of a tied head, those of the embedding.
std::string bytes_in(const fs::path& model, const std::string& tensor) {
  return tensor_bytes(model, tensor == head && !has_tensor(model, head) ? embedding : tensor);
}

std::vector<std::string> norms_of(const fs::path& model) {
  std::vector<std::string> norms;
  for (const std::string& name : tensor_names(model)) {
    if (is_norm(name)) norms.push_back(name);
  }
  return norms;
}

/// A model, what a step makes of it, and what usual mistakes make of it: each made by steps that are right, from an
/// input that is not.
class Workshop {
 public:
  Workshop(const TinyModel& spec, std::string words) : words_(std::move(words)), a(write_model(temp_ / "a", spec)) {
    const model::Step wanted = step(words_);
    run_step(a, b, wanted);
  }

  /// The same step from a model whose gains are 1: what is left of it when nothing is folded.
  fs::path without_fold() {
    const fs::path input = copy(a, "neutral");
    for (const std::string& norm : norms_of(input))
      set_tensor_values(input, norm, std::vector<double>(tensor_values(input, norm).size(), 1.0));
    return made("without-fold", input, step(words_));
  }
  /// Folded, not rotated.
  fs::path without_rotation() { return made("without-rotation", a, step("fold")); }
  /// Rotated twice.
  fs::path rotated_twice() { return made("twice", b, step(words_)); }
  /// Rotated by the transpose.
  fs::path transposed() { return made("transposed", a, step(words_ + " --inverse")); }
  /// Folded twice.
  fs::path folded_twice() {
    const fs::path input = made("folded", a, step("fold"));
    for (const std::string& norm : norms_of(a)) set_tensor_bytes(input, norm, tensor_bytes(a, norm));
    return made("folded-twice", input, step(words_));
  }

  /// Puts a tensor of another directory into B, verifies, and puts back what was there. Nothing, when they do not
  /// differ.
  std::optional<model::VerifyReport> with(const std::string& tensor, const fs::path& from) {
    return with_bytes(tensor, bytes_in(from, tensor));
  }
  std::optional<model::VerifyReport> with_bytes(const std::string& tensor, const std::string& bytes) {
    const std::string right = tensor_bytes(b, tensor);
    if (bytes == right) return std::nullopt;
    set_tensor_bytes(b, tensor, bytes);
    std::optional<model::VerifyReport> report = run_verify(a, b);
    set_tensor_bytes(b, tensor, right);
    return report;
  }
  model::VerifyReport with_values(const std::string& tensor, const std::vector<double>& values) {
    const std::string right = tensor_bytes(b, tensor);
    set_tensor_values(b, tensor, values);
    model::VerifyReport report = run_verify(a, b);
    set_tensor_bytes(b, tensor, right);
    return report;
  }

  fs::path copy(const fs::path& from, const std::string& name) {
    fs::copy(from, temp_ / name);
    return temp_ / name;
  }

 private:
  fs::path made(const std::string& name, const fs::path& from, const model::Step& how) {
    const fs::path to = temp_ / name;
    model::RunOptions options;
    options.again = true;
    if (!fs::exists(to)) run_step(from, to, how, options);
    return to;
  }

  TempDir temp_;
  std::string words_;

 public:
  fs::path a;
  fs::path b = temp_ / "b";
};

/// Fails unless the report is "not equal", with this tensor found, alone, and with this diagnosis.
void check_found(const std::optional<model::VerifyReport>& report, const std::string& tensor,
                 const std::string& diagnosis) {
  REQUIRE(report.has_value());
  INFO(tensor << ", expected: " << diagnosis << "\n" << text_of(*report));
  CHECK_FALSE(report->equal());
  CHECK(report->findings.size() == 1);
  CHECK(finds(*report, tensor, diagnosis));
}

}  // namespace

TEST_CASE("mutation: every step of every tensor, left out, doubled or turned round, is found and named (A5)",
          "[model]") {
  for (const std::string& family : tiny_families()) {
    for (const char* words : {"hadamard --heads", "orthogonal", "signed-permutation --fold"}) {
      if (family != "llama" && std::string(words) == "orthogonal") continue;
      TinyModel spec = tiny(family);
      spec.tied = family == "qwen2";
      spec.dtype = family == "mistral" ? "BF16" : "F32";
      spec.norm_dtype = "F32";
      Workshop shop(spec, words);
      const fs::path unfolded = shop.without_fold();
      const fs::path unrotated = shop.without_rotation();
      const fs::path twice = shop.rotated_twice();
      const fs::path transposed = shop.transposed();
      const fs::path folded_twice = shop.folded_twice();

      std::size_t mutations = 0;
      for (const std::string& tensor : tensor_names(shop.b)) {
        INFO(family << " " << words << ": " << tensor);
        if (is_norm(tensor)) {
          check_found(shop.with(tensor, shop.a), tensor, "not reset to 1");
          ++mutations;
          continue;
        }
        // Left out altogether; the head of a tied model is then the embedding.
        const std::optional<model::VerifyReport> none = shop.with(tensor, shop.a);
        if (none) {
          check_found(none, tensor, "was not");  // merged in, folded in, or transformed at all
          ++mutations;
        } else {
          // Nothing was planned for it; then it must at least not be changed.
          std::vector<double> values = tensor_values(shop.b, tensor);
          values[1] *= 1 + 1.0 / 64;
          check_found(shop.with_values(tensor, values), tensor,
                      "changed, although nothing that was planned concerns it");
          ++mutations;
          continue;
        }
        const auto is_more_than_one_factor = [&](const fs::path& variant) {
          return bytes_in(variant, tensor) != bytes_in(shop.a, tensor);
        };
        const auto variant = [&](const fs::path& from, const std::string& diagnosis) {
          if (bytes_in(from, tensor) == tensor_bytes(shop.b, tensor)) return;
          check_found(shop.with(tensor, from), tensor, diagnosis);
          ++mutations;
        };
        const bool reads_norm = bytes_in(unfolded, tensor) != tensor_bytes(shop.b, tensor);
        if (reads_norm && is_more_than_one_factor(unfolded)) {
          variant(unfolded, spec.tied && tensor == head ? "copy of the embedding" : "was not folded in");
        }
        if (is_more_than_one_factor(unrotated)) variant(unrotated, "was not merged in");
        if (reads_norm) variant(folded_twice, "was folded in twice");
        variant(twice, "was merged in twice");
        variant(transposed, "from the wrong side (its transpose)");
      }
      INFO(family << " " << words << ": " << mutations << " mutations");
      CHECK(mutations > 2 * tensor_names(shop.b).size());
      CHECK(run_verify(shop.a, shop.b).equal());  // all of it was put back
    }
  }
}

TEST_CASE("mutation: a fold left out, doubled, or of another norm's gain", "[model]") {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) {
    TinyModel spec = tiny("llama");
    spec.dtype = dtype;
    Workshop shop(spec, "fold");
    const fs::path twice = shop.folded_twice();
    for (const std::string& norm : norms_of(shop.a)) {
      check_found(shop.with(norm, shop.a), norm, "not reset to 1");
      for (const std::string& reader : readers_of(norm)) {
        INFO(dtype << " " << reader);
        check_found(shop.with(reader, shop.a), reader, "was not folded in");
        check_found(shop.with(reader, twice), reader, "folded in twice");
      }
    }
  }
}

TEST_CASE("mutation: a permutation without the fold, and its gains", "[model]") {
  Workshop shop(tiny("llama"), "signed-permutation");
  const fs::path transposed = shop.transposed();
  const fs::path twice = shop.rotated_twice();
  for (const std::string& tensor : tensor_names(shop.b)) {
    if (tensor_bytes(shop.a, tensor) == tensor_bytes(shop.b, tensor)) continue;
    check_found(shop.with(tensor, shop.a), tensor, is_norm(tensor) ? "not transported" : "was not merged in");
    check_found(shop.with(tensor, transposed), tensor, is_norm(tensor) ? "inverse permutation" : "wrong side");
    check_found(shop.with(tensor, twice), tensor, "twice");
    if (!is_norm(tensor)) continue;
    check_found(shop.with_values(tensor, std::vector<double>(48, 1.0)), tensor,
                "reset to 1, although its gain was folded into no reader");
    std::vector<double> gain = tensor_values(shop.b, tensor);
    for (double& g : gain) g = std::fabs(g);
    check_found(shop.with_values(tensor, gain), tensor, "");
  }
}

TEST_CASE("mutation: one of 64 gains folded with a relative error of 1e-3 is found in every type (M3)", "[model]") {
  for (const char* dtype : {"F64", "F32", "F16", "BF16"}) {
    for (const char* words : {"fold", "hadamard", "orthogonal", "signed-permutation --fold"}) {
      TinyModel spec = tiny("mistral");  // hidden 64
      spec.layers = 1;
      spec.dtype = dtype;
      spec.norm_dtype = "F64";  // so that the error is not rounded away in the gain itself
      Workshop shop(spec, words);
      const fs::path off = shop.copy(shop.a, "off");
      for (const std::string& norm : norms_of(shop.a)) {
        for (const std::size_t channel : {std::size_t{0}, std::size_t{17}, std::size_t{63}}) {
          std::vector<double> gain = tensor_values(shop.a, norm);
          gain[channel] *= 1 + 1e-3;
          set_tensor_values(off, norm, gain);
          const fs::path wrong = shop.b.parent_path() / ("wrong-" + norm + std::to_string(channel));
          run_step(off, wrong, step(words));
          for (const std::string& reader : readers_of(norm)) {
            const std::optional<model::VerifyReport> report = shop.with(reader, wrong);
            REQUIRE(report.has_value());
            INFO(dtype << " " << words << ": " << reader << ", channel " << channel << ", gain " << gain[channel]
                       << "\n"
                       << text_of(*report));
            CHECK_FALSE(report->equal());
            CHECK(finds(*report, reader));
            // In narrow types the channel itself may drown in the rounding of the rotated row; that the tensor is wrong
            // may not.
            const bool is_told =
                std::string(words) == "fold" || std::string(dtype) == "F64" || std::string(dtype) == "F32";
            if (is_told)
              CHECK(finds(*report, reader,
                          step(words).rotation == model::RotationKind::signed_permutation
                              ? "input channel "  // which is another one in B
                              : "channel " + std::to_string(channel)));
          }
          set_tensor_bytes(off, norm, tensor_bytes(shop.a, norm));
        }
      }
    }
  }
}

TEST_CASE("mutation: the naive merge of a whole model is called what it is", "[model]") {
  for (const char* words : {"hadamard", "orthogonal"}) {
    Workshop shop(tiny("llama"), words);
    const fs::path naive =
        shop.copy(shop.without_fold(), "naive");  // rotated without folding, the gains left where they were
    for (const std::string& norm : norms_of(shop.a)) set_tensor_bytes(naive, norm, tensor_bytes(shop.a, norm));
    fs::remove(naive / "rmsfold.json");
    const model::VerifyReport report = run_verify(shop.a, naive, 16);
    INFO(text_of(report));
    CHECK_FALSE(report.equal());
    CHECK_FALSE(report.logits.passed());
    for (const std::string& norm : norms_of(shop.a)) CHECK(finds(report, norm, "naive merge"));
    CHECK_FALSE(finds(report, embedding));
    CHECK_FALSE(finds(report, "model.layers.0.mlp.down_proj.weight"));
  }
}

TEST_CASE("mutation: a head left tied, by the flag or by its bytes (B1)", "[model]") {
  TinyModel spec = tiny("llama");
  spec.tied = true;
  for (const char* words : {"fold", "hadamard"}) {
    Workshop shop(spec, words);
    // Both tensors are there, but the second is a copy of the first.
    check_found(shop.with_bytes(head, tensor_bytes(shop.b, embedding)), head, "copy of the embedding");
    // The flag was left true: a loader of the old kind ties again.
    edit_config(shop.b, [](io::Json& config) { config["tie_word_embeddings"] = true; });
    model::OpenOptions tied;
    tied.head = model::HeadChoice::tied;
    const model::VerifyReport report = run_verify(shop.a, shop.b, 0, true, {}, tied);
    INFO(text_of(report));
    CHECK_FALSE(report.equal());
    CHECK(finds(report, head, "still tied to the embedding"));
  }
}

TEST_CASE("mutation: a mean removed from the embedding of an RMSNorm model is recognised (A1)", "[model]") {
  for (const char* words : {"fold", "hadamard"}) {
    Workshop shop(tiny("llama"), words);
    Workshop other(
        [] {
          TinyModel spec = tiny("llama");
          spec.edit_tensors = [](std::vector<TinyTensor>& tensors) {
            for (std::size_t row = 0; row < 72; ++row) {
              double* values = tensors[0].values.data() + row * 48;
              double mean = 0;
              for (int i = 0; i < 48; ++i) mean += static_cast<double>(static_cast<float>(values[i])) / 48;
              for (int i = 0; i < 48; ++i) values[i] = static_cast<double>(static_cast<float>(values[i])) - mean;
            }
          };
          return spec;
        }(),
        words);
    check_found(shop.with(embedding, other.b), embedding, "mean was removed");
  }
}

TEST_CASE("mutation: a model that was transformed twice, or not at all", "[model]") {
  Workshop shop(tiny("llama"), "hadamard");
  // The whole of it twice, under the manifest of once.
  const fs::path twice = shop.copy(shop.rotated_twice(), "twice-whole");
  fs::copy_file(shop.b / "rmsfold.json", twice / "rmsfold.json", fs::copy_options::overwrite_existing);
  model::VerifyReport report = run_verify(shop.a, twice);
  INFO(text_of(report));
  CHECK_FALSE(report.equal());
  CHECK(finds(report, embedding, "merged in twice"));
  CHECK(finds(report, "model.layers.1.mlp.down_proj.weight", "merged in twice"));
  // Not at all: the same function, but not what the manifest says.
  const fs::path none = shop.copy(shop.a, "none");
  fs::copy_file(shop.b / "rmsfold.json", none / "rmsfold.json");
  report = run_verify(shop.a, none);
  CHECK_FALSE(report.equal());
  CHECK(finds(report, embedding, "was not merged in"));
  CHECK(run_verify(shop.a, none, 0, false).equal());
}

TEST_CASE("mutation: a NaN or an infinity anywhere is a difference", "[model]") {
  for (const char* words : {"hadamard --heads", "fold", "signed-permutation"}) {
    TinyModel spec = tiny("qwen3");
    spec.layers = 1;
    Workshop shop(spec, words);
    for (const std::string& tensor : tensor_names(shop.b)) {
      for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        std::vector<double> values = tensor_values(shop.b, tensor);
        values[values.size() / 2] = bad;
        const model::VerifyReport report = shop.with_values(tensor, values);
        INFO(words << ": " << tensor << ": " << bad << "\n" << text_of(report));
        CHECK_FALSE(report.equal());
        CHECK(finds(report, tensor));
      }
    }
    // Without a manifest the estimate must not be fooled, or break.
    fs::remove(shop.b / "rmsfold.json");
    for (const std::string& tensor : {embedding, std::string("model.layers.0.mlp.down_proj.weight")}) {
      std::vector<double> values = tensor_values(shop.b, tensor);
      values[values.size() / 2] = std::nan("");
      const model::VerifyReport report = shop.with_values(tensor, values);
      INFO(words << ": " << tensor << ", estimated\n" << text_of(report));
      CHECK_FALSE(report.equal());
    }
  }
}

TEST_CASE("mutation: config.json must be the same, but for the tie flag", "[model]") {
  Workshop shop(tiny("llama"), "hadamard");
  const io::Json right = io::read_json_file(shop.b / "config.json");
  struct Row {
    const char* key;
    io::Json value;
  };
  for (const Row& row : std::vector<Row>{{"rms_norm_eps", 1e-6},
                                         {"rope_theta", 5e5},
                                         {"num_key_value_heads", 6},
                                         {"hidden_act", "gelu"},
                                         {"some_new_key", 1}}) {
    edit_config(shop.b, [&](io::Json& config) { config[row.key] = row.value; });
    INFO(row.key);
    try {
      const model::VerifyReport report = run_verify(shop.a, shop.b);
      INFO(text_of(report));
      CHECK_FALSE(report.equal());
      CHECK(finds(report, "config.json", std::string("\"") + row.key + "\""));
    } catch (const FormatError& error) {
      CHECK(std::string(row.key) == "num_key_value_heads");  // no tensor of B fits any more
    }
    edit_config(shop.b, [&](io::Json& config) { config = right; });
  }
  CHECK(run_verify(shop.a, shop.b).equal());
}

TEST_CASE("mutation: logits alone see a wrong weight, and say so", "[model]") {
  // The basis cannot be determined: fewer rows than directions, and one layer.
  TinyModel spec = tiny("llama");
  spec.layers = 1;
  spec.vocabulary = 10;
  spec.intermediate = 8;
  spec.dtype = "F64";
  Workshop shop(spec, "orthogonal");
  fs::remove(shop.b / "rmsfold.json");
  const model::VerifyReport right = run_verify(shop.a, shop.b, 16);
  INFO(text_of(right));
  CHECK_FALSE(right.basis_is_known);
  CHECK_THAT(right.basis, has_text("do not determine"));
  CHECK(right.logits.done);
  CHECK(right.equal());
  CHECK_FALSE(run_verify(shop.a, shop.b).equal());  // without logits nothing is proved

  std::vector<double> values = tensor_values(shop.b, "model.layers.0.self_attn.o_proj.weight");
  for (double& value : values) value = -value;
  const model::VerifyReport wrong = shop.with_values("model.layers.0.self_attn.o_proj.weight", values);
  CHECK_FALSE(wrong.equal());
  const std::string bytes = tensor_bytes(shop.b, "model.layers.0.self_attn.o_proj.weight");
  set_tensor_values(shop.b, "model.layers.0.self_attn.o_proj.weight", values);
  const model::VerifyReport by_logits = run_verify(shop.a, shop.b, 16);
  INFO(text_of(by_logits));
  CHECK_FALSE(by_logits.equal());
  set_tensor_bytes(shop.b, "model.layers.0.self_attn.o_proj.weight", bytes);
  // A reader, too, is seen without a basis.
  values = tensor_values(shop.b, "model.layers.0.self_attn.q_proj.weight");
  for (double& value : values) value *= 1.01;
  CHECK(finds(shop.with_values("model.layers.0.self_attn.q_proj.weight", values),
              "model.layers.0.self_attn.q_proj.weight"));
}
