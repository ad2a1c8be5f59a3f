# Private flags of what is built here; linked PRIVATE, never exported or installed.

# rmsfold_warnings: what our own sources and headers must survive.
add_library(rmsfold_warnings INTERFACE)
target_compile_options(rmsfold_warnings INTERFACE
  $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wsign-conversion;-Wold-style-cast;-Wnon-virtual-dtor>
  $<$<CXX_COMPILER_ID:MSVC>:/W4;/permissive-;/utf-8>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: "..." + std::string, inlined at -O2, is taken for an overlapping copy.
  target_compile_options(rmsfold_warnings INTERFACE -Wno-restrict)
endif()
if(RMSFOLD_WARNINGS_AS_ERRORS)
  target_compile_options(rmsfold_warnings INTERFACE
    $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-Werror> $<$<CXX_COMPILER_ID:MSVC>:/WX>)
endif()

# rmsfold_exact: a compiler that contracts a*b+c into one rounding, where the processor has it, would change the bytes of folded and
# Hadamard-rotated checkpoints from machine to machine.
add_library(rmsfold_exact INTERFACE)
target_compile_options(rmsfold_exact INTERFACE $<$<CXX_COMPILER_ID:GNU,Clang,AppleClang>:-ffp-contract=off>)
