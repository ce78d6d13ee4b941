# The CUDA kernel of src/devices, compiled by nvcc to a fat binary that the program carries inside: machine code for the
# devices named here that this nvcc knows, and PTX, which the driver compiles for any other. Without nvcc the server
# does the same with the driver's 2-D copies.
set(copy_kernel_source ${CMAKE_SOURCE_DIR}/src/devices/cuda_copy_kernel.cu)
set(copy_kernel_flags -std=c++17 -I${CMAKE_SOURCE_DIR}/src -fatbin)

find_program(LARDER_NVCC nvcc PATHS /usr/local/cuda/bin)
if(LARDER_COPY_KERNEL STREQUAL "ON" AND NOT LARDER_NVCC)
  message(FATAL_ERROR "LARDER_COPY_KERNEL is ON, but there is no nvcc (set LARDER_NVCC)")
endif()

if(LARDER_NVCC)
  execute_process(COMMAND ${LARDER_NVCC} --list-gpu-code OUTPUT_VARIABLE nvcc_targets ERROR_QUIET)
  list(APPEND copy_kernel_flags -gencode arch=compute_80,code=[sm_80,compute_80])
  foreach(target 90 100)
    if(nvcc_targets MATCHES "sm_${target}\n")
      list(APPEND copy_kernel_flags -gencode arch=compute_${target},code=sm_${target})
    endif()
  endforeach()
endif()

if(LARDER_NVCC AND NOT LARDER_COPY_KERNEL STREQUAL "OFF")
  message(STATUS "CUDA copy kernel: built by ${LARDER_NVCC}")
  set(copy_kernel_binary ${CMAKE_BINARY_DIR}/cuda_copy_kernel.fatbin)
  set(copy_kernel_bytes ${CMAKE_BINARY_DIR}/cuda_copy_kernel_bytes.cc)
  add_custom_command(OUTPUT ${copy_kernel_binary}
    COMMAND ${LARDER_NVCC} ${copy_kernel_flags} -o ${copy_kernel_binary} ${copy_kernel_source}
    DEPENDS ${copy_kernel_source} ${CMAKE_SOURCE_DIR}/src/devices/cuda_copy_index.h VERBATIM)
  add_custom_command(OUTPUT ${copy_kernel_bytes}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${copy_kernel_binary} -DOUTPUT=${copy_kernel_bytes}
      -P ${CMAKE_SOURCE_DIR}/cmake/embed_copy_kernel.cmake
    DEPENDS ${copy_kernel_binary} ${CMAKE_SOURCE_DIR}/cmake/embed_copy_kernel.cmake VERBATIM)
  target_sources(larder_devices PRIVATE ${copy_kernel_bytes})
  target_compile_definitions(larder_devices PRIVATE LARDER_COPY_KERNEL=1)
else()
  message(STATUS "CUDA copy kernel: left out, there is no nvcc or LARDER_COPY_KERNEL is OFF")
  target_compile_definitions(larder_devices PRIVATE LARDER_COPY_KERNEL=0)
endif()

if(LARDER_TESTS)
  # Says "skipped" where nvcc is missing, so that nobody takes silence for a pass.
  add_test(NAME devices.copy_kernel COMMAND ${CMAKE_COMMAND} "-DNVCC=${LARDER_NVCC}" "-DFLAGS=${copy_kernel_flags}"
    -DSOURCE=${copy_kernel_source} -DOUTPUT=${CMAKE_BINARY_DIR}/copy_kernel_test.fatbin
    -P ${CMAKE_SOURCE_DIR}/cmake/check_copy_kernel.cmake)
  set_tests_properties(devices.copy_kernel PROPERTIES LABELS cuda TIMEOUT 300 SKIP_REGULAR_EXPRESSION "skipped: ")

  # Where there is a toolkit, its header is compared with our declarations.
  find_path(LARDER_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include NO_DEFAULT_PATH)
  if(LARDER_CUDA_INCLUDE)
    target_include_directories(devices_test SYSTEM PRIVATE ${LARDER_CUDA_INCLUDE})
    target_compile_definitions(devices_test PRIVATE LARDER_CUDA_HEADER=1)
  endif()
endif()
