// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What every command shares: options, progress, notes, and stopping on a signal.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <rmsfold/io/json.hpp>
#include <rmsfold/model/model.hpp>

namespace rmsfold::tool {

/// Exit status of the program.
enum Exit : int { done = 0, not_equal = 1, bad_input = 2, resource_failure = 3 };

/// Options of every command.
struct Common {
  bool quiet = false;
  bool json = false;
  unsigned threads = 0;
  std::string head;  // "", "stored" or "tied"
  bool trust_config = false;
  bool ignore_index = false;

  [[nodiscard]] model::OpenOptions open_options() const;
};

/// Makes SIGINT and SIGTERM stop the program at the next report of progress, so that nothing is left behind; a second one stops it at once.
void catch_signals();
/// The signal that asked to stop, or 0.
[[nodiscard]] int caught_signal() noexcept;

/// Progress on standard error: a bar with rate and time left on a terminal, a line now and then in a log, nothing with --quiet.
class ProgressLine {
 public:
  /// @param unit  "B" for bytes; anything else is counted plainly.
  ProgressLine(const Common& common, std::string what, std::string unit);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// @throws Interrupted when a signal was caught.
  void update(std::uint64_t finished, std::uint64_t total);

 private:
  void show(std::uint64_t finished, std::uint64_t total, double seconds) const;

  std::string what_, unit_;
  bool silent_, terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
};

/// "1.3 GB".
[[nodiscard]] std::string human_bytes(double bytes);
/// Notes on standard error, unless --quiet.
void print_notes(const Common& common, const std::vector<std::string>& notes);
/// One JSON document on standard output.
void print_json(const io::Json& json);

}  // namespace rmsfold::tool
