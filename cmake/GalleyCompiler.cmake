# SPDX-License-Identifier: Apache-2.0
# Compiler settings shared by every target. Floating-point contraction is off so that a result does not depend on
# whether the compiler found a multiply and an add to fuse.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# CHECK stays on in every build; DCHECK follows NDEBUG.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g")

find_program(GALLEY_CCACHE ccache)
if(GALLEY_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${GALLEY_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${GALLEY_CCACHE}")
endif()

add_library(galley_compile_options INTERFACE)
# For C++ alone: the CUDA compiler does not know these options.
target_compile_options(galley_compile_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Werror;-ffp-contract=off;-fno-math-errno;-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports restrict, overread and dangling false positives inside the standard library at -O2.
  target_compile_options(galley_compile_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overread;-Wno-maybe-uninitialized>")
endif()
if(GALLEY_SANITIZE)
  target_compile_options(galley_compile_options INTERFACE
    "-fsanitize=${GALLEY_SANITIZE}" -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(galley_compile_options INTERFACE "-fsanitize=${GALLEY_SANITIZE}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With the instrumentation in between, GCC takes the end of a vector for a place beyond it.
    target_compile_options(galley_compile_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>")
  endif()
endif()
if(GALLEY_FUZZ)
  target_compile_options(galley_compile_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
