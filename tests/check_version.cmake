# The first release named in CHANGELOG.md is the version of include/rmsfold/version.hpp.
cmake_minimum_required(VERSION 3.25)
file(STRINGS ${SOURCE_DIR}/CHANGELOG.md headings REGEX "^## ")
list(FILTER headings EXCLUDE REGEX "^## Unreleased$")
list(GET headings 0 first)
string(REPLACE "." "\\." pattern "${VERSION}")
if(NOT first MATCHES "^## ${pattern} \\([0-9]+-[0-9]+-[0-9]+\\): [^ ]")
  message(FATAL_ERROR "CHANGELOG.md begins with \"${first}\", version.hpp says ${VERSION}: expected \"## ${VERSION} (date): title\"")
endif()
