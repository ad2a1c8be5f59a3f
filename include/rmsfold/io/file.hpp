// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Regular files on POSIX systems: read and written at offsets, every error an exception that names the file.

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <rmsfold/core/checked.hpp>
#include <rmsfold/core/error.hpp>

namespace rmsfold::io {

static_assert(sizeof(::off_t) == 8, "file offsets must have 64 bits");

/// Text from a file, fit for a message: control characters as `\xNN`, so that a name can neither break a line nor steer
/// a terminal; cut when it is longer than `longest` bytes.
[[nodiscard]] inline std::string printable(std::string_view text, std::size_t longest = 200) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i >= longest && (static_cast<unsigned char>(text[i]) & 0xC0u) != 0x80u) return shown + "...";
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0u;
    if (byte < 0x20 || byte == 0x7F) {
      shown += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F: control characters too
      shown += fmt::format("\\x{:02x}\\x{:02x}", byte, next);
      ++i;
    } else {
      shown += text[i];
    }
  }
  return shown;
}

/// A path, fit for a message.
template <std::same_as<std::filesystem::path> Path>
[[nodiscard]] std::string printable(const Path& path) {
  return printable(std::string_view(path.native()), 4096);
}

namespace detail {

using rmsfold::detail::raise;

/// Throws IoError: what failed, on which path, and the system's reason.
[[noreturn, gnu::cold, gnu::noinline]] inline void raise_system(std::string_view what,
                                                                const std::filesystem::path& path, int code) {
  raise<IoError>("cannot {} {}: {}", what, printable(path), std::generic_category().message(code));
}

/// Calls a system function again for as long as a signal interrupts it.
template <class Call>
[[nodiscard]] auto retry(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace detail

/// An open regular file, closed by the destructor.
///
/// Nothing is mapped: a file that shrinks while it is read is an exception, not a SIGBUS. Reads and writes carry their
/// own offset, so one File may serve several threads.
class File {
 public:
  /// Opens a regular file for reading; symbolic links are followed.
  /// @throws IoError when the system refuses; FormatError when it is a directory, a pipe or a device.
  [[nodiscard]] static File open(std::filesystem::path path) {
    // O_NONBLOCK: opening a pipe must not wait for somebody to write to it. It changes nothing for regular files.
    const int fd = detail::retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
    if (fd == -1) detail::raise_system("open", path, errno);
    File file(std::move(path), fd);
    const struct ::stat status = file.status();
    if (!S_ISREG(status.st_mode)) {
      detail::raise<FormatError>("{} is {}, not a regular file", printable(file.path_),
                                 S_ISDIR(status.st_mode) ? "a directory" : "a pipe or a device");
    }
    return file;
  }

  /// Creates a file for writing. @throws IoError when it exists already, or when the system refuses.
  [[nodiscard]] static File create(std::filesystem::path path, ::mode_t mode = 0666) {
    const int fd = detail::retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode); });
    if (fd == -1) detail::raise_system("create", path, errno);
    return File(std::move(path), fd);
  }

  /// Takes over; `other` is left without a file.
  File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  /// Takes over; `other` gets what was held.
  File& operator=(File&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (fd_ != -1) ::close(fd_);
  }

  /// The path it was opened by.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// Bytes in the file now. @throws IoError
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(status().st_size); }
  /// Permission bits, without set-id and sticky bits. @throws IoError
  [[nodiscard]] ::mode_t permissions() const { return status().st_mode & 0777u; }

  /// Fills `out` from the bytes at `offset`. @throws IoError when the system fails; FormatError when the file ends first.
  void read_exact(std::uint64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ::ssize_t count = detail::retry([&] { return ::pread(fd_, out.data(), out.size(), to_offset(offset)); });
      if (count == -1) detail::raise_system("read", path_, errno);
      if (count == 0) {
        detail::raise<FormatError>("{} was truncated while being read: it ends at byte {}, {} more were expected",
                               printable(path_), offset, out.size());
      }
      out = out.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

  /// Writes all of `bytes` at `offset`. @throws IoError
  void write_exact(std::uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ::ssize_t count =
          detail::retry([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), to_offset(offset)); });
      if (count == -1) detail::raise_system("write", path_, errno);
      if (count == 0) detail::raise_system("write", path_, ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
      offset += static_cast<std::uint64_t>(count);
    }
  }

  /// Asks the system to begin putting some bytes on the disk, where it can be asked; does not wait.
  void start_writeback([[maybe_unused]] std::uint64_t offset, [[maybe_unused]] std::uint64_t count) const noexcept {
#ifdef SYNC_FILE_RANGE_WRITE
    static_cast<void>(::sync_file_range(fd_, static_cast<::off64_t>(offset), static_cast<::off64_t>(count), SYNC_FILE_RANGE_WRITE));
#endif
  }

  /// Asks the system to put the contents on the disk. @throws IoError
  void sync() const {
    if (detail::retry([&] { return ::fsync(fd_); }) == -1) detail::raise_system("flush", path_, errno);
  }

  /// Closes now, so that an error that only shows here is not lost. @throws IoError
  void close() {
    const int fd = std::exchange(fd_, -1);
    // After EINTR the descriptor is gone on Linux: closing again could close somebody else's.
    if (fd != -1 && ::close(fd) == -1 && errno != EINTR) detail::raise_system("close", path_, errno);
  }

 private:
  File(std::filesystem::path path, int fd) noexcept : path_(std::move(path)), fd_(fd) {}

  [[nodiscard]] struct ::stat status() const {
    struct ::stat status {};
    if (::fstat(fd_, &status) == -1) detail::raise_system("inspect", path_, errno);
    return status;
  }

  [[nodiscard]] static ::off_t to_offset(std::uint64_t offset) { return narrow<::off_t>(offset); }

  std::filesystem::path path_;
  int fd_;
};

/// The bytes of `text`.
[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

/// A whole small file. @throws IoError; FormatError when it is larger than `limit` bytes.
[[nodiscard]] inline std::string read_text_file(const std::filesystem::path& path,
                                                std::uint64_t limit = std::uint64_t{256} << 20) {
  const File file = File::open(path);
  const std::uint64_t size = file.size();
  if (size > limit) {
    detail::raise<FormatError>("{} has {} bytes, more than the {} allowed here", printable(path), size, limit);
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.read_exact(0, std::as_writable_bytes(std::span<char>(text)));
  return text;
}

/// Creates a file that holds `text`. @throws IoError when it exists already, or when the system refuses.
inline void write_text_file(const std::filesystem::path& path, std::string_view text) {
  File file = File::create(path);
  file.write_exact(0, bytes_of(text));
  file.close();
}

/// Copies the contents of `from`, links followed, into a new regular file that its owner can read and write.
/// @throws IoError when `to` exists already, or when the system refuses; FormatError when `from` is not a regular file.
inline void copy_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const File source = File::open(from);
  File target = File::create(to, source.permissions() | S_IRUSR | S_IWUSR);
  const std::uint64_t size = source.size();
  std::vector<std::byte> buffer(static_cast<std::size_t>((std::min)(size, std::uint64_t{1} << 20)));
  for (std::uint64_t done = 0; done < size;) {
    const std::span<std::byte> chunk(buffer.data(),
                                     static_cast<std::size_t>((std::min<std::uint64_t>)(buffer.size(), size - done)));
    source.read_exact(done, chunk);
    target.write_exact(done, chunk);
    done += chunk.size();
  }
  target.close();
}

}  // namespace rmsfold::io
