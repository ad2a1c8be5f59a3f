// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A directory that appears complete or not at all: work goes to a locked sibling, which takes the name at the end.

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

#include <rmsfold/core/error.hpp>
#include <rmsfold/io/file.hpp>

namespace rmsfold::io {

namespace detail {

/// Whether `inner` is `outer` or lies below it. Compares what is on the disk, not names, so links, `..` and bind mounts
/// do not deceive it.
/// @param inner  a resolved path; its last parts need not exist
[[nodiscard]] inline bool is_same_or_inside(std::filesystem::path inner, const std::filesystem::path& outer) {
  for (;; inner = inner.parent_path()) {
    std::error_code missing;
    if (std::filesystem::equivalent(inner, outer, missing)) return true;
    if (inner == inner.parent_path()) return false;
  }
}

/// What rename_with does when the new name is taken.
enum class IfTaken { fail, exchange };

/// Renames in one step. @returns 0 or the error; one that is_unsupported where there is no such step
[[nodiscard]] inline int rename_with(const std::filesystem::path& from, const std::filesystem::path& to,
                                     [[maybe_unused]] IfTaken if_taken) {
#if defined(RENAME_EXCHANGE) && defined(RENAME_NOREPLACE)
  const unsigned flags = if_taken == IfTaken::exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
#else
  static_cast<void>(from);
  static_cast<void>(to);
  return ENOSYS;
#endif
}

/// Whether an error says that the file system lacks a feature.
[[nodiscard]] constexpr bool is_unsupported(int code) noexcept {
  return code == EINVAL || code == ENOSYS || code == ENOTSUP;
}

/// Whether there is anything of that name, be it a link to nothing.
[[nodiscard]] inline bool is_taken(const std::filesystem::path& path) noexcept {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(path, error));
}

/// Plain rename. @throws IoError
inline void rename_or_raise(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) raise_system("rename " + printable(from) + " to", to, errno);
}

/// Asks the system to put a file or directory on the disk. @throws IoError
inline void sync_path(const std::filesystem::path& path) {
  const int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (fd == -1) raise_system("open", path, errno);
  const int code = retry([&] { return ::fsync(fd); }) == -1 ? errno : 0;
  ::close(fd);
  if (code != 0) raise_system("flush", path, code);
}

/// A lock file, held until release(). The system releases it when the process dies, however it dies.
class LockFile {
 public:
  /// Whom it keeps away: everybody, or those who want it for themselves.
  enum class Mode { exclusive, shared };
  /// What came of trying.
  enum class Result { held, busy, again };

  LockFile() = default;
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;
  ~LockFile() { let_go(); }

  /// Does not wait. @returns busy when another process holds it; again when the file that was locked had just been removed by its owner. @throws IoError
  [[nodiscard]] Result try_acquire(const std::filesystem::path& path, Mode mode) {
    fd_ = retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); });
    if (fd_ == -1) raise_system("create", path, errno);
    if (retry([&] { return ::flock(fd_, (mode == Mode::exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB); }) == -1) {
      const int code = errno;
      let_go();
      if (code == EWOULDBLOCK) return Result::busy;
      raise_system("lock", path, code);
    }
    struct ::stat held {};
    struct ::stat named {};
    const bool is_current = ::fstat(fd_, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                            held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (!is_current) let_go();
    return is_current ? Result::held : Result::again;
  }

  /// The same, for itself. @returns false: try again. @throws IoError saying `refusal` when another process holds it.
  [[nodiscard]] bool acquire(const std::filesystem::path& path, std::string_view refusal) {
    const Result result = try_acquire(path, Mode::exclusive);
    if (result == Result::busy) raise<IoError>("{}", refusal);
    return result == Result::held;
  }

  /// Lets others share it. @returns false when another process was faster: it is not held any more.
  [[nodiscard]] bool share() noexcept {
    const bool is_shared = retry([&] { return ::flock(fd_, LOCK_SH | LOCK_NB); }) == 0;
    if (!is_shared) let_go();
    return is_shared;
  }

  /// Lets go of the lock; the file stays.
  void let_go() noexcept {
    if (fd_ != -1) ::close(std::exchange(fd_, -1));
  }

  /// Removes the file, then lets go of the lock.
  void release(const std::filesystem::path& path) noexcept {
    if (fd_ == -1) return;
    ::unlink(path.c_str());
    let_go();
  }

 private:
  int fd_ = -1;
};

}  // namespace detail

/// Bytes that an ordinary user may still write to the file system of a directory. @throws IoError
[[nodiscard]] inline std::uint64_t free_space(const std::filesystem::path& directory) {
  struct ::statvfs status {};
  if (detail::retry([&] { return ::statvfs(directory.c_str(), &status); }) == -1) detail::raise_system("inspect", directory, errno);
  return std::uint64_t{status.f_bavail} * std::uint64_t{status.f_frsize};
}

/// How a process takes part in making a directory.
struct OutputOptions {
  bool force = false;     ///< an existing OUT may be replaced
  bool shared = false;    ///< other processes write to the same partial directory at the same time
  bool existing = false;  ///< the partial directory must be there already
  bool stays = false;     ///< the partial directory outlives a failure of this process
  std::vector<std::filesystem::path> others;  ///< further directories that are never written, as the model's

  /// Whether to go on with a partial directory that was found, instead of removing it; it may refuse by throwing, which leaves everything as it was. Empty: no.
  std::function<bool(const std::filesystem::path& partial)> keep;
  /// Fills a fresh partial directory before anybody else may look into it.
  std::function<void(const std::filesystem::path& partial)> set_up;
};

/// A new directory OUT, written as `OUT.rmsfold-partial`, renamed by commit(), and removed when there is no commit.
///
/// `OUT.rmsfold-partial.lock` keeps a second process away, and marks what lies beside it as ours: a directory left by a
/// process that was killed is removed, one without that mark is never touched. The lock outlives the directory at every
/// step. Processes that share the directory share the lock; only the one that commits has it for itself.
class OutputDirectory {
 public:
  /// Takes the lock and makes the empty partial directory, or goes on with the one that is there.
  ///
  /// @param out    the directory to be; its parent must exist
  /// @param model  the directory that is read meanwhile; empty: none
  /// @throws RefusedError when `out` exists and there is no `force`, when it is not a directory, and always when it is,
  ///   contains or lies inside `model` or one of the others, links resolved; IoError when another process is writing `out`, or the system
  ///   refuses.
  OutputDirectory(const std::filesystem::path& out, const std::filesystem::path& model, OutputOptions options)
      : shown_(out), options_(std::move(options)) {
    out_ = resolve(out);
    partial_ = partial_of(out_);
    lock_path_ = partial_;
    lock_path_ += ".lock";
    if (!model.empty()) refuse_to_touch(model);
    for (const std::filesystem::path& other : options_.others) refuse_to_touch(other);
    if (options_.shared) {
      join();
    } else {
      claim();
    }
  }
  /// For one process alone. @param force  whether an existing `out` may be replaced
  OutputDirectory(const std::filesystem::path& out, const std::filesystem::path& model, bool force)
      : OutputDirectory(out, model, with_force(force)) {}

  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  /// Removes the partial directory unless it was committed, or is to stay.
  ~OutputDirectory() {
    if (is_committed_ || options_.shared || options_.stays) return;
    std::error_code ignored;  // nobody is left to be told; the lock file stays if the directory does
    std::filesystem::remove_all(partial_, ignored);
    if (!ignored) lock_.release(lock_path_);
  }

  /// Where a process that makes `out` writes: `OUT.rmsfold-partial`. @throws RefusedError, IoError when there can be no such directory.
  [[nodiscard]] static std::filesystem::path partial_path(const std::filesystem::path& out) { return partial_of(resolve(out)); }

  /// Where to write: `OUT.rmsfold-partial`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return partial_; }
  /// Whether the partial directory was there, and is gone on with.
  [[nodiscard]] bool was_kept() const noexcept { return was_kept_; }

  /// Checks that there is room for what is going to be written. @throws IoError with both numbers.
  void require_space(std::uint64_t bytes) const {
    const std::uint64_t available = free_space(partial_);
    if (bytes <= available) return;
    detail::raise<IoError>("{} needs {} bytes, but {} has {} bytes free, {} too few: make room, or choose an output on another file system", printable(shown_),
                           bytes, printable(partial_.parent_path()), available, bytes - available);
  }
  /// What the user should know: a leftover was removed, a replacement was not atomic.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// Gives the directory its name. A reader sees the old state or the new one, never a part; where the file system
  /// cannot exchange two names, an old directory is moved aside first, and a note says so.
  /// @param fsync  whether all of it is put on the disk before, and the new name after
  /// @throws IoError, leaving OUT as it was; RefusedError when OUT has come into being meanwhile.
  void commit(bool fsync) {
    namespace fs = std::filesystem;
    if (is_committed_) return;
    if (fsync) {
      std::error_code error;
      for (fs::recursive_directory_iterator entry(partial_, error), end; !error && entry != end;
           entry.increment(error)) {
        if (!entry->is_symlink(error)) detail::sync_path(entry->path());
      }
      if (error) detail::raise_system("list", partial_, error.value());
      detail::sync_path(partial_);
    }
    const bool replaced = options_.force && detail::is_taken(out_);
    if (replaced) {
      exchange();
    } else {
      appear();
    }
    is_committed_ = true;
    if (fsync) detail::sync_path(out_.parent_path());
    std::error_code error;
    if (replaced) fs::remove_all(partial_, error);
    // If that failed the lock file stays, so that the next run may finish it.
    if (error) {
      detail::raise<IoError>("{} is complete, but the old one could not be removed from {}: {}", printable(shown_),
                             printable(partial_), error.message());
    }
    lock_.release(lock_path_);
  }

 private:
  [[nodiscard]] static OutputOptions with_force(bool force) {
    OutputOptions options;
    options.force = force;
    return options;
  }

  [[nodiscard]] static std::filesystem::path partial_of(std::filesystem::path out) {
    out += ".rmsfold-partial";
    return out;
  }

  /// The real path of `out`, which need not exist yet.
  [[nodiscard]] static std::filesystem::path resolve(std::filesystem::path out) {
    namespace fs = std::filesystem;
    if (out.empty()) detail::raise<RefusedError>("the output directory has no name");
    std::error_code error;
    const fs::file_status status = fs::status(out, error);
    if (fs::exists(status)) {
      fs::path resolved = fs::canonical(out, error);
      if (error) detail::raise_system("resolve", out, error.value());
      return resolved;
    }
    if (status.type() == fs::file_type::none) detail::raise_system("inspect", out, error.value());
    if (!out.has_filename()) out = out.parent_path();  // "out/"
    if (fs::is_symlink(fs::symlink_status(out, error))) {
      detail::raise<RefusedError>("{} is a symbolic link to something that does not exist", printable(out));
    }
    const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
    fs::path resolved = fs::canonical(parent, error);
    if (error) detail::raise_system("create " + printable(out) + " in", parent, error.value());
    return resolved / out.filename();
  }

  /// @throws RefusedError when the model, or what its links lead to, would be written or removed.
  void refuse_to_touch(const std::filesystem::path& model) const {
    namespace fs = std::filesystem;
    std::error_code error;
    const fs::path source = fs::canonical(model, error);
    if (error) detail::raise_system("open", model, error.value());
    for (const fs::path& target : {out_, partial_}) {
      if (detail::is_same_or_inside(target, source)) {
        detail::raise<RefusedError>("the output {} is, or lies inside, the input {}: an input is never written",
                                    printable(shown_), printable(model));
      }
      if (detail::is_same_or_inside(source, target)) {
        detail::raise<RefusedError>("the output {} contains the input {}: an input is never written",
                                    printable(shown_), printable(model));
      }
      for (fs::directory_iterator entry(source, error), end; !error && entry != end; entry.increment(error)) {
        std::error_code dangling;
        const fs::path real = fs::canonical(entry->path(), dangling);
        if (!dangling && detail::is_same_or_inside(real, target)) {
          detail::raise<RefusedError>("the output {} contains {}, which an input links to: an input is never written",
                                      printable(shown_), printable(real));
        }
      }
      if (error) detail::raise_system("list", model, error.value());
    }
  }

  /// @throws RefusedError when OUT is there and may not be replaced.
  void refuse_existing() const {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(out_, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_directory(status)) {
      detail::raise<RefusedError>("{} exists and is not a directory", printable(shown_));
    }
    if (!options_.force) {
      detail::raise<RefusedError>("{} exists already: choose another name, or replace it with --force",
                                  printable(shown_));
    }
  }

  [[nodiscard]] std::string busy() const { return fmt::format("another rmsfold is writing {}: wait for it to end", printable(shown_)); }

  /// Whether a partial directory is there. @throws RefusedError when it is none of ours, and when it must be there and is not.
  [[nodiscard]] bool find_leftover() const {
    refuse_existing();
    // Without a lock file beside it, it is not ours. Looked at twice: its owner removes first the one, then the
    // other.
    if (detail::is_taken(partial_) && !detail::is_taken(lock_path_) && detail::is_taken(partial_)) {
      detail::raise<RefusedError>("{} exists, but no rmsfold left it there: move it away", printable(partial_));
    }
    const bool is_leftover = detail::is_taken(partial_);
    if (!is_leftover && options_.existing) {
      detail::raise<RefusedError>("{}: nothing was begun that could be finished: there is no {}", printable(shown_), printable(partial_));
    }
    return is_leftover;
  }

  /// Takes the lock and makes the partial directory.
  void claim() {
    for (;;) {
      const bool is_leftover = find_leftover();
      if (lock_.acquire(lock_path_, busy()) && make(is_leftover)) return;
    }
  }

  /// Shares the lock with others; the first one makes the partial directory, for which it has the lock for itself.
  void join() {
    using Result = detail::LockFile::Result;
    constexpr int patience = 100;  // times 0.1 s: whoever sets the directory up needs not much longer than a copy of the small files
    for (int attempt = 0; attempt < patience; ++attempt) {
      const bool is_leftover = find_leftover();
      const Result alone = lock_.try_acquire(lock_path_, detail::LockFile::Mode::exclusive);
      if (alone == Result::held && make(is_leftover) && lock_.share()) return;
      if (alone == Result::busy && lock_.try_acquire(lock_path_, detail::LockFile::Mode::shared) == Result::held) {
        if (detail::is_taken(partial_) && options_.keep && options_.keep(partial_)) {
          was_kept_ = true;
          return;
        }
        lock_.let_go();
      }
      if (alone == Result::busy) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    detail::raise<IoError>("{}", busy());
  }

  /// Makes the partial directory under the lock, or keeps the one that is there. @returns false when that is to be tried again, without the lock.
  [[nodiscard]] bool make(bool is_leftover) {
    was_kept_ = false;
    if (is_leftover && detail::is_taken(partial_)) {
      if (options_.existing || (options_.keep && options_.keep(partial_))) return was_kept_ = true;
      std::error_code error;
      std::filesystem::remove_all(partial_, error);
      if (error) detail::raise_system("remove", partial_, error.value());
      notes_.push_back(fmt::format("removed {}, left by a run that was killed", printable(partial_)));
    }
    const bool is_late = options_.existing || (!options_.force && detail::is_taken(out_));  // a run ended just now
    const int code = is_late || ::mkdir(partial_.c_str(), 0777) == 0 ? 0 : errno;
    if (is_late || code != 0) {
      lock_.release(lock_path_);
      if (code != 0 && code != EEXIST) detail::raise_system("create", partial_, code);
      return false;
    }
    try {
      if (options_.set_up) options_.set_up(partial_);
    } catch (...) {
      std::error_code ignored;  // the first failure is the one to tell
      std::filesystem::remove_all(partial_, ignored);
      if (!ignored) lock_.release(lock_path_);
      throw;
    }
    return true;
  }

  /// partial becomes OUT, which must not exist.
  void appear() {
    int code = detail::rename_with(partial_, out_, detail::IfTaken::fail);
    if (code == EEXIST) {
      detail::raise<RefusedError>("{} has come into being while it was being made: it is left alone",
                                  printable(shown_));
    }
    if (detail::is_unsupported(code)) code = std::rename(partial_.c_str(), out_.c_str()) == 0 ? 0 : errno;
    if (code != 0) detail::raise_system("rename " + printable(partial_) + " to", out_, code);
  }

  /// partial becomes OUT, and the old OUT lies at partial.
  void exchange() {
    const int code = detail::rename_with(partial_, out_, detail::IfTaken::exchange);
    if (code == 0) return;
    if (!detail::is_unsupported(code)) detail::raise_system("exchange " + printable(partial_) + " and", out_, code);
    std::filesystem::path aside = out_;
    aside += ".rmsfold-old";
    detail::rename_or_raise(out_, aside);
    if (std::rename(partial_.c_str(), out_.c_str()) != 0) {
      const int failure = errno;
      detail::rename_or_raise(aside, out_);
      detail::raise_system("rename " + printable(partial_) + " to", out_, failure);
    }
    detail::rename_or_raise(aside, partial_);
    notes_.push_back(
        fmt::format("this file system cannot exchange two names: {} was missing for a moment", printable(shown_)));
  }

  std::filesystem::path shown_;
  OutputOptions options_;
  std::filesystem::path out_;
  std::filesystem::path partial_;
  std::filesystem::path lock_path_;
  detail::LockFile lock_;
  std::vector<std::string> notes_;
  bool was_kept_ = false;
  bool is_committed_ = false;
};

}  // namespace rmsfold::io
