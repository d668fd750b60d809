# SPDX-License-Identifier: Apache-2.0
# Refuses GPU architectures that would not compile, or would stop on the GPU: the CUDA backend needs compute capability
# 9.0, and on 9.0 itself what only `90a` has. `native` names 90 there; `all` and `all-major` name older ones.
# `cmake -DARCHITECTURES=… -P` checks a list.
function(galley_check_cuda_architectures architectures)
  set(advice "Give numbers from 90 on, for compute capability 9.0 as 90a-real (make cuda CUDA_ARCHS=90a-real); the \
default is 90a-real;90-virtual.")
  if(NOT architectures)
    message(FATAL_ERROR "GALLEY_CUDA_ARCHITECTURES is empty. ${advice}")
  endif()
  set(has_90a OFF)
  if("${architectures}" MATCHES "(^|;)90a(-real)?(;|$)")
    set(has_90a ON)
  endif()
  foreach(architecture IN LISTS architectures)
    if(NOT architecture MATCHES "^([0-9]+)[af]?(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS 90)
      message(FATAL_ERROR "GALLEY_CUDA_ARCHITECTURES: the CUDA backend needs compute capability 9.0 or higher, which "
        "\"${architecture}\" is not. ${advice}")
    elseif(architecture MATCHES "^90(-real)?$" OR (architecture STREQUAL "90-virtual" AND NOT has_90a))
      message(FATAL_ERROR "GALLEY_CUDA_ARCHITECTURES: \"${architecture}\" lacks the products that the CUDA backend takes on "
        "GPUs of compute capability 9.0. ${advice}")
    endif()
  endforeach()
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  galley_check_cuda_architectures("${ARCHITECTURES}")
endif()
