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


# Trees in which nothing is wrong.
CLEAN = [
    {
        "src/galley/base/error.h": "#include <tl/expected.hpp>\n",
        "src/galley/io/file.cc": '#include "galley/base/error.h"\n#include <fcntl.h>\n#include <mutex>\n',
        "src/galley/kv/pool.cc": '#include "galley/kv/pool.h"\n#include <fmt/core.h>\n#include <vector>\n',
        "src/galley/kv/pool_test.cc": "#include <gtest/gtest.h>\n#include <fstream>\n",
        "src/galley/kv/sha256.cc": "#include <openssl/evp.h>\n",  # the library's wrapper
        "src/galley/serve/server.cc": '#include "galley/engine/engine.h"\n',
        "apps/galley/main.cc": '#include "galley/io/file.h"\n#include "options.h"\nauto x = getenv("HOME");\n',
        "tests/e2e/run_test.cc": '#include "galley/serve/server.h"\n',
    },
    {  # comments and strings do not count
        "src/galley/kv/a.cc": '// #include <thread>\n/* getenv\n getenv */ const char* a = "getenv";\n'
        'const char* b = R"x(\n#include <thread>\n" getenv)x";\n',
    },
]

# A file with one offence: its line, words of the message, the text.
KV = "src/galley/kv/a.cc"
OFFENCES = [
    ("src/galley/base/log.cc", 3, "base may not include io",
     '#include "galley/base/log.h"\n\n#include "galley/io/file.h"\n'),
    # Only the named header of a seam is open.
    ("src/galley/serve/a.cc", 2, "serve may not include engine",
     '#include "galley/engine/engine.h"\n#include "galley/engine/loader.h"\n'),
    ("src/galley/misc/a.cc", 1, "folder misc", "int x;\n"),
    ("tests/a_test.cc", 1, "no layer misc", '#include "galley/misc/a.h"\n'),
    (KV, 1, "from src", '#include "../io/file.h"\n'),
    *((KV, 1, "kv is pure", f"#include <{header}>\n")
      for header in ("thread", "mutex", "atomic", "sys/socket.h", "cuda_runtime.h", "fstream", "spdlog/spdlog.h")),
    *((KV, 1, "kv is pure", f"auto x = {code};\n")
      for code in ("std::chrono::steady_clock::now()", "std::random_device{}()", "rand ()", "std::cout << 1")),
    ("src/galley/kv/a_test.cc", 1, "kv is pure", "#include <thread>\n"),
    (KV, 1, "may not use <pcre2.h>", "#include <pcre2.h>\n"),
    (KV, 1, "may not use", "#include <openssl/evp.h>\n"),
    *((place, 1, "environment", 'auto x = std::getenv("HOME");\n')
      for place in ("src/galley/io/a.cc", KV, "tests/a_test.cc", "bench/a_bench.cc")),
    ("src/galley/io/a.cc", 2, "environment", '/* one\n two */ const char* a = "//"; auto b = getenv("x");\n'),
    ("src/galley/io/a.h", 1, "slow to compile", "#include <nlohmann/json.hpp>\n"),
    ("src/galley/io/CMakeLists.txt", 3, "io links galley::kv",
     "# galley::engine\ngalley_layer(NAME io\n  LINK galley::base galley::kv)\n"),
]


class Includes(unittest.TestCase):
    def test_clean_trees_pass(self):
        for files in CLEAN:
            self.assertEqual(problems_of(files), [])

    def test_each_offence_is_found_with_its_line(self):
        for name, line, words, text in OFFENCES:
            with self.subTest(f"{name}: {text}"):
                # A source file may include what a header may not.
                problems = problems_of({name: text, "src/galley/io/b.cc": "#include <nlohmann/json.hpp>\n"})
                self.assertEqual(len(problems), 1, problems)
                self.assertTrue(problems[0].startswith(f"{name}:{line}: "), problems[0])
                self.assertIn(words, problems[0])


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
