# SPDX-License-Identifier: Apache-2.0
# The CUDA compiler and runtime, only when GALLEY_CUDA is on.
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old for the CUDA backend; it needs 12.8 or newer")
endif()
include(GalleyCudaArchitectures)
galley_check_cuda_architectures("${GALLEY_CUDA_ARCHITECTURES}")
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
# CMake 3.25 does not know that nvcc 13 takes this dialect.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
# Host warnings are those that generated code can keep.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>")
