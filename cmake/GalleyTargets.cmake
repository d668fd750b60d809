# SPDX-License-Identifier: Apache-2.0
# galley_layer(NAME base SOURCES a.cc … TESTS a_test.cc … LINK other-layer-or-library …)
# Declares the static library galley_<name> (alias galley::<name>) and, with tests on, <name>_test. Layers link only
# the layers that ARCHITECTURE.md lets them include; scripts/check_layers.py checks the includes themselves.
function(galley_layer)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;TESTS;LINK;TEST_LINK" ${ARGN})
  add_library(galley_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(galley::${ARG_NAME} ALIAS galley_${ARG_NAME})
  target_include_directories(galley_${ARG_NAME} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(galley_${ARG_NAME} PUBLIC galley_compile_options ${ARG_LINK})
  if(GALLEY_TESTS AND ARG_TESTS)
    galley_test(NAME ${ARG_NAME}_test SOURCES ${ARG_TESTS} LINK galley::${ARG_NAME} ${ARG_TEST_LINK})
  endif()
endfunction()

# What `make test` builds: the program and every test without the label `slow`.
if(GALLEY_TESTS)
  add_custom_target(fast_tests)
endif()

# tests/support/paths.h in front of every test, and its values.
if(GALLEY_TESTS)
  add_library(galley_test_paths STATIC "${PROJECT_SOURCE_DIR}/tests/support/paths.cc")
  target_include_directories(galley_test_paths PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(galley_test_paths PRIVATE
    GALLEY_TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}" GALLEY_TEST_SHARED_DIR="${PROJECT_SOURCE_DIR}/../shared")
  target_compile_options(galley_test_paths INTERFACE -include "${PROJECT_SOURCE_DIR}/tests/support/paths.h")
endif()

# galley_test(NAME x_test SOURCES x_test.cc LINK galley::x [LABELS slow] [TIMEOUT seconds])
# One ctest entry per test case. tests/support/paths.h says where tests find data. Label `slow` keeps a test out of `make test`.
function(galley_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE
    ${ARG_LINK} galley_test_paths galley_compile_options GTest::gmock GTest::gtest_main)
  # Tests spend their time in the libraries, so they need not be optimised as well as these; they build faster.
  target_compile_options(${ARG_NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT "slow" IN_LIST ARG_LABELS)
    add_dependencies(fast_tests ${ARG_NAME})
  endif()
  gtest_discover_tests(${ARG_NAME}
    DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# galley_fuzz(NAME json_fuzz SOURCES json_fuzz.cc LINK galley::x)
# A libFuzzer target, built by the fuzz preset alone, as part of the target `fuzzers`.
function(galley_fuzz)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LINK" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LINK} galley_compile_options -fsanitize=fuzzer)
  target_compile_definitions(${ARG_NAME} PRIVATE GALLEY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  add_dependencies(fuzzers ${ARG_NAME})
endfunction()
