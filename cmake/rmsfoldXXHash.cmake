# Finds the xxHash header (used inline; no library to link) and gives it the target rmsfold::xxhash.
# Used by the build and, installed beside the package file, by find_package(rmsfold). Debian's xxHash ships no package file of its own.
find_path(RMSFOLD_XXHASH_INCLUDE_DIR xxhash.h DOC "Folder of xxhash.h (Debian: libxxhash-dev)")
mark_as_advanced(RMSFOLD_XXHASH_INCLUDE_DIR)
if(RMSFOLD_XXHASH_INCLUDE_DIR AND NOT TARGET rmsfold::xxhash)
  add_library(rmsfold::xxhash INTERFACE IMPORTED)
  target_include_directories(rmsfold::xxhash INTERFACE "${RMSFOLD_XXHASH_INCLUDE_DIR}")
endif()
