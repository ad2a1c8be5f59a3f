// SPDX-License-Identifier: MIT
#include <rmsfold/model/adapt.hpp>

#include <fmt/format.h>

#include "commands/commands.hpp"

namespace rmsfold::tool {

int adapt(const Common& common, const AdaptCommandOptions& options) {
  const model::Model model(options.model, common.open_options());
  const model::Plan plan = model::plan_that_made(options.transformed, model);
  model::AdaptOptions how;
  how.draft_fc = options.draft_fc;
  how.force = options.force;
  how.fsync = !options.no_fsync;
  how.keep = {options.transformed};
  const model::AdaptSummary summary = model::adapt(model, plan, options.companion, options.out, how);
  if (common.json) {
    print_json(common, {{"out", options.out}, {"adapted", summary.adapted}, {"copied", summary.copied}, {"notes", summary.notes}});
    return Exit::done;
  }
  print_notes(common, summary.notes);
  if (!common.quiet) fmt::print("{}: {} tensors adapted, {} copied\n", options.out, summary.adapted, summary.copied);
  return Exit::done;
}

}  // namespace rmsfold::tool
