// SPDX-License-Identifier: MIT
// Switches off the threads that a BLAS starts by itself: the workers multiply tiles of their own at the same time, and bits must not depend on threads.
// OpenBLAS's are reached from here, if it is OpenBLAS that is there when the program runs; those of others by their environment variables.

#if defined(__ELF__) && (defined(__GNUC__) || defined(__clang__))

extern "C" [[gnu::weak]] void openblas_set_num_threads(int);

namespace {

[[maybe_unused]] const bool is_openblas = [] {
  if (openblas_set_num_threads == nullptr) return false;
  openblas_set_num_threads(1);
  return true;
}();

}  // namespace

#endif
