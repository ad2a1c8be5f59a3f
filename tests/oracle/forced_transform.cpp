// SPDX-License-Identifier: MIT
// forced_transform MODEL OUT ROTATION [--heads]: carries out a step that rmsfold refuses, to show that it would change the model's function.
#include <cstdio>
#include <cstring>
#include <exception>

#include <rmsfold/model/transform.hpp>

int main(int argc, char** argv) {
  using namespace rmsfold;
  if (argc < 4) return 2;
  try {
    const model::Model opened(argv[1]);
    model::Step step;
    step.rotation = model::rotation_kind_from_name(argv[3]).value();
    step.seed = 11;
    step.heads = argc > 4 && std::strcmp(argv[4], "--heads") == 0;
    step.fold = step.rotation == model::RotationKind::hadamard || step.rotation == model::RotationKind::orthogonal;
    model::Basis basis = model::make_basis(step, opened.graph());
    if (step.fold) {  // generic, also where the program would take one that fixes the ones vector
      std::vector<std::string> notes;
      basis.stream = model::make_stream_rotation(step, opened.graph().size.hidden, false, notes);
    }
    const model::Plan plan = model::detail::Planner(opened, step, std::move(basis), true).run();
    model::transform(opened, plan, argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forced_transform: %s\n", error.what());
    return 1;
  }
  return 0;
}
