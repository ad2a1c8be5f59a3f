// SPDX-License-Identifier: MIT
#include "console.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include <rmsfold/core/error.hpp>

namespace rmsfold::tool {

namespace {

volatile std::sig_atomic_t signal_number = 0;

const auto program_start = std::chrono::steady_clock::now();
Stats collected;

/// "RssAnon:     1234 kB" of a process's status, in bytes.
std::uint64_t field_of(std::string_view status, std::string_view name) {
  const std::size_t at = status.find(name);
  if (at == std::string_view::npos) return 0;
  status.remove_prefix(at + name.size());
  status.remove_prefix((std::min)(status.find_first_of("0123456789"), status.size()));
  std::uint64_t kilobytes = 0;
  std::from_chars(status.data(), status.data() + status.size(), kilobytes);
  return kilobytes * 1024;
}

void sample_memory() {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) return;
  char text[4096];
  const std::string_view status(text, std::fread(text, 1, sizeof text, file));
  std::fclose(file);
  collected.rss_anon = (std::max)(collected.rss_anon, field_of(status, "\nRssAnon:"));
  collected.rss_file = (std::max)(collected.rss_file, field_of(status, "\nRssFile:"));
}

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
  options.drop_mtp = drop_mtp;
  if (!dequantize.empty()) options.dequantize = dequantize == "f32" ? Dtype::f32 : Dtype::bf16;
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

std::string human_time(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 100 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

ProgressLine::ProgressLine(const Common& common, std::string what, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      silent_(common.quiet),
      terminal_(::isatty(STDERR_FILENO) == 1),
      with_stats_(common.stats),
      start_(std::chrono::steady_clock::now()),
      last_(start_) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && shown_) fmt::print(stderr, "\r\x1b[K");
}

void ProgressLine::update(std::uint64_t finished, std::uint64_t total) {
  if (caught_signal() != 0) throw Interrupted("stopped by a signal");
  if (with_stats_) {
    if (unit_ == "B") collected.bytes = finished;
    sample_memory();
  }
  if (silent_ || total == 0) return;
  const auto now = std::chrono::steady_clock::now();
  const double since_last = std::chrono::duration<double>(now - last_).count();
  if (since_last < (terminal_ ? 0.1 : 10.0)) return;
  last_ = now;
  shown_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  time_left_.add(seconds, finished);
  show(finished, total, seconds);
}

void ProgressLine::show(std::uint64_t finished, std::uint64_t total, double seconds) const {
  const double share = total > 0 ? static_cast<double>(finished) / static_cast<double>(total) : 1;
  const double rate = static_cast<double>(finished) / seconds;
  const std::optional<double> estimate = time_left_.estimate(total);
  const std::string left = estimate ? fmt::format(", {} left", human_time(*estimate)) : "";
  const std::string amount = unit_ == "B" ? fmt::format("{} of {}, {}/s", human_bytes(static_cast<double>(finished)), human_bytes(static_cast<double>(total)), human_bytes(rate))
                                          : fmt::format("{} of {} {}", finished, total, unit_);
  if (terminal_) {
    constexpr int width = 30;
    const int filled = static_cast<int>(share * width);
    fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {}{}\x1b[K", what_, "", filled, "", width - filled, amount, left);
  } else {
    fmt::print(stderr, "{}: {:.0f} %, {}{}\n", what_, 100 * share, amount, left);
  }
  std::fflush(stderr);
}

void print_notes(const Common& common, const std::vector<std::string>& notes) {
  if (common.quiet) return;
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

Stats stats() {
  sample_memory();
  collected.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - program_start).count();
  return collected;
}

void print_stats(const Common& common) {
  if (!common.stats || common.json || common.quiet) return;
  const Stats now = stats();
  fmt::print("stats: {:.2f} s, {} of tensors, peak memory {:.1f} MiB anonymous and {:.1f} MiB of files\n", now.seconds, human_bytes(static_cast<double>(now.bytes)),
             static_cast<double>(now.rss_anon) / (1 << 20), static_cast<double>(now.rss_file) / (1 << 20));
}

void print_json(const Common& common, io::Json json) {
  if (common.stats) {
    const Stats now = stats();
    json["stats"] = {{"seconds", now.seconds}, {"bytes", now.bytes}, {"peak_rss_anon", now.rss_anon}, {"peak_rss_file", now.rss_file}};
  }
  fmt::print("{}\n", json.dump(2));
}

}  // namespace rmsfold::tool
