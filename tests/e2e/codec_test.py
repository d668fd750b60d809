#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends every vector of DeepSeek's codec through `galley codec-serve` and compares the answers.

Usage: codec_test.py BINARY [--list]. The vectors are those beside the checkout (../shared/recipe), else the committed
copies (tests/cases/recipe). Token ids are compared when the tokenizer file is there too. Cases that Galley answers
better than the original stand in tests/cases/recipe/differences.json by weak point; every other case must match, and
every listed case must still differ. --list prints that file anew.
"""

import collections
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "recipe"
COPIES = ROOT / "tests" / "cases" / "recipe"
DIFFERENCES = COPIES / "differences.json"
FILES = {"render": 1385, "stream": 1670, "numbers": 512, "images": 495, "tokenize": 2289}
PATIENCE_S = 110

# Cases that have one of the weak points without being marked.
UNMARKED = {"s1237": "W11", "s1238": "W11", "s1417": "W13", "s1427": "W07", "s1514": "W09", "s1626": "W09"}


def read_rows(name):
    """The vectors of one file; none when only the material beside the checkout has it and that is absent."""
    for path in (SHARED / f"{name}.jsonl.xz", SHARED / f"{name}.jsonl", COPIES / f"{name}.jsonl.xz"):
        if path.exists():
            data = path.read_bytes()
            text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8", "surrogatepass")
            return [line for line in text.split("\n") if line]
    return []


def serve(binary, name, lines, tokenizer):
    cases = [line[:1] + json.dumps("file") + ":" + json.dumps(name + ".jsonl") + "," + line[1:] for line in lines]
    command = [binary, "codec-serve"] + (["--tokenizer", tokenizer] if tokenizer else [])
    outcome = subprocess.run(command, input="\n".join(cases).encode("utf-8", "surrogatepass"), capture_output=True, timeout=PATIENCE_S)
    if outcome.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {outcome.returncode}: {outcome.stderr.decode()}")
    answers = [json.loads(line) for line in outcome.stdout.decode().split("\n") if line]
    if len(answers) != len(lines):
        raise SystemExit(f"{name}: {len(lines)} cases, {len(answers)} answers")
    return answers


def drop(value, names):
    if isinstance(value, dict):
        return {k: drop(v, names) for k, v in value.items() if k not in names}
    return [drop(v, names) for v in value] if isinstance(value, list) else value


def comparable(expect, tokenizer):
    """Without what is ours to word, or what needs a tokenizer that is not there."""
    expect = dict(expect or {})
    if "error" in expect:
        if isinstance(expect["error"], dict):
            expect["error"] = {**expect["error"], "type": None}
        if expect["error"] != "conversion":
            expect["message"] = None
    if "render_error" in expect:
        expect["render_error"] = True
    # A call is held until it is whole, so its events come later than the original's; their order is the same.
    expect.pop("events_per_push", None)
    if not tokenizer:
        expect = drop(expect, {"ids", "render_error", "completion_tokens_details", "output_tokens_details"})
    return json.dumps(expect, sort_keys=True)


def same(name, row, answer, tokenizer):
    if name in ("render", "stream"):
        return comparable(answer.get("expect"), tokenizer) == comparable(row["expect"], tokenizer)
    # A case may say more than what is computed (its group, the reason of a refusal).
    if row.get("group") == "surrogate" and "error" in row:
        return "error" in answer
    kept = {k: v for k, v in row.items() if k not in ("name", "group", "text", "repeat")} if name == "tokenize" else row
    got = {k: v for k, v in answer.items() if k not in ("file",)}
    return json.dumps(got, sort_keys=True) == json.dumps(kept, sort_keys=True)


def needs_tokenizer(name, row):
    return name == "tokenize" or (name == "stream" and any("tokens" in chunk for chunk in row["chunks"]))


def main():
    binary, listing = sys.argv[1], "--list" in sys.argv
    allowed = {} if listing else {i: weak for weak, ids in json.loads(DIFFERENCES.read_text()).items() for i in ids}
    differing = collections.defaultdict(list)
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = None
        if (SHARED / "tokenizer.json.xz").exists():
            tokenizer = pathlib.Path(folder) / "tokenizer.json"
            tokenizer.write_bytes(lzma.decompress((SHARED / "tokenizer.json.xz").read_bytes()))
        for name, count in FILES.items():
            lines = read_rows(name)
            if not lines or (name == "tokenize" and not tokenizer):
                print(f"{name}: skipped, ../shared/recipe is absent")
                continue
            rows = [json.loads(line) for line in lines]
            if len(rows) != count:
                problems.append(f"{name} has {len(rows)} cases, not {count}")
            skipped = 0
            for row, answer in zip(rows, serve(binary, name, lines, tokenizer)):
                if not tokenizer and needs_tokenizer(name, row):
                    skipped += 1
                    continue
                ok, weak = same(name, row, answer, tokenizer), row.get("weak") or UNMARKED.get(row["id"], "unexplained")
                if not ok:
                    differing[weak].append(row["id"])
                if not listing and not ok and row["id"] not in allowed:
                    problems.append(f"{row['id']} ({weak}) differs\n got {json.dumps(answer)[:2000]}\nwant {json.dumps(row)[:2000]}")
                if not listing and ok and row["id"] in allowed and tokenizer:
                    problems.append(f"{row['id']} matches, but differences.json lists it under {allowed[row['id']]}")
            print(f"{name}: {len(rows) - skipped} compared, {skipped} need the tokenizer")
    if listing:
        body = ",\n".join(f'  "{weak}": {json.dumps(sorted(ids))}' for weak, ids in sorted(differing.items()))
        print("{\n" + body + "\n}")
    print(f"{sum(map(len, differing.values()))} differ on purpose: " + ", ".join(f"{w} {len(i)}" for w, i in sorted(differing.items())))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
