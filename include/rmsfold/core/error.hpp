// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The one family of exceptions: what went wrong decides the type, and with it the program's exit status.

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace rmsfold {

/// Base of everything this library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sizes that do not fit each other.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A value that breaks a type's invariant: a matrix that is not orthogonal, an index list that is not a permutation.
class InvariantError : public Error {
 public:
  using Error::Error;
};

/// A number the storage type cannot hold: an overflow that would have become an Inf in a file.
class RangeError : public Error {
 public:
  using Error::Error;
};

/// A malformed file; the message names the file, and the tensor and byte offset where there is one.
class FormatError : public Error {
 public:
  using Error::Error;
};

/// A request that the model's algebra, or this version, does not allow; the message says why and what to do instead.
class RefusedError : public Error {
 public:
  using Error::Error;
};

/// The operating system said no: cannot open, read, write, lock or rename.
class IoError : public Error {
 public:
  using Error::Error;
};

/// The user asked to stop.
class Interrupted : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// Throws `E` with a formatted message. Out of line and cold, so that checks cost a compare where they stand.
template <class E, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void raise(fmt::format_string<Args...> text, Args&&... args) {
  throw E(fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace detail
}  // namespace rmsfold
