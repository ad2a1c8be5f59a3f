// SPDX-License-Identifier: MIT
// The program: parses arguments, runs a command, and turns what went wrong into a message and an exit status.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <rmsfold/core/error.hpp>
#include <rmsfold/version.hpp>

#include "commands/commands.hpp"

namespace {

using namespace rmsfold;
using namespace rmsfold::tool;

/// CLI11's own check prints the largest double.
const CLI::Validator not_negative([](const std::string& text) { return text.rfind('-', 0) == 0 ? text + " is negative" : std::string(); }, "", "not negative");

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "One JSON document on standard output");
  command.add_flag("--stats", common.stats, "Also seconds, bytes and peak memory");
  command.add_flag("-q,--quiet", common.quiet, "Print nothing but errors (and JSON); the exit status tells");
}

void add_threads(CLI::App& command, Common& common) {
  command.add_option("--threads", common.threads, "Threads; results do not depend on it")->check(CLI::Range(1, 1024))->default_str("one per processor, at most 16");
}

void add_opening(CLI::App& command, Common& common) {
  add_threads(command, common);
  command.add_option("--head", common.head, "Which tensor is the output head, when config.json and the files disagree")->check(CLI::IsMember({"stored", "tied"}));
  command.add_flag("--trust-config", common.trust_config, "Accept a config.json that names custom code (auto_map)");
  command.add_option("--dequantize", common.dequantize, "Weights that are stored as fp8 or MXFP4 codes with block scales: convert them exactly, and store the result as this type")->check(CLI::IsMember({"bf16", "f32"}));
  command.add_flag("--drop-mtp", common.drop_mtp, "Leave out blocks that draft further tokens (multi-token prediction): they read the last hidden state, so the final gain cannot be folded beside them");
  command.add_flag("--ignore-index", common.ignore_index, "Take the tensors from the shards' headers, not from the index");
}

void add_rotation(CLI::App& command, RotationOptions& rotation) {
  command.add_option("--rotation", rotation.rotation,
                     "hadamard (randomised), orthogonal (Haar-random), signed-permutation, permutation, or a safetensors FILE with one square matrix Q, x' = x·Q")
      ->capture_default_str();
  command.add_option("--seed", rotation.seed, "Seed of the rotation; 0 is a seed like any other")->check(not_negative)->capture_default_str();
}

int run(int argc, char** argv) {
  CLI::App app{"Exact rotation and gain folding in RMSNorm transformers, and proof that nothing else changed."};
  app.set_version_flag("--version", fmt::format("rmsfold {}.{}.{}", RMSFOLD_VERSION_MAJOR, RMSFOLD_VERSION_MINOR, RMSFOLD_VERSION_PATCH));
  app.require_subcommand(1);
  app.footer(
      "MODEL is a Hugging Face directory (config.json and safetensors); it is never written.\n"
      "Exit status: 0 done or equal, 1 not equal, 2 bad input or usage, 3 I/O or resource failure, 128 + signal.\n\n"
      "Examples:\n"
      "  rmsfold inspect SmolLM2-135M\n"
      "  rmsfold rotate SmolLM2-135M rotated --rotation hadamard --heads\n"
      "  rmsfold verify SmolLM2-135M rotated");
  Common common;

  InspectOptions inspect_options;
  CLI::App* inspect_command = app.add_subcommand("inspect", "What a model is, which gains fold, which changes of basis leave it the same function, and why");
  inspect_command->add_option("MODEL", inspect_options.model, "Model directory")->required();
  inspect_command->add_flag("--weights", inspect_options.weights, "Also the largest entry, RMS and kurtosis of every tensor (reads them all)");
  add_common(*inspect_command, common);
  add_opening(*inspect_command, common);

  CheckOptions check_options;
  CLI::App* check_command = app.add_subcommand("check", "Rotate-after-norm, naive-merged and gain-folded side by side at every norm site");
  CLI::Option* check_model = check_command->add_option("MODEL", check_options.model, "Model directory");
  CLI::Option* check_dim = check_command->add_option("--dim", check_options.dim, "Instead of a model: one synthetic norm and reader of this dimension")->check(CLI::Range(1, 1 << 16));
  check_dim->excludes(check_model);
  check_command->add_option("--dtype", check_options.dtype, "With --dim: storage type")->check(CLI::IsMember({"F64", "F32", "F16", "BF16"}))->needs(check_dim)->capture_default_str();
  check_command->add_option("--tokens", check_options.tokens, "Tokens in the batch")->check(CLI::Range(1, 4096))->capture_default_str();
  check_command->add_flag("--details", check_options.details, "The full table at every site");
  add_rotation(*check_command, check_options.rotation);
  add_common(*check_command, common);
  add_opening(*check_command, common);
  check_command->footer("Exit status 0: rotate-after-norm and gain-folded are within their bounds everywhere.\n\nExamples:\n  rmsfold check SmolLM2-135M\n  rmsfold check --dim 4096 --dtype BF16");

  TransformOptions fold_options;
  fold_options.is_fold = true;
  TransformOptions rotate_options;
  CLI::App* fold_command = app.add_subcommand("fold", "Fold every foldable gain into the layers that read it; the norms stay, with gain 1");
  CLI::App* rotate_command = app.add_subcommand("rotate", "Merge a change of basis of the residual stream; dense rotations fold the gains first");
  for (const auto& [command, options] : {std::pair{fold_command, &fold_options}, std::pair{rotate_command, &rotate_options}}) {
    command->add_option("MODEL", options->model, "Model directory")->required();
    command->add_option("OUT", options->out, "New directory")->required();
    command->add_flag("--dry-run", options->dry_run, "Print the plan, checked, and write nothing");
    command->add_flag("--force", options->force, "Replace an existing OUT, atomically");
    command->add_flag("--no-fsync", options->no_fsync, "Do not wait for the disk");
    command->add_flag("--resume", options->resume, "Keep the whole shards of an interrupted run, checked by their hashes, and keep them again when interrupted");
    command->add_flag("--keep-final-norm", options->keep_final_norm, "Leave the last hidden state what it is, as embedding models need it: all gains but the final one are folded, and nothing is rotated");
    command->add_option("--part", options->part, "Write only the shards of part i of n (\"2/8\"), or of this process of mpirun or srun (\"auto\"); then: rmsfold finish OUT");
    add_common(*command, common);
    add_opening(*command, common);
  }
  add_rotation(*rotate_command, rotate_options.rotation);
  rotate_command->get_option("--rotation")->default_str("");
  CLI::Option* recipe = rotate_command->add_option("--recipe", rotate_options.recipe, "Take rotation, seed and heads from the rmsfold.json of an earlier run");
  recipe->excludes(rotate_command->get_option("--rotation"))->excludes(rotate_command->get_option("--seed"));
  rotate_command->add_flag("--heads", rotate_options.heads, "Also rotate the values of every kv head, and undo it in the output projection")->excludes(recipe);
  rotate_command->add_flag("--inverse", rotate_options.inverse, "Undo: merge the transpose");
  CLI::Option* fold_too = rotate_command->add_flag("--fold", rotate_options.fold, "Fold the gains as well (permutations do not by themselves)");
  rotate_command->add_flag("--no-fold", rotate_options.no_fold, "Do not fold; refused for a dense rotation unless every gain is constant")->excludes(fold_too);
  rotate_command->add_flag("--again", rotate_options.again, "Rotate a model that is rotated already");
  rotate_command->footer("Examples:\n  rmsfold rotate SmolLM2-135M rotated --rotation hadamard --seed 7 --heads\n  rmsfold rotate SmolLM2-135M permuted --rotation signed-permutation\n"
                         "  rmsfold rotate permuted back --recipe permuted/rmsfold.json --inverse\n"
                         "  mpirun -n 4 rmsfold rotate SmolLM2-135M rotated --rotation hadamard --part auto && rmsfold finish rotated");
  fold_command->footer("Examples:\n  rmsfold fold SmolLM2-135M folded\n  rmsfold fold SmolLM2-135M folded --resume    after an interruption");

  FinishCommandOptions finish_options;
  CLI::App* finish_command = app.add_subcommand("finish", "Make OUT of what the parts of fold or rotate wrote, once all of them are done");
  finish_command->add_option("OUT", finish_options.out, "Directory that the parts were given")->required();
  finish_command->add_flag("--force", finish_options.force, "Replace an existing OUT, atomically");
  finish_command->add_flag("--no-fsync", finish_options.no_fsync, "Do not wait for the disk");
  add_common(*finish_command, common);
  finish_command->footer("Example:\n  rmsfold fold SmolLM2-135M folded --part 1/2\n  rmsfold fold SmolLM2-135M folded --part 2/2    the same time, perhaps elsewhere\n  rmsfold finish folded");

  AdaptCommandOptions adapt_options;
  CLI::App* adapt_command = app.add_subcommand("adapt", "Make a LoRA adapter, or a draft head, fit a model that was folded or rotated");
  adapt_command->add_option("COMPANION", adapt_options.companion, "Directory of the adapter (PEFT) or the draft head that belongs to MODEL")->required();
  adapt_command->add_option("MODEL", adapt_options.model, "The original model")->required();
  adapt_command->add_option("TRANSFORMED", adapt_options.transformed, "What was made of it, with its rmsfold.json")->required();
  adapt_command->add_option("OUT", adapt_options.out, "New directory")->required();
  adapt_command->add_option("--draft-fc", adapt_options.draft_fc, "COMPANION is a draft head: its tensor that reads states of the residual stream, one beside the other");
  adapt_command->add_flag("--force", adapt_options.force, "Replace an existing OUT, atomically");
  adapt_command->add_flag("--no-fsync", adapt_options.no_fsync, "Do not wait for the disk");
  add_common(*adapt_command, common);
  add_opening(*adapt_command, common);
  adapt_command->footer("Examples:\n  rmsfold adapt my-lora SmolLM2-135M rotated my-lora-rotated\n  rmsfold adapt eagle SmolLM2-135M rotated eagle-rotated --draft-fc fc.weight");

  VerifyCommandOptions verify_options;
  CLI::App* verify_command = app.add_subcommand("verify", "Are two models the same function? Element by element and by logits; if not: where, and which step looks wrong");
  verify_command->add_option("MODEL", verify_options.a, "Model directory")->required();
  verify_command->add_option("OUT", verify_options.b, "What was made of it")->required();
  verify_command->add_option("--tokens", verify_options.tokens, "Random tokens for the logits")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  verify_command->add_option("--seed", verify_options.seed, "Seed of the tokens")->check(not_negative)->capture_default_str();
  verify_command->add_flag("--no-logits", verify_options.no_logits, "Compare elements only");
  verify_command->add_flag("--ignore-manifest", verify_options.ignore_manifest, "Estimate the rotation from the weights instead of reading rmsfold.json");
  verify_command->add_flag("--double-rotary", verify_options.double_tables, "Rotary tables in double instead of float");
  verify_command->add_flag("--record", verify_options.record, "Add the measured errors to OUT/rmsfold.json");
  add_common(*verify_command, common);
  add_opening(*verify_command, common);
  verify_command->footer("Exit status 0: equal. 1: not equal.\n\nExample:\n  rmsfold verify SmolLM2-135M rotated");

  try {
    if (argc > 1 && argv[1][0] != '-') static_cast<void>(app.get_subcommand(argv[1]));
  } catch (const CLI::OptionNotFound&) {
    fmt::print(stderr, "rmsfold: there is no command {}: inspect, check, fold, rotate, finish, adapt or verify\n", argv[1]);
    return Exit::bad_input;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) fmt::print(stderr, "rmsfold: ");
    return app.exit(error) == 0 ? Exit::done : Exit::bad_input;
  }
  const auto with_stats = [&](int status) {
    print_stats(common);
    return status;
  };
  if (*inspect_command) return with_stats(inspect(common, inspect_options));
  if (*check_command) {
    if (check_options.dim == 0 && check_options.model.empty()) {
      fmt::print(stderr, "rmsfold check: give a MODEL or --dim N\n");
      return Exit::bad_input;
    }
    return with_stats(check(common, check_options));
  }
  if (*fold_command) return with_stats(transform(common, fold_options));
  if (*adapt_command) return with_stats(adapt(common, adapt_options));
  if (*finish_command) return with_stats(tool::finish(common, finish_options));
  if (*rotate_command) {
    if (rotate_options.recipe.empty() && rotate_command->count("--rotation") == 0) {
      fmt::print(stderr, "rmsfold rotate: say which --rotation (hadamard, orthogonal, signed-permutation, permutation or a FILE), or give a --recipe\n");
      return Exit::bad_input;
    }
    return with_stats(transform(common, rotate_options));
  }
  return with_stats(verify(common, verify_options));
}

}  // namespace

int main(int argc, char** argv) {
  tool::catch_signals();
  const auto fail = [](const char* what, int status) {
    fmt::print(stderr, "rmsfold: {}\n", what);
    return status;
  };
  try {
    return run(argc, argv);
  } catch (const Interrupted& stop) {
    return fail(stop.what(), 128 + tool::caught_signal());
  } catch (const IoError& error) {
    return fail(error.what(), Exit::resource_failure);
  } catch (const Error& error) {
    return fail(error.what(), Exit::bad_input);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", Exit::resource_failure);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe) return 128 + SIGPIPE;  // whoever read our output has seen enough
    return fail(error.what(), Exit::resource_failure);
  } catch (const std::exception& error) {
    return fail(error.what(), Exit::bad_input);
  }
}
