// SPDX-License-Identifier: MIT
// Logits of a checkpoint by the library's own reference forward pass, for comparing it with another runtime.
//
//   reference_logits MODEL TOKENS.json OUT.safetensors [--rotary double]
//
// TOKENS.json is a list of token numbers; OUT.safetensors gets one tensor "logits", F64 [tokens, vocabulary]. Without arguments it shows the last token's best
// continuation on the small model beside this file.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/model/decoder.hpp>

int main(int argc, char** argv) try {
  using namespace rmsfold;
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && args.size() != 3 && !(args.size() == 5 && args[3] == "--rotary" && args[4] == "double")) {
    fmt::print(stderr, "usage: reference_logits MODEL TOKENS.json OUT.safetensors [--rotary double]\n");
    return 2;
  }
  const model::Model model(args.empty() ? "data/tiny-llama" : args[0]);
  std::vector<Index> tokens{1, 2, 3, 5, 8, 13};
  if (!args.empty()) {
    tokens.clear();
    for (const io::Json& token : io::read_json_file(args[1])) tokens.push_back(token.get<Index>());
  }
  model::ForwardOptions options;
  options.float_tables = args.size() != 5;
  const Matrix<double> logits = model::Decoder(model).logits(tokens, options);

  if (args.empty()) {
    Index best = 0;
    logits.row(logits.rows() - 1).maxCoeff(&best);
    fmt::print("after {} tokens the likeliest next token is {}, logit {:.4f}\n", tokens.size(), best, logits(logits.rows() - 1, best));
    return logits.allFinite() ? 0 : 1;
  }
  io::TensorInfo info;
  info.name = "logits";
  info.dtype = "F64";
  info.shape = {static_cast<std::uint64_t>(logits.rows()), static_cast<std::uint64_t>(logits.cols())};
  io::SafetensorsWriter writer(args[2], {info});
  writer.write(std::size_t{0}, 0, std::as_bytes(std::span(logits.data(), static_cast<std::size_t>(logits.size()))));
  writer.finish(false);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "reference_logits: {}\n", error.what());
  return 2;
}
