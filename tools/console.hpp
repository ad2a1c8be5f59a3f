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

#include "time_left.hpp"

namespace rmsfold::tool {

/// Exit status of the program.
enum Exit : int { done = 0, not_equal = 1, bad_input = 2, resource_failure = 3 };

/// Options of every command.
struct Common {
  bool quiet = false;
  bool json = false;
  bool stats = false;
  unsigned threads = 0;
  std::string head;  // "", "stored" or "tied"
  bool trust_config = false;
  bool ignore_index = false;
  bool drop_mtp = false;
  std::string dequantize;

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
  bool silent_, terminal_, with_stats_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
  TimeLeft time_left_;
};

/// What --stats tells. Sampled, whenever there is progress and at the end, from what Linux says of this process; 0 where there is no such thing.
struct Stats {
  double seconds = 0;           ///< since the program started
  std::uint64_t bytes = 0;      ///< of tensors, that progress was reported of
  std::uint64_t rss_anon = 0;   ///< peak of the anonymous resident memory, in bytes: what the program allocated
  std::uint64_t rss_file = 0;   ///< peak of the resident memory that files back: the program itself
};
/// Up to now.
[[nodiscard]] Stats stats();
/// One line on standard output, when it was asked for and is not part of a JSON document.
void print_stats(const Common& common);

/// "1.3 GB".
[[nodiscard]] std::string human_bytes(double bytes);
/// "3 min".
[[nodiscard]] std::string human_time(double seconds);
/// Notes on standard error, unless --quiet.
void print_notes(const Common& common, const std::vector<std::string>& notes);
/// One JSON document on standard output, with "stats" when they were asked for.
void print_json(const Common& common, io::Json json);

}  // namespace rmsfold::tool
