#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Galley's grammar engine beside xgrammar and llguidance: speed on one thread, and verdicts on the case files.

    bench/grammar_vs_peers.py speed TOKENIZER_JSON[.xz] SCHEMAS_JSONL [--peer-schemas 60] [--compile-limit 10]
    bench/grammar_vs_peers.py verdicts SCHEMAS_JSONL [--peer-schemas 384]

Makes a virtual environment under build/ and installs the two packages there (xgrammar brings torch: gigabytes).
`--python` names an interpreter that has them already. Speed: all engines walk the same tokens (the longest ones, cut by
Galley's bench) through the same schemas; times are CPU time of the thread; peers run on a seeded sample of the schemas,
with whitespace wherever JSON allows it and open objects, which is what JSON Schema says. Verdicts: every text of the
cases is judged byte by byte by all three; what differs from the cases' own verdict is counted by engine, kind of error
and class of text. Galley must have none.
"""
import argparse
import base64
import collections
import json
import lzma
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "venv-grammar"


def enter_environment(python):
    """Runs this script again under an interpreter that has the packages."""
    if os.environ.get("GRAMMAR_PEERS_READY"):
        return
    if python is None:
        python = ENVIRONMENT / "bin" / "python"
        if not python.exists():
            venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "llguidance", "xgrammar", "numpy"], check=True)
    os.execve(python, [str(python), *sys.argv], {**os.environ, "GRAMMAR_PEERS_READY": "1"})


def lines(path):
    with (lzma.open if str(path).endswith(".xz") else open)(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Llguidance:
    """The same few operations on each peer: compile, mask, accept, what a text comes to."""

    name = "llguidance"

    def __init__(self, tokens, end):
        import llguidance
        import llguidance.numpy

        class Tokens:
            eos_token_id = end
            bos_token_id = None

            def __call__(self, text):
                return list(text.encode() if isinstance(text, str) else text)

        Tokens.tokens = [t if t else b"\xff<%d>" % i for i, t in enumerate(tokens)]
        Tokens.special_token_ids = [i for i, t in enumerate(tokens) if not t]
        self.lib = llguidance
        self.tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokens()))
        self.mask_row = llguidance.numpy.allocate_token_bitmask(1, len(tokens))
        self.fill_row = llguidance.numpy.fill_next_token_bitmask
        self.end = end

    def compile(self, schema):
        options = {"whitespace_flexible": True}
        grammar = self.lib.LLMatcher.grammar_from_json_schema(schema, overrides=options)
        self.matcher = self.lib.LLMatcher(self.tokenizer, grammar, log_level=0)
        return not self.matcher.is_error()

    def fill(self):
        self.fill_row(self.matcher, self.mask_row)

    def accept(self, token):
        return self.matcher.consume_token(token)

    def restart(self):
        self.matcher.reset()

    def judge(self, text):
        self.matcher.reset()
        tokens = list(text)
        return self.matcher.try_consume_tokens(tokens) == len(tokens) and self.matcher.is_accepting()


class Xgrammar:
    name = "xgrammar"

    def __init__(self, tokens, end):
        import xgrammar

        self.lib = xgrammar
        info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask_row = xgrammar.allocate_token_bitmask(1, len(tokens))
        self.end = end

    def compile(self, schema):
        try:
            grammar = self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        except Exception:  # the library refuses by many kinds of exceptions
            return False
        self.matcher = self.lib.GrammarMatcher(grammar)
        return True

    def fill(self):
        self.matcher.fill_next_token_bitmask(self.mask_row)

    def accept(self, token):
        return self.matcher.accept_token(token)

    def restart(self):
        self.matcher.reset()

    def judge(self, text):
        self.matcher.reset()
        return self.matcher.accept_string(text) and self.matcher.accept_token(self.end)


def quantiles(values):
    values = sorted(values)
    at = lambda q: values[int(q * (len(values) - 1))]
    return {"n": len(values), "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p99.9": at(0.999), "max": values[-1]} if values else {"n": 0}


def show(engine, what, unit, values):
    row = quantiles(values) if isinstance(values, list) else values
    figures = "  ".join(f"{name} {row[name]:.3f}" if name != "n" else f"n {row[name]}" for name in ("n", "p50", "p90", "p99", "p99.9", "max") if name in row)
    print(f"{engine:<11} {what:<10} {unit:<3} {figures}", flush=True)


def in_child(work, limit):
    """What `work` returns, computed in a forked process that may crash or take too long; None then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        import signal

        signal.alarm(limit)
        with os.fdopen(writer, "w") as out:
            out.write(json.dumps(work()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        text = result.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def walk_peer(peer, row):
    start = time.thread_time_ns()
    if not peer.compile(row["schema"]):
        return {"refused": 1}
    peer.fill()
    first = (time.thread_time_ns() - start) / 1e6
    masks, rejected = [], 0
    for tokens in row["texts"]:
        peer.restart()
        for token in tokens:
            begin = time.thread_time_ns()
            peer.fill()
            masks.append((time.thread_time_ns() - begin) / 1e3)
            if not peer.accept(token):
                rejected += 1
                break
    return {"first": first, "masks": masks, "rejected": rejected}


def speed(arguments):
    end = 1
    with tempfile.TemporaryDirectory() as folder:
        vocabulary_file, dump = pathlib.Path(folder, "vocabulary.json"), pathlib.Path(folder, "tokens.jsonl")
        script = ROOT / "scripts/tokenizer_to_vocabulary.py"
        with open(vocabulary_file, "w") as out:
            subprocess.run([sys.executable, script, arguments.tokenizer, str(arguments.vocab_size), str(end)], stdout=out, check=True)
        ours = json.loads(subprocess.run(
            [arguments.bench, "--vocab", vocabulary_file, "--cases", arguments.schemas, "--json", "--dump-tokens", dump],
            check=True, capture_output=True, text=True).stdout)
        vocabulary = json.load(open(vocabulary_file))
        rows = lines(dump)
    tokens = [base64.b64decode(t) if t else b"" for t in vocabulary["tokens"]]
    print(f"{vocabulary['vocab_size']} ids; Galley on {len(rows)} schemas, trie built in {ours['build_ms']} ms, refused {ours['refused']}, valid texts rejected {ours['rejected']}")
    show("galley", "first mask", "ms", ours["first_mask"])
    show("galley", "mask", "us", ours["mask"])
    show("galley", "memory", "MB", ours["memory"])
    random.Random(7).shuffle(rows)
    for kind in (Llguidance, Xgrammar):
        peer = kind(tokens, end)
        first, masks, counts = [], [], collections.Counter()
        for row in rows[: arguments.peer_schemas]:
            result = in_child(lambda: walk_peer(peer, row), arguments.compile_limit)
            if result is None:
                counts["crash or more than the limit"] += 1
            elif "refused" in result:
                counts["refused"] += 1
            else:
                first.append(result["first"])
                masks += result["masks"]
                counts["valid texts rejected"] += result["rejected"]
        print(f"{peer.name} on {arguments.peer_schemas} schemas: {dict(counts)}")
        show(peer.name, "first mask", "ms", first)
        show(peer.name, "mask", "us", masks)


class Galley:
    """Through the line protocol."""

    name = "galley"

    def __init__(self, program):
        self.process = subprocess.Popen([program, "grammar-serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def compile(self, schema):
        return self.call(op="compile", kind="json_schema", spec=json.loads(schema), options={"whitespace": "flexible"})["ok"]

    def judge(self, text):
        return self.call(op="check", hex=text.hex())["complete"]


def judge_all(engine, row):
    if not engine.compile(row["schema"]):
        return {"refused": 1}
    out = []
    for test in row["tests"]:
        text = bytes.fromhex(test["hex"]) if "hex" in test else test["t"].encode("utf-8", "surrogatepass")
        try:
            got = bool(engine.judge(text))
        except Exception:
            got = False
        out.append(got)
    return {"verdicts": out}


def verdicts(arguments):
    rows = lines(arguments.schemas)[: arguments.peer_schemas]
    tokens = [bytes([i]) for i in range(256)] + [b""]
    engines = [Galley(arguments.galley), Llguidance(tokens, 256), Xgrammar(tokens, 256)]
    for engine in engines:
        counts, examples = collections.Counter(), {}
        for row in rows:
            isolated = engine.name != "galley"
            result = in_child(lambda: judge_all(engine, row), 60) if isolated else judge_all(engine, row)
            if result is None or "refused" in result:
                counts[("crash or time-out" if result is None else "refused", row["family"].split(".")[0])] += 1
                continue
            for test, got in zip(row["tests"], result["verdicts"]):
                if got == test["v"]:
                    continue
                kind = "accepts invalid" if got else f"leaves out ({test['lax']})" if "lax" in test else "rejects valid"
                key = (kind, test["c"].split(":")[0])
                counts[key] += 1
                examples.setdefault(key, (row["id"], test.get("t", test.get("hex"))))
        print(f"\n{engine.name}")
        for (kind, what), count in sorted(counts.items()):
            example = examples.get((kind, what))
            print(f"  {kind:<22} {what:<14} {count:>5}" + (f"   e.g. {example[0]}: {example[1][:70]!r}" if example else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="interpreter with xgrammar and llguidance")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("speed")
    one.add_argument("tokenizer")
    one.add_argument("schemas")
    one.add_argument("--vocab-size", type=int, default=129280)
    one.add_argument("--peer-schemas", type=int, default=60)
    one.add_argument("--compile-limit", type=int, default=60, help="seconds for one schema of a peer")
    one.add_argument("--bench", default=ROOT / "build/release/bench/grammar_bench")
    two = commands.add_parser("verdicts")
    two.add_argument("schemas")
    two.add_argument("--peer-schemas", type=int, default=10**6)
    two.add_argument("--galley", default=ROOT / "build/release/galley")
    arguments = parser.parse_args()
    enter_environment(arguments.python)
    {"speed": speed, "verdicts": verdicts}[arguments.command](arguments)


if __name__ == "__main__":
    main()
