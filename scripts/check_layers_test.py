#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of check_layers.py on small trees: each rule finds its offence, and clean code passes."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_layers

TABLE = """
<!-- layers:begin -->
| layer | pure | may include | what |
|---|---|---|---|
| `base` | no | – | basics |
| `io` | no | `base` | files |
| `kv` | yes | `base` | blocks |
| `engine` | no | `base`, `io`, `kv` | steps |
| `serve` | no | `base`, `engine/engine.h` | endpoints |
| `apps/galley` | no | all | program |
<!-- layers:end -->
"""


def problems_of(files, table=TABLE):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "ARCHITECTURE.md").write_text(table, encoding="utf-8")
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_layers.check_tree(root)[0]


class Includes(unittest.TestCase):
    def assert_one(self, files, where, words):
        problems = problems_of(files)
        self.assertEqual(len(problems), 1, problems)
        self.assertTrue(problems[0].startswith(where + ": "), problems[0])
        self.assertIn(words, problems[0])

    def test_clean_tree_passes(self):
        self.assertEqual(
            problems_of(
                {
                    "src/galley/base/error.h": "#include <tl/expected.hpp>\n",
                    "src/galley/io/file.cc": '#include "galley/base/error.h"\n#include <fcntl.h>\n#include <mutex>\n',
                    "src/galley/kv/pool.cc": '#include "galley/kv/pool.h"\n#include <fmt/core.h>\n#include <vector>\n',
                    "src/galley/kv/pool_test.cc": "#include <gtest/gtest.h>\n#include <fstream>\n",
                    "src/galley/serve/server.cc": '#include "galley/engine/engine.h"\n',
                    "apps/galley/main.cc": '#include "galley/io/file.h"\n#include "options.h"\nauto x = getenv("HOME");\n',
                    "tests/e2e/run_test.cc": '#include "galley/serve/server.h"\n',
                }
            ),
            [],
        )

    def test_upward_include_is_found_with_its_line(self):
        self.assert_one(
            {"src/galley/base/log.cc": '#include "galley/base/log.h"\n\n#include "galley/io/file.h"\n'},
            "src/galley/base/log.cc:3",
            "base may not include io",
        )

    def test_only_the_named_header_of_a_seam_is_open(self):
        self.assert_one(
            {"src/galley/serve/a.cc": '#include "galley/engine/engine.h"\n#include "galley/engine/loader.h"\n'},
            "src/galley/serve/a.cc:2",
            "serve may not include engine",
        )

    def test_unknown_layers_are_found(self):
        self.assert_one({"src/galley/misc/a.cc": "int x;\n"}, "src/galley/misc/a.cc:1", "folder misc")
        self.assert_one({"tests/a_test.cc": '#include "galley/misc/a.h"\n'}, "tests/a_test.cc:1", "no layer misc")

    def test_path_not_from_src_is_found(self):
        self.assert_one({"src/galley/kv/a.cc": '#include "../io/file.h"\n'}, "src/galley/kv/a.cc:1", "from src")

    def test_effects_in_a_pure_layer_are_found(self):
        for header in ("thread", "mutex", "atomic", "sys/socket.h", "cuda_runtime.h", "fstream", "spdlog/spdlog.h"):
            with self.subTest(header):
                self.assert_one({"src/galley/kv/a.cc": f"#include <{header}>\n"}, "src/galley/kv/a.cc:1", "kv is pure")
        for code in ("std::chrono::steady_clock::now()", "std::random_device{}()", "rand ()", "std::cout << 1"):
            with self.subTest(code):
                self.assert_one({"src/galley/kv/a.cc": f"auto x = {code};\n"}, "src/galley/kv/a.cc:1", "kv is pure")

    def test_threads_are_found_in_tests_of_pure_layers_too(self):
        self.assert_one({"src/galley/kv/a_test.cc": "#include <thread>\n"}, "src/galley/kv/a_test.cc:1", "kv is pure")

    def test_foreign_library_in_a_pure_layer_is_found(self):
        self.assert_one({"src/galley/kv/a.cc": "#include <pcre2.h>\n"}, "src/galley/kv/a.cc:1", "may not use <pcre2.h>")

    def test_only_its_wrapper_may_use_sha256(self):
        self.assertEqual(problems_of({"src/galley/kv/sha256.cc": "#include <openssl/evp.h>\n"}), [])
        self.assert_one({"src/galley/kv/a.cc": "#include <openssl/evp.h>\n"}, "src/galley/kv/a.cc:1", "may not use")

    def test_environment_is_found_outside_apps(self):
        for place in ("src/galley/io/a.cc", "src/galley/kv/a.cc", "tests/a_test.cc", "bench/a_bench.cc"):
            with self.subTest(place):
                self.assert_one({place: 'auto x = std::getenv("HOME");\n'}, f"{place}:1", "environment")

    def test_comments_and_strings_do_not_count(self):
        self.assertEqual(
            problems_of(
                {
                    "src/galley/kv/a.cc": '// #include <thread>\n/* getenv\n getenv */ const char* a = "getenv";\n'
                    'const char* b = R"x(\n#include <thread>\n" getenv)x";\n',
                }
            ),
            [],
        )

    def test_code_after_a_comment_counts(self):
        self.assert_one(
            {"src/galley/io/a.cc": '/* one\n two */ const char* a = "//"; auto b = getenv("x");\n'},
            "src/galley/io/a.cc:2",
            "environment",
        )

    def test_heavy_library_in_a_header_is_found(self):
        self.assert_one(
            {"src/galley/io/a.h": "#include <nlohmann/json.hpp>\n", "src/galley/io/a.cc": "#include <nlohmann/json.hpp>\n"},
            "src/galley/io/a.h:1",
            "slow to compile",
        )

    def test_upward_link_is_found(self):
        self.assert_one(
            {"src/galley/io/CMakeLists.txt": "# galley::engine\ngalley_layer(NAME io\n  LINK galley::base galley::kv)\n"},
            "src/galley/io/CMakeLists.txt:3",
            "io links galley::kv",
        )


class Table(unittest.TestCase):
    def test_missing_or_broken_tables_are_found(self):
        for table in ("", TABLE.replace("`io`, `kv`", "`io`, `ovk`"), TABLE.replace("| pure |", "| clean |")):
            with self.subTest(table):
                self.assertEqual(len(problems_of({"src/galley/base/a.cc": "int x;\n"}, table)), 1)

    def test_circle_is_found(self):
        table = TABLE.replace("| `io` | no | `base` |", "| `io` | no | `base`, `engine` |")
        self.assertIn("circle", problems_of({}, table)[0])

    def test_empty_tree_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "ARCHITECTURE.md").write_text(TABLE, encoding="utf-8")
            self.assertEqual(check_layers.main(["check_layers.py", folder]), 1)


if __name__ == "__main__":
    unittest.main()
