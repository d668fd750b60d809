# SPDX-License-Identifier: Apache-2.0
# Third-party libraries, all from system packages (scripts/packages.txt). Each is used behind one wrapper of ours.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(tl-expected REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(simdjson REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost 1.74 REQUIRED)  # headers only: Asio and Beast
find_package(PkgConfig REQUIRED)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
if(GALLEY_TESTS)
  find_package(GTest REQUIRED)
  find_package(LibLZMA REQUIRED)
  include(GoogleTest)
endif()
if(GALLEY_BENCH)
  find_package(benchmark REQUIRED)
  find_package(CLI11 REQUIRED)  # command lines of the benchmark programs
endif()
