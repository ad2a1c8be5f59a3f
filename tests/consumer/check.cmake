# Builds and runs the project beside this file in WORK_DIR, the WAY it asks for: find_package, add_subdirectory or pkg_config.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
endfunction()

set(options "-DWAY=${WAY}" "-DCMAKE_CXX_COMPILER=${COMPILER}" -DCMAKE_BUILD_TYPE=Debug)
if(WAY STREQUAL "add_subdirectory")
  list(APPEND options "-DRMSFOLD_SOURCE_DIR=${SOURCE_DIR}")
else()
  # Installed, then moved: the package must not remember where it was installed to.
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --config "${CONFIG}" --prefix ${WORK_DIR}/installed)
  file(RENAME ${WORK_DIR}/installed ${WORK_DIR}/moved)
  list(APPEND options "-DCMAKE_PREFIX_PATH=${WORK_DIR}/moved")
endif()
if(WAY STREQUAL "pkg_config")
  list(APPEND options "-DPKG_CONFIG_EXECUTABLE=${PKG_CONFIG}")
endif()

run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK_DIR}/build ${options})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --config Debug)
run(${CMAKE_CTEST_COMMAND} --test-dir ${WORK_DIR}/build -C Debug --output-on-failure --no-tests=error)
