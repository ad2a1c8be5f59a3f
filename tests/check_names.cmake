# No test case has [, ], ; or \ in its name: CMake's lists, through which Catch2's module hands the names to ctest, would join or split them.
cmake_minimum_required(VERSION 3.25)
file(GLOB_RECURSE sources ${TESTS_DIR}/*_test.cpp)
foreach(source IN LISTS sources)
  file(READ ${source} text)
  if(text MATCHES "TEST_CASE\\([ \n]*\"([^\"]*[][;\\\\][^\"]*)\"")  # the name may stand on a line of its own
    message(SEND_ERROR "${source}: a test case's name has one of [ ] ; \\ in it: ${CMAKE_MATCH_1}")
  endif()
endforeach()
