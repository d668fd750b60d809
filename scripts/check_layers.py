#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes keep to the layer table of ARCHITECTURE.md and that pure layers stay pure.

The table between the marks `<!-- layers:begin -->` and `<!-- layers:end -->` is the only statement of the rules: its
columns `layer`, `pure` and `may include` are read from there. `may include` lists layers (`base`), single headers of
another layer (`engine/engine.h`) or the word `all`. A layer may always include itself. Usage: check_layers.py [root].
"""

import pathlib
import re
import sys

BEGIN, END = "<!-- layers:begin -->", "<!-- layers:end -->"
SOURCES = {".h", ".cc", ".cu", ".cuh"}

# Headers of threads, clocks, files, sockets and devices: effects, which pure layers leave to their callers.
EFFECT_HEADERS = re.compile(
    r"<(?:thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|latch|barrier|stop_token"
    r"|ctime|time\.h|fstream|iostream|filesystem|csignal|signal\.h|pthread\.h|unistd\.h|fcntl\.h|netdb\.h|poll\.h"
    r"|sched\.h|dlfcn\.h|(?:sys|netinet|arpa|net|linux)/.*|spdlog/.*|cuda.*|cublas.*|nccl.*|nvml.*|driver_types\.h)>"
)
EFFECT_OWN_HEADERS = {"galley/base/log.h", "galley/base/thread_pool.h"}
EFFECT_WORDS = re.compile(
    r"\b(?:(?:system|steady|high_resolution|utc|file)_clock|random_device|thread_local|gettimeofday|clock_gettime"
    r"|s?rand(?=\s*\()|std::(?:cout|cerr|clog|cin)|getenv|secure_getenv|setenv|putenv|environ)\b"
)
# The third-party libraries that pure layers may use, and those that one wrapper file of a pure layer may.
PURE_LIBRARIES = ("fmt/", "tl/expected.hpp", "xxhash.h", "nlohmann/", "simdjson.h")
PURE_WRAPPERS = {"sha256.cc": "openssl/evp.h"}
# Tests of a pure layer read their cases from files and may measure time, but stay free of threads and sockets.
PURE_TEST_HEADERS = re.compile(r"<(?:fstream|iostream|filesystem|ctime|atomic|sys/stat\.h|unistd\.h)>")

ENVIRONMENT = re.compile(r"\b(?:secure_)?getenv\b")
# Slow to compile, so only the .cc file that wraps the library includes it.
HEAVY_HEADERS = re.compile(r"<(?:nlohmann/|simdjson|toml\+\+|CLI/|httplib|openssl/|boost/|spdlog/|gtest/|gmock/)")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"][^>"]+[>"])')
TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",  # not the separators of 1'000'000
    re.DOTALL,
)


class TableError(Exception):
    """The table itself cannot be used."""


def read_table(text):
    """Returns {layer: (set of layers and headers, or None for all; whether it is pure)}."""
    if BEGIN not in text or END not in text:
        raise TableError(f"ARCHITECTURE.md has no table between {BEGIN} and {END}")
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in text.split(BEGIN)[1].split(END)[0].splitlines()
        if line.lstrip().startswith("|")
    ]
    header = rows[0] if rows else []
    if not {"layer", "pure", "may include"} <= set(header):
        raise TableError("the layer table needs the columns 'layer', 'pure' and 'may include'")
    table = {}
    for row in rows[2:]:
        if len(row) != len(header):
            raise TableError(f"the layer table has a row of {len(row)} cells under {len(header)} headings: {row[0]}")
        cells = dict(zip(header, row))
        name = cells["layer"].strip("`")
        allowed = set(re.findall(r"`([^`]+)`", cells["may include"]))
        if cells["may include"] == "all":
            allowed = None
        table[name] = (allowed, cells["pure"] == "yes")
    for name, (allowed, _) in table.items():
        for other in allowed or ():
            if other.split("/")[0] not in table:
                raise TableError(f"the row of {name} names {other}, which is no layer of the table")
    find_cycle(table)
    return table


def find_cycle(table):
    """Raises when layers may include each other in a circle; single headers do not count, they are meant to be seams."""
    done, path = set(), []

    def visit(layer):
        if layer in path:
            raise TableError("the layer table has a circle: " + " -> ".join([*path[path.index(layer) :], layer]))
        if layer in done:
            return
        path.append(layer)
        for other in sorted(table[layer][0] or ()):
            if "/" not in other and other != layer:
                visit(other)
        path.pop()
        done.add(layer)

    for layer in table:
        visit(layer)


def blank(text, keep_strings):
    """Replaces comments, raw strings and, unless kept, other strings by spaces; line numbers stay."""

    def replace(match):
        token = match.group(0)
        if keep_strings and token[0] in "\"'":
            return token
        return re.sub(r"[^\n]", " ", token)

    return TOKENS.sub(replace, text)


def layer_of(relative):
    parts = relative.parts
    if parts[:2] == ("src", "galley") and len(parts) > 3:
        return parts[2]
    if parts[0] == "apps" and len(parts) > 2:
        return "/".join(parts[:2])
    return None  # tests, benchmarks and fuzz targets of the whole


def may_include(table, layer, header):
    allowed = table[layer][0]
    target = header.split("/")[1]
    return allowed is None or target == layer or target in allowed or "/".join(header.split("/")[1:]) in allowed


def check_include(table, layer, name, header, is_header, is_test):
    """Yields what is wrong with one `#include`; `header` still has its quotes or brackets."""
    inner = header[1:-1]
    pure = layer in table and table[layer][1]
    if header.startswith('"'):
        if not inner.startswith("galley/"):
            if layer is not None and not layer.startswith("apps/"):
                yield f'includes "{inner}"; write the path from src: "galley/…"'
            return
        target = inner.split("/")[1]
        if target not in table:
            yield f'includes "{inner}", but the layer table has no layer {target}'
        elif layer in table and not may_include(table, layer, inner):
            yield f'{layer} may not include {target} ("{inner}"): the layer table of ARCHITECTURE.md does not list it'
        if pure and not is_test and inner in EFFECT_OWN_HEADERS:
            yield f'{layer} is pure and may not include "{inner}": pass the effect in from the caller'
        return
    if is_header and not is_test and HEAVY_HEADERS.match(header):
        yield f"header {name} includes {header}, which is slow to compile: include it in one .cc file behind our own types"
    if not pure:
        return
    if EFFECT_HEADERS.match(header) and not (is_test and PURE_TEST_HEADERS.match(header)):
        yield f"{layer} is pure and may not include {header}: pass the effect in from the caller"
    elif PURE_WRAPPERS.get(name) == inner:
        return
    elif not is_test and re.search(r"[./]", inner) and not inner.startswith(PURE_LIBRARIES):
        yield f"{layer} is pure and may not use {header}; third-party libraries allowed there: {', '.join(PURE_LIBRARIES)}"


def check_source(table, relative, text):
    layer = layer_of(relative)
    if layer is not None and layer not in table:
        yield 1, f"folder {layer} is not in the layer table of ARCHITECTURE.md: add a row that says what it may include"
        return
    is_test = relative.stem.startswith("test_") or relative.stem.endswith(("_test", "_for_test", "_bench", "_fuzz"))
    is_header = relative.suffix in {".h", ".cuh"}
    for number, line in enumerate(blank(text, keep_strings=True).splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            for problem in check_include(table, layer, relative.name, found.group(1), is_header, is_test):
                yield number, problem
    pure = layer in table and table[layer][1]
    for number, line in enumerate(blank(text, keep_strings=False).splitlines(), 1):
        if ENVIRONMENT.search(line) and relative.parts[0] != "apps":
            yield number, "reads the environment; only apps/ may, and passes the value on as an option"
        elif pure and not is_test and EFFECT_WORDS.search(line) and not INCLUDE.match(line):
            word = EFFECT_WORDS.search(line).group(0)
            yield number, f"{layer} is pure and may not use {word}: pass the effect in from the caller"


def check_links(table, relative, text):
    """A layer's CMakeLists.txt links other layers: the same table holds there."""
    layer = layer_of(relative)
    if layer not in table or table[layer][0] is None:
        return
    reachable = {layer} | {entry.split("/")[0] for entry in table[layer][0]}
    for number, line in enumerate(text.splitlines(), 1):
        for target in re.findall(r"galley::(\w+)", line.split("#")[0]):
            if target in table and target not in reachable:
                yield number, f"{layer} links galley::{target}, which the layer table does not let it include"


def check_tree(root):
    """Returns the problems under `root` as lines of text."""
    try:
        table = read_table((root / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    except (OSError, TableError) as error:
        return [f"ARCHITECTURE.md: {error}"], 0
    problems, checked = [], 0
    for top in ("src", "apps", "tests", "bench", "fuzz"):
        for path in sorted((root / top).rglob("*")):
            relative = path.relative_to(root)
            if path.suffix in SOURCES:
                found = check_source(table, relative, path.read_text(encoding="utf-8"))
            elif path.name == "CMakeLists.txt":
                found = check_links(table, relative, path.read_text(encoding="utf-8"))
            else:
                continue
            checked += 1
            problems += [f"{relative}:{number}: {problem}" for number, problem in found]
    return problems, checked


def main(argv):
    root = pathlib.Path(argv[1]) if len(argv) > 1 else pathlib.Path(__file__).resolve().parent.parent
    problems, checked = check_tree(root)
    for problem in problems:
        print(problem)
    if checked == 0 and not problems:
        problems = [f"nothing to check under {root}"]
        print(problems[0])
    print(f"layers: {checked} files checked, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
