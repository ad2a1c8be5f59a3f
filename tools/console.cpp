// SPDX-License-Identifier: MIT
#include "console.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include <fmt/format.h>

#include <rmsfold/core/error.hpp>

namespace rmsfold::tool {

namespace {

volatile std::sig_atomic_t signal_number = 0;

extern "C" void remember_signal(int number) {
  if (signal_number != 0) _exit(128 + number);
  signal_number = number;
}

}  // namespace

model::OpenOptions Common::open_options() const {
  model::OpenOptions options;
  options.head = head == "stored" ? model::HeadChoice::stored : head == "tied" ? model::HeadChoice::tied : model::HeadChoice::undecided;
  options.trust_config = trust_config;
  options.ignore_index = ignore_index;
  return options;
}

void catch_signals() {
  std::signal(SIGINT, remember_signal);
  std::signal(SIGTERM, remember_signal);
  std::signal(SIGPIPE, SIG_IGN);
}

int caught_signal() noexcept { return signal_number; }

std::string human_bytes(double bytes) {
  for (const char* unit : {"B", "kB", "MB", "GB"}) {
    if (bytes < 1000) return fmt::format("{:.{}f} {}", bytes, bytes < 100 && *unit != 'B' ? 1 : 0, unit);
    bytes /= 1000;
  }
  return fmt::format("{:.1f} TB", bytes);
}

ProgressLine::ProgressLine(const Common& common, std::string what, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      silent_(common.quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressLine::update(std::uint64_t finished, std::uint64_t total) {
  if (caught_signal() != 0) throw Interrupted("stopped by a signal");
  if (silent_) return;
  const auto now = std::chrono::steady_clock::now();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (since_last < (terminal_ ? 0.1 : 10.0)) return;
  last_ = now;
  shown_ = true;
  show(finished, total, std::chrono::duration<double>(now - start_).count());
}

void ProgressLine::show(std::uint64_t finished, std::uint64_t total, double seconds) const {
  const double share = total > 0 ? static_cast<double>(finished) / static_cast<double>(total) : 1;
  const double rate = static_cast<double>(finished) / seconds;
  const double left = share > 0 ? seconds * (1 - share) / share : 0;
  const std::string amount = unit_ == "B" ? fmt::format("{} of {}, {}/s", human_bytes(static_cast<double>(finished)), human_bytes(static_cast<double>(total)), human_bytes(rate))
                                          : fmt::format("{} of {} {}", finished, total, unit_);
  if (terminal_) {
    constexpr int width = 30;
    const int filled = static_cast<int>(share * width);
    fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {}, {:.0f} s left\x1b[K", what_, "", filled, "", width - filled, amount, left);
  } else {
    fmt::print(stderr, "{}: {:.0f} %, {}, {:.0f} s left\n", what_, 100 * share, amount, left);
  }
  std::fflush(stderr);
}

void print_notes(const Common& common, const std::vector<std::string>& notes) {
  if (common.quiet) return;
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

void print_json(const io::Json& json) { fmt::print("{}\n", json.dump(2)); }

}  // namespace rmsfold::tool
