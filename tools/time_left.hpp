// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How long a run will still take.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>

namespace rmsfold::tool {

/// Estimates the time left from the speed of the last part of the run: the start is often faster (caches) or slower (first touches) than what follows.
class TimeLeft {
 public:
  /// What is done after so many seconds; both grow from call to call.
  void add(double seconds, std::uint64_t done) {
    if (!samples_.empty() && seconds - samples_.back().seconds < spacing * seconds) {
      last_ = {seconds, done};
      return;
    }
    samples_.push_back({seconds, done});
    last_ = samples_.back();
    while (samples_.size() > 2 && samples_[1].seconds <= (1 - window) * seconds) samples_.pop_front();
  }

  /// Seconds left; nothing when nothing was done lately.
  [[nodiscard]] std::optional<double> estimate(std::uint64_t total) const {
    if (samples_.empty()) return std::nullopt;
    const double seconds = last_.seconds - samples_.front().seconds;
    const double done = static_cast<double>(last_.done) - static_cast<double>(samples_.front().done);
    if (!(seconds > 0) || !(done > 0)) return std::nullopt;
    return static_cast<double>(total - (std::min)(total, last_.done)) * seconds / done;
  }

 private:
  struct Sample {
    double seconds = 0;
    std::uint64_t done = 0;
  };
  static constexpr double window = 0.5;    // of the time so far: long enough for a stall at the end of a file not to count as the speed
  static constexpr double spacing = 0.01;  // of it, so there are never more than some hundred samples

  std::deque<Sample> samples_;
  Sample last_;
};

}  // namespace rmsfold::tool
