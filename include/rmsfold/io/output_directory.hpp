// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A directory that appears complete or not at all: work goes to a locked sibling, which takes the name at the end.

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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
  LockFile() = default;
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;
  ~LockFile() {
    if (fd_ != -1) ::close(fd_);
  }

  /// @returns false when the file that was locked had just been removed by its owner: try again.
  /// @throws IoError when another process holds the lock, or the system refuses.
  [[nodiscard]] bool acquire(const std::filesystem::path& path, const std::filesystem::path& purpose) {
    fd_ = retry([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666); });
    if (fd_ == -1) raise_system("create", path, errno);
    if (retry([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == -1) {
      if (errno == EWOULDBLOCK) raise<IoError>("another rmsfold is writing {}: wait for it to end", printable(purpose));
      raise_system("lock", path, errno);
    }
    struct ::stat held {};
    struct ::stat named {};
    const bool is_current = ::fstat(fd_, &held) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                            held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (!is_current) ::close(std::exchange(fd_, -1));
    return is_current;
  }

  /// Removes the file, then lets go of the lock.
  void release(const std::filesystem::path& path) noexcept {
    if (fd_ == -1) return;
    ::unlink(path.c_str());
    ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace detail

/// A new directory OUT, written as `OUT.rmsfold-partial`, renamed by commit(), and removed when there is no commit.
///
/// `OUT.rmsfold-partial.lock` keeps a second process away, and marks what lies beside it as ours: a directory left by a
/// process that was killed is removed, one without that mark is never touched. The lock outlives the directory at every
/// step.
class OutputDirectory {
 public:
  /// Takes the lock and makes the empty partial directory.
  ///
  /// @param out    the directory to be; its parent must exist
  /// @param model  the directory that is read meanwhile
  /// @param force  whether an existing `out` may be replaced
  /// @throws RefusedError when `out` exists and there is no `force`, when it is not a directory, and always when it is,
  ///   contains or lies inside `model`, links resolved; IoError when another process is writing `out`, or the system
  ///   refuses.
  OutputDirectory(const std::filesystem::path& out, const std::filesystem::path& model, bool force)
      : shown_(out), force_(force) {
    out_ = resolve(out);
    partial_ = out_;
    partial_ += ".rmsfold-partial";
    lock_path_ = partial_;
    lock_path_ += ".lock";
    refuse_to_touch(model);
    claim();
  }

  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  /// Removes the partial directory unless it was committed.
  ~OutputDirectory() {
    if (is_committed_) return;
    std::error_code ignored;  // nobody is left to be told; the lock file stays if the directory does
    std::filesystem::remove_all(partial_, ignored);
    if (!ignored) lock_.release(lock_path_);
  }

  /// Where to write: `OUT.rmsfold-partial`.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return partial_; }
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
    const bool replaced = force_ && detail::is_taken(out_);
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
        detail::raise<RefusedError>("the output {} is, or lies inside, the model {}: the model is never written",
                                    printable(shown_), printable(model));
      }
      if (detail::is_same_or_inside(source, target)) {
        detail::raise<RefusedError>("the output {} contains the model {}: the model is never written",
                                    printable(shown_), printable(model));
      }
      for (fs::directory_iterator entry(source, error), end; !error && entry != end; entry.increment(error)) {
        std::error_code dangling;
        const fs::path real = fs::canonical(entry->path(), dangling);
        if (!dangling && detail::is_same_or_inside(real, target)) {
          detail::raise<RefusedError>("the output {} contains {}, which the model links to: the model is never written",
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
    if (!force_) {
      detail::raise<RefusedError>("{} exists already: choose another name, or replace it with --force",
                                  printable(shown_));
    }
  }

  /// Takes the lock and makes an empty partial directory.
  void claim() {
    for (;;) {
      refuse_existing();
      // Without a lock file beside it, it is not ours. Looked at twice: its owner removes first the one, then the
      // other.
      if (detail::is_taken(partial_) && !detail::is_taken(lock_path_) && detail::is_taken(partial_)) {
        detail::raise<RefusedError>("{} exists, but no rmsfold left it there: move it away", printable(partial_));
      }
      const bool is_leftover = detail::is_taken(partial_);
      if (!lock_.acquire(lock_path_, shown_)) continue;
      if (is_leftover && detail::is_taken(partial_)) {
        std::error_code error;
        std::filesystem::remove_all(partial_, error);
        if (error) detail::raise_system("remove", partial_, error.value());
        notes_.push_back(fmt::format("removed {}, left by a run that was killed", printable(partial_)));
      }
      const bool is_late = !force_ && detail::is_taken(out_);  // made by a run that ended just now
      if (!is_late && ::mkdir(partial_.c_str(), 0777) == 0) return;
      const int code = is_late ? EEXIST : errno;
      lock_.release(lock_path_);
      if (code != EEXIST) detail::raise_system("create", partial_, code);
    }
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
  bool force_;
  std::filesystem::path out_;
  std::filesystem::path partial_;
  std::filesystem::path lock_path_;
  detail::LockFile lock_;
  std::vector<std::string> notes_;
  bool is_committed_ = false;
};

}  // namespace rmsfold::io
