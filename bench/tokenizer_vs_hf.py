#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Galley's tokenizer against the Python package `tokenizers`, on the same text in one run.

    bench/tokenizer_vs_hf.py TOKENIZER_JSON [--bench build/release/bench/tokenizer_bench] [--rounds 5]

Makes a virtual environment under build/ and installs `tokenizers` there. Both sides use one thread and are timed by its
CPU time; rounds alternate and the best of each side counts. The reference may encode the text at once or paragraph by
paragraph, whichever is faster. Fails when the ids differ.
"""
import argparse
import array
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / "build" / "venv-tokenizers"


def enter_environment():
    """Runs this script again inside the virtual environment, which it makes when there is none."""
    python = ENVIRONMENT / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == ENVIRONMENT.resolve():
        return
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "tokenizers"], check=True)
    os.execv(python, [str(python), *sys.argv])


def cpu_seconds(work):
    start = time.thread_time()
    result = work()
    return time.thread_time() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/release/bench/tokenizer_bench")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    enter_environment()
    import tokenizers

    ours, theirs = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        text_file, ids_file = pathlib.Path(folder, "text"), pathlib.Path(folder, "ids")
        for round_number in range(arguments.rounds):
            output = subprocess.run(
                [arguments.bench, arguments.tokenizer, "--json", "--runs", "7", "--dump-text", text_file,
                 "--dump-ids", ids_file], check=True, capture_output=True, text=True).stdout
            for name, value in json.loads(output).items():
                better = min if name.endswith("_ms") else max
                ours[name] = better(ours.get(name, value), value)
            if round_number == 0:
                text = text_file.read_bytes().decode()
                ids = array.array("i", ids_file.read_bytes()).tolist()
                paragraphs = [p + "\n\n" for p in text.split("\n\n")[:-1]]
            seconds, reference = cpu_seconds(lambda: tokenizers.Tokenizer.from_file(str(arguments.tokenizer)))
            theirs["load_ms"] = min(theirs.get("load_ms", 1e9), 1e3 * seconds)
            for name, work in (
                    ("whole", lambda: reference.encode(text, add_special_tokens=False).ids),
                    ("paragraphs", lambda: [i for p in paragraphs
                                            for i in reference.encode(p, add_special_tokens=False).ids])):
                seconds, result = cpu_seconds(work)
                theirs[name] = max(theirs.get(name, 0), len(text.encode()) / seconds / 1e6)
                if name == "whole" and result != ids:
                    sys.exit("the ids differ")
    best = max(theirs["whole"], theirs["paragraphs"])
    print(f"text {len(text.encode()) / 1e6:.2f} MB, {len(ids)} tokens, ids equal; tokenizers {tokenizers.__version__}")
    print(f"load    {ours['load_ms']:8.1f} ms    reference {theirs['load_ms']:8.1f} ms    "
          f"ratio {theirs['load_ms'] / ours['load_ms']:.1f}")
    for label, name in (("encode, cache kept", "encode_mb_s"), ("encode, new encoder", "encode_new_encoder_mb_s"),
                        ("encode, no cache", "encode_without_cache_mb_s")):
        print(f"{label:<20}{ours[name]:8.1f} MB/s    reference {best:6.2f} MB/s    ratio {ours[name] / best:.1f}")


if __name__ == "__main__":
    main()
