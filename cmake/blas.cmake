# rmsfold_blas: what is linked to it multiplies dense matrices by the system's BLAS when RMSFOLD_BLAS is on, else by Eigen's own kernels, which without -march
# flags reach about a third of it. Private: the headers' users choose by defining EIGEN_USE_BLAS or not.
add_library(rmsfold_blas INTERFACE)
if(RMSFOLD_BLAS)
  find_package(BLAS REQUIRED)
  target_compile_definitions(rmsfold_blas INTERFACE EIGEN_USE_BLAS)
  target_link_libraries(rmsfold_blas INTERFACE BLAS::BLAS)
  target_sources(rmsfold_blas INTERFACE ${CMAKE_CURRENT_LIST_DIR}/one_blas_thread.cpp)
endif()
