#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the built `galley` as people and scripts do: arguments, pipes, terminals, signals, files.

Usage: cli_test.py BINARY [TESTCLASS…]. Only the standard library is needed.
"""

import itertools
import json
import os
import re
import pathlib
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
PROBE = ROOT / "tests" / "golden" / "v41_probe"
BINARY = None
# A generous bound for machines that are busy with other tests.
PATIENCE_S = 60

EXIT = {"invalid_argument": 2, "not_found": 3, "unsupported": 4, "corrupt": 5, "resource_exhausted": 6, "io": 7, "cancelled": 130}


def environment(**variables):
    """The environment of this process without what would change a run, and with `variables`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GALLEY_", "DEEPINFER_")) and k != "NO_COLOR"}
    clean["TERM"] = "xterm"
    clean.update(variables)
    return clean


def run(*arguments, text="", limits=None, **variables):
    return subprocess.run(
        [BINARY, *map(str, arguments)], input=text, capture_output=True, encoding="utf-8", errors="surrogateescape",
        timeout=PATIENCE_S, env=environment(**variables), preexec_fn=limits)


def wait_for_handler(process):
    """Until the process has taken over SIGINT, which it does when the model is loaded and generation begins."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        if caught >> (signal.SIGINT - 1) & 1:
            return
        if process.poll() is not None:
            raise AssertionError(f"ended early with {process.returncode}")
        time.sleep(0.005)
    raise AssertionError("never ready")


def read_until(descriptor, marker, seen=b""):
    """Bytes from a terminal or pipe until `marker` is among them, or it ends."""
    deadline = time.monotonic() + PATIENCE_S
    while marker not in seen:
        left = deadline - time.monotonic()
        if left <= 0:
            raise AssertionError(f"waited for {marker!r}, saw {seen!r}")
        if select.select([descriptor], [], [], left)[0]:
            try:
                chunk = os.read(descriptor, 65536)
            except OSError:  # the other side of a terminal has closed
                chunk = b""
            if not chunk:
                raise AssertionError(f"ended before {marker!r}, saw {seen!r}")
            seen += chunk
    return seen


def read_to_end(descriptor):
    seen = b""
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            return seen
        seen += chunk


class Help(unittest.TestCase):
    def test_pages(self):
        page = run("--help")
        self.assertEqual(page.returncode, 0)
        self.assertLessEqual(len(page.stdout.splitlines()), 40)
        commands = re.findall(r"^  ([a-z][a-z-]*) ", page.stdout, re.MULTILINE)
        self.assertLessEqual({"generate", "chat", "tokenize", "plan", "help"}, set(commands))
        for command in set(commands) - {"help"}:
            self.assertIn(f"Usage: galley {command}", run(command, "--help").stdout)

    def test_exit_codes_of_the_documentation(self):
        text = run("help", "exit-codes").stdout
        documented = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
        self.assertIn(text.strip("\n"), documented)
        for label, code in EXIT.items():
            self.assertRegex(text, rf"(?m)^ *{code}  {label} ")

    def test_option_page_of_the_documentation(self):
        self.assertEqual(run("options", "--markdown").stdout, (ROOT / "docs" / "options.md").read_text(encoding="utf-8"))


class Generate(unittest.TestCase):
    def golden(self, name):
        cases = json.loads((ROOT / "tests" / "golden" / "nano" / "golden.json").read_text(encoding="utf-8"))
        return next(case for case in cases if case["name"] == name)

    def assert_follows(self, golden, ids):
        """Equal up to the first step whose margin allows another choice (tests/golden: 0.35 for this model)."""
        for step, (ours, theirs) in enumerate(zip(ids, golden["greedy"])):
            if golden["margin"][step] < 0.35:
                return
            self.assertEqual(ours, theirs, f"step {step}")

    def test_chat_prompt_and_answer(self):
        golden = self.golden("think")
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--max-tokens", 6, "--thinking", "What is 27 + 45?").stdout)
        self.assertEqual(answer["prompt_ids"], golden["ids"])
        self.assert_follows(golden, answer["ids"])

    def test_system_prompt(self):
        golden = self.golden("chat")
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--max-tokens", 4, "--system",
                                "You are a helpful assistant.", "Why do birds fly?").stdout)
        self.assertEqual(answer["prompt_ids"], golden["ids"])
        self.assert_follows(golden, answer["ids"])
        self.assertEqual(answer["finish_reason"], "length")

    def test_raw_prompt(self):
        golden = self.golden("story")
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--max-tokens", 6, "--raw", "Once upon a time").stdout)
        self.assertEqual(answer["prompt_ids"], golden["ids"])
        self.assert_follows(golden, answer["ids"])
        self.assertEqual(set(answer), {"prompt_ids", "ids", "text", "finish_reason", "seed", "timings"})

    def test_ids_prompt_with_tools(self):
        golden = self.golden("required")
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--max-tokens", 6, "--ids", "-", text=json.dumps(golden["ids"])).stdout)
        self.assert_follows(golden, answer["ids"])
        self.assertTrue(golden["text"].startswith(answer["text"]), answer["text"])

    def test_text_from_standard_input_is_the_same_prompt(self):
        arguments = ["generate", "--json", "--max-tokens", 1]
        first = json.loads(run(*arguments, "Hi there").stdout)
        self.assertEqual(json.loads(run(*arguments, text="Hi there\n").stdout)["prompt_ids"], first["prompt_ids"])

    def test_the_same_seed_gives_the_same_text(self):
        arguments = ["generate", "--raw", "--max-tokens", 6, "Once"]
        first = run(*arguments, "--seed", 5)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(run(*arguments, "--seed", 5).stdout, first.stdout)
        self.assertEqual(run(*arguments, "--seed", 5, "--prefill-chunk", 1, "--threads", 1).stdout, first.stdout)

    def test_logprobs(self):
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--logprobs", 2, "--max-tokens", 2, "--raw", "Once upon a").stdout)
        for id, entry in zip(answer["ids"], answer["logprobs"]):
            self.assertEqual(entry["id"], id)
            self.assertEqual(entry["top"][0]["id"], id, "greedy takes the most likely token")
            self.assertLessEqual(entry["top"][1]["logprob"], entry["logprob"])
            self.assertLessEqual(entry["logprob"], 0)

    def test_backends_and_experts_on_disk(self):
        golden = self.golden("chat")
        arguments = ["generate", "--json", "--temperature", 0, "--max-tokens", 4, "--ids", "-"]
        text = json.dumps(golden["ids"])
        for flags in (["--backend", "ref"], ["--backend", "cpu"], ["--isa", "generic"],
                      ["--experts", "disk", "--expert-memory", "500KiB"]):
            self.assert_follows(golden, json.loads(run(*arguments, *flags, text=text).stdout)["ids"])

    def test_stop_string(self):
        answer = json.loads(run("generate", "--json", "--temperature", 0, "--max-tokens", 64, "--raw", "--stop", "girl", "Once upon a time").stdout)
        self.assertEqual((answer["finish_reason"], answer["stop"]), ("stop", "girl"))
        self.assertNotIn("gir", answer["text"])


class Errors(unittest.TestCase):
    def refused(self, code, message, *arguments, text="", **variables):
        outcome = run(*arguments, text=text, **variables)
        self.assertEqual(outcome.returncode, EXIT[code], outcome.stderr)
        self.assertEqual(outcome.stdout, "")
        self.assertIn(message, outcome.stderr)
        self.assertTrue(outcome.stderr.startswith("galley: "), outcome.stderr)
        self.assertEqual(outcome.stderr.count("\n"), 1, outcome.stderr)
        return outcome.stderr

    def copy_of_nano(self, folder, without=()):
        for file in NANO.iterdir():
            if file.name not in without:
                os.symlink(file, folder / file.name)
        return folder

    def test_flags(self):
        self.refused("invalid_argument", "--temprature: unknown option (did you mean --temperature?)", "generate", "--temprature", "1", "Hi")
        self.refused("invalid_argument", 'top-k: "many" is not a whole number', "generate", "--top-k", "many", "Hi")
        self.refused("invalid_argument", '"warm" is not a number; give a number from 0 to 2', "generate", "--temperature", "warm", "Hi")
        self.refused("invalid_argument", "-1 is too small; give a whole number of at least 0", "generate", "--seed", "-1", "Hi")
        self.refused("invalid_argument", "is out of range; give a whole number", "generate", "--seed", "9223372036854775808", "Hi")
        self.refused("invalid_argument", "--decode: `galley generate` does not take this option; it belongs to tokenize", "generate", "--decode", "Hi")
        self.refused("invalid_argument", "there is no command generat (did you mean generate?)", "generat", "Hi")
        self.refused("invalid_argument", "a model name is text", "serve", "--port", "0", "--served-model-name", "")
        self.refused("unsupported", "--batch-invariant: not available in this version", "generate", "--no-batch-invariant", "Hi")

    def test_prompts(self):
        self.refused("invalid_argument", "the prompt is empty", "generate")
        self.refused("invalid_argument", "the prompt is empty", "generate", "")
        self.refused("not_found", "cannot open", "generate", "--prompt-file", "/nonexistent/prompt.txt")
        self.refused("invalid_argument", "8192", "generate", "--raw", text="word " * 9000)

    def test_ids_outside_the_vocabulary(self):
        self.refused("invalid_argument", "2560", "generate", "--ids", "-", text="[0, 2560]")

    def test_placement_that_cannot_be(self):
        self.refused("invalid_argument", "give at least 409600", "generate", "--experts", "disk", "--expert-memory", "1KiB", "Hi")
        self.refused("unsupported", "use --backend cpu", "generate", "--experts", "disk", "--backend", "ref", "Hi")
        for flags in (["--backend", "cpu", "--experts", "disk"], ["--backend", "cuda"]):
            self.refused("invalid_argument", "use --backend cuda with --experts host or disk", "plan", "--expert-cache", "1GiB", *flags)
        self.refused("invalid_argument", "is for the cuda backend", "plan", "--device-memory", "1GiB")
        self.refused("invalid_argument", "--expert-memory: is for experts on disk", "generate", "--expert-memory", "1GiB", "Hi")
        self.refused("invalid_argument", "--isa: is for the cpu backend", "generate", "--isa", "generic", "--backend", "ref", "Hi")
        self.refused("invalid_argument", "it belongs to throughput", "bench", "layers", "--requests", "4")
        self.refused("unsupported", "measures the cpu and cuda backends, not ref", "bench", "layers", "--backend", "ref")

    def test_no_gpu_or_no_backend_for_it(self):
        # Benchmarks of the cuda backend have no other to fall back to.
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU")
        for arguments in [["generate", "Hi"], ["bench", "kernels"], ["bench", "slice"]]:
            outcome = run(*arguments, "--backend", "cuda")
            self.assertEqual(outcome.returncode, EXIT["unsupported"], outcome.stderr)
            self.assertRegex(outcome.stderr, "make cuda|offers 0 CUDA devices")
            if arguments[0] == "bench":
                self.assertNotIn("use --backend cpu", outcome.stderr)
        # The tests of the GPU say so once, before any part runs.
        script = ["bash", ROOT / "tests" / "gpu" / "run.sh"]
        build = environment(BUILD=str(pathlib.Path(BINARY).resolve().parent))
        outcome = subprocess.run(script, capture_output=True, encoding="utf-8", timeout=PATIENCE_S, env=build)
        self.assertEqual((outcome.returncode, outcome.stdout), (2, ""), outcome.stderr)
        self.assertIn("finds no GPU", outcome.stderr)
        usage = subprocess.run([*script, "--help"], capture_output=True, encoding="utf-8", timeout=PATIENCE_S, env=build)
        self.assertEqual(usage.returncode, 0)
        self.assertIn("forms conformance invariance", usage.stdout)

    def test_no_model_there(self):
        self.refused("not_found", "/nonexistent", "generate", "--model", "/nonexistent", "Hi")
        with tempfile.TemporaryDirectory() as folder:
            self.refused("not_found", "config.json", "generate", "--model", folder, "Hi")

    def test_the_own_model_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            lone = pathlib.Path(folder) / "bin" / "galley"
            lone.parent.mkdir()
            shutil.copy(BINARY, lone)
            outcome = subprocess.run([lone, "generate", "Hi"], capture_output=True, encoding="utf-8", env=environment(), timeout=PATIENCE_S)
            self.assertEqual(outcome.returncode, EXIT["not_found"])
            self.assertIn("share/galley/models/nano", outcome.stderr)
            self.assertIn("--model", outcome.stderr)
            # Installed the usual way, it is found.
            share = pathlib.Path(folder) / "share" / "galley" / "models"
            share.mkdir(parents=True)
            os.symlink(NANO, share / "nano")
            outcome = subprocess.run([lone, "tokenize", "Once"], capture_output=True, encoding="utf-8", env=environment(), timeout=PATIENCE_S)
            self.assertEqual(outcome.stdout, "[554]\n", outcome.stderr)

    def test_another_architecture(self):
        with tempfile.TemporaryDirectory() as folder:
            config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168}
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            self.refused("unsupported", "DeepseekV3ForCausalLM", "generate", "--model", folder, "Hi")

    def test_missing_shard(self):
        with tempfile.TemporaryDirectory() as folder:
            self.copy_of_nano(pathlib.Path(folder), without=["model-00002-of-00004.safetensors"])
            outcome = run("generate", "--model", folder, "Hi")
            self.assertIn(outcome.returncode, (EXIT["corrupt"], EXIT["not_found"]), outcome.stderr)
            self.assertIn("model-00002-of-00004.safetensors", outcome.stderr)
            self.assertNotEqual(run("inspect", folder).returncode, 0)

    def test_damaged_shard(self):
        name = "model-00003-of-00004.safetensors"
        with tempfile.TemporaryDirectory() as folder:
            self.copy_of_nano(pathlib.Path(folder), without=[name])
            (pathlib.Path(folder) / name).write_bytes((NANO / name).read_bytes()[:-1000])
            self.refused("corrupt", name, "generate", "--model", folder, "Hi")

    def test_not_enough_memory(self):
        if "GALLEY_SANITIZED" in os.environ:
            self.skipTest("sanitizers reserve more address space than the limit")
        tight = 40 << 20
        outcome = run("generate", "Hi", limits=lambda: resource.setrlimit(resource.RLIMIT_AS, (tight, tight)))
        self.assertEqual(outcome.returncode, EXIT["resource_exhausted"], outcome.stderr)
        self.assertIn("memory", outcome.stderr)

    def test_output_is_checked_before_the_work(self):
        self.refused("not_found", "cannot write", "dump", "--ids", "-", "--out", "/nonexistent/folder/tensors.safetensors", text="[0]")
        self.refused("invalid_argument", "this is a directory", "dump", "--ids", "-", "--out", "/", text="[0]")
        self.refused("invalid_argument", "nothing to do", "dump", "--ids", "-", text="[0]")

    def test_output_never_replaces_a_pipe_and_failures_leave_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe, tensors = pathlib.Path(folder) / "pipe", pathlib.Path(folder) / "tensors.safetensors"
            os.mkfifo(pipe)
            self.refused("invalid_argument", "this is a pipe or device", "dump", "--ids", "-", "--out", pipe, text="[0]")
            self.assertTrue(pipe.is_fifo())
            self.refused("invalid_argument", "outside the vocabulary", "dump", "--ids", "-", "--out", tensors, text="[999999]")
            self.assertFalse(tensors.exists())

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            outcome = subprocess.run([BINARY, "generate", "--max-tokens", "4", "Hi"], stdout=full, stderr=subprocess.PIPE,
                                     encoding="utf-8", env=environment(), timeout=PATIENCE_S)
        self.assertEqual(outcome.returncode, EXIT["io"])
        self.assertIn("standard output: cannot write: No space left on device", outcome.stderr)


class Configuration(unittest.TestCase):
    def seed_of(self, *arguments, **variables):
        outcome = run("generate", "--json", "--max-tokens", "1", "Hi", *arguments, **variables)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        return json.loads(outcome.stdout)["seed"]

    def test_precedence(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("[sampling]\nseed = 11\n")
            file.flush()
            self.assertEqual(self.seed_of("--config", file.name), 11)
            self.assertEqual(self.seed_of(GALLEY_CONFIG=file.name), 11)
            self.assertEqual(self.seed_of("--config", file.name, GALLEY_SEED="22"), 22)
            self.assertEqual(self.seed_of("--config", file.name, "--seed", "33", GALLEY_SEED="22"), 33)

    def test_mistakes(self):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write("[sampling]\nseeed = 11\n")
            file.flush()
            outcome = run("generate", "Hi", "--config", file.name)
            self.assertEqual(outcome.returncode, EXIT["invalid_argument"])
            self.assertIn(f"{file.name}:2: unknown key seeed in [sampling] (did you mean seed?)", outcome.stderr)

    def test_variables_of_deepinfer(self):
        outcome = run("generate", "--json", "--max-tokens", "1", "--raw", "Hi", DEEPINFER_HF_MODEL_DIR=str(PROBE),
                      DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE="compact", DEEPINFER_YOCO_PREFILL_KEEP_TOKENS="140",
                      DEEPINFER_BATCH_INVARIANT="1", DEEPINFER_ENABLE_MTP_VARLEN="0")
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
        self.assertLess(json.loads(outcome.stdout)["ids"][0], 512, "the probe has 512 tokens")

        outcome = run("generate", "Hi", DEEPINFER_ACCELERATOR="ascend")
        self.assertEqual(outcome.returncode, EXIT["unsupported"])
        self.assertIn("DEEPINFER_ACCELERATOR", outcome.stderr)
        self.assertIn("nvidia", outcome.stderr)

        outcome = run("generate", "Hi", DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE="tight")
        self.assertEqual(outcome.returncode, EXIT["invalid_argument"])
        self.assertIn("it accepts compact", outcome.stderr)

        outcome = run("generate", "Hi", DEEPINFER_HF_MODEL_DIR="a", GALLEY_MODEL="b")
        self.assertEqual(outcome.returncode, EXIT["invalid_argument"])
        self.assertIn('GALLEY_MODEL="b" and DEEPINFER_HF_MODEL_DIR="a" contradict each other', outcome.stderr)

        outcome = run("generate", "--max-tokens", "1", "Hi", DEEPINFER_BATCH_INVARIANT="0")
        self.assertEqual(outcome.returncode, 0)
        self.assertIn("warning: batch-invariant: not available in this version", outcome.stderr)


class Pipes(unittest.TestCase):
    def test_closed_descriptors(self):
        """A file that the program opens must not take the place of a standard descriptor that was closed at the start."""
        with tempfile.TemporaryDirectory() as folder:
            for closed in ((0,), (1,), (2,), (0, 1, 2)):
                def close(closed=closed):
                    for descriptor in closed:
                        os.close(descriptor)
                tensors = pathlib.Path(folder) / "-".join(map(str, closed))
                outcome = run("generate", "--max-tokens", "4", "--temperature", "0", "Hi", limits=close)
                self.assertEqual((outcome.returncode, outcome.stderr), (0, ""), closed)
                self.assertEqual(bool(outcome.stdout), 1 not in closed)
                outcome = run("chat", text="Hi\n", limits=close)
                self.assertEqual(outcome.returncode, EXIT["io"] if 0 in closed else 0, closed)
                dump = ["dump", "--model", PROBE, "--compare", PROBE / "golden_t5.safetensors", "--out", tensors]
                self.assertEqual(run(*dump, limits=close).returncode, 0, closed)
                self.assertEqual(run("dump", "--model", PROBE, "--compare", tensors).returncode, 0, closed)

    def test_a_reader_that_stops_early(self):
        process = subprocess.Popen([BINARY, "generate", "--raw", "--temperature", "0", "--max-tokens", "5000", "Once upon a time"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.assertTrue(process.stdout.read(5))
        process.stdout.close()
        self.assertEqual(process.stderr.read(), b"")
        self.assertEqual(process.wait(PATIENCE_S), 0)
        process.stderr.close()

    def test_text_streams(self):
        process = subprocess.Popen([BINARY, "generate", "--raw", "--temperature", "0", "--max-tokens", "5000", "Once upon a time"],
                                   stdout=subprocess.PIPE, env=environment())
        self.assertTrue(os.read(process.stdout.fileno(), 1))  # long before the end
        self.assertIsNone(process.poll())
        process.kill()
        process.wait()
        process.stdout.close()


class Interrupts(unittest.TestCase):
    def start(self, *arguments, prompt="Once upon a time"):
        process = subprocess.Popen([BINARY, "generate", "--raw", "--temperature", "0", "--max-tokens", "8000", *arguments], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        process.stdin.write(prompt.encode())
        process.stdin.close()
        process.stdin = None
        return process

    def test_text_so_far_is_kept(self):
        process = self.start()
        start = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        text, errors = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 130)
        self.assertTrue((start + text).endswith(b"\n"))
        self.assertEqual(errors, b"")

    def test_json_is_whole(self):
        process = self.start("--json")
        wait_for_handler(process)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 130)
        answer = json.loads(text)
        self.assertEqual(answer["finish_reason"], "cancelled")
        self.assertLess(len(answer["ids"]), 8000)

    def test_the_second_one_kills(self):
        # One step over a prompt this long takes many seconds, and only between steps does the first one count.
        process = self.start("--prefill-chunk", "65535", prompt="word " * 3800)
        wait_for_handler(process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 130)
        self.assertLess(time.monotonic() - begin, 2)


class Terminals(unittest.TestCase):
    def with_terminal(self, stream, *arguments, **variables):
        """Runs with `stream` (stdout or stderr) on a terminal; returns what the terminal and the other stream got."""
        master, slave = pty.openpty()
        other = "stderr" if stream == "stdout" else "stdout"
        process = subprocess.Popen([BINARY, *arguments], stdin=subprocess.DEVNULL, **{stream: slave, other: subprocess.PIPE},
                                   env=environment(**variables))
        os.close(slave)
        seen = read_to_end(master)
        os.close(master)
        pipe = getattr(process, other)
        rest = pipe.read()
        pipe.close()
        self.assertEqual(process.wait(PATIENCE_S), 0, rest)
        return seen, rest

    def test_progress_of_a_long_prompt(self):
        words = "word " * 60
        seen, text = self.with_terminal("stderr", "generate", "--raw", "--max-tokens", "1", "--prefill-chunk", "40", words)
        self.assertIn(b"prompt [", seen)
        self.assertTrue(seen.endswith(b"\r\x1b[K"), seen[-80:])
        self.assertNotIn(b"\x1b", text)

    def test_no_progress_for_a_short_prompt_or_a_pipe(self):
        seen, _ = self.with_terminal("stderr", "generate", "--raw", "--max-tokens", "1", "Once")
        self.assertEqual(seen, b"")
        self.assertEqual(run("generate", "--raw", "--max-tokens", "1", "--prefill-chunk", "40", "word " * 60).stderr, "")

    def test_reasoning_is_dimmed(self):
        arguments = ["generate", "--thinking", "--temperature", "0", "--max-tokens", "3", "What is 27 + 45?"]
        seen, _ = self.with_terminal("stdout", *arguments)
        self.assertTrue(seen.startswith(b"\x1b[2m27 is"), seen)
        self.assertTrue(seen.endswith(b"\r\n\x1b[0m"), seen)
        for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            seen, _ = self.with_terminal("stdout", *arguments, **plain)
            self.assertTrue(seen.startswith(b"<think>\r\n27 is"), seen)
            self.assertNotIn(b"\x1b", seen)

    def test_no_prompt_at_a_keyboard(self):
        master, slave = pty.openpty()
        outcome = subprocess.run([BINARY, "generate"], stdin=slave, capture_output=True, encoding="utf-8", env=environment(), timeout=PATIENCE_S)
        os.close(slave)
        os.close(master)
        self.assertEqual(outcome.returncode, EXIT["invalid_argument"])
        self.assertIn("there is no text; give it as an argument", outcome.stderr)

    def test_a_text_cannot_drive_the_terminal(self):
        ids = run("tokenize", "a\x1b[31mb").stdout
        seen, _ = self.with_terminal("stdout", "tokenize", "--decode", ids.strip())
        self.assertEqual(seen.decode(), "a\ufffd[31mb\r\n")

    def test_a_message_cannot_drive_the_terminal(self):
        seen, _ = self.with_terminal("stderr", "tokenize", "Hi", **{"GALLEY_A\x1b[31mB": "1"})
        self.assertIn("environment variable GALLEY_A\ufffd[31mB means nothing", seen.decode())


class Chat(unittest.TestCase):
    def test_script(self):
        outcome = run("chat", "--temperature", "0", "--max-tokens", "4", text="Hello\n/stats\nThank you\n/nonsense\n")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(len(outcome.stdout.splitlines()), 2, outcome.stdout)
        self.assertIn("1 exchanges", outcome.stderr)
        self.assertIn("There is no command /nonsense", outcome.stderr)

    def test_full_context(self):
        outcome = run("chat", "--max-seq-len", "40", "--max-tokens", "1", text="word " * 60 + "\nHi\n")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("/reset starts anew", outcome.stderr)
        self.assertEqual(len(outcome.stdout.splitlines()), 1)

    def test_keyboard(self):
        pid, terminal = pty.fork()
        if pid == 0:
            # The probe has random weights: it babbles on for ever where a trained model would come to an end.
            os.execve(BINARY, [BINARY, "chat", "--model", str(PROBE), "--temperature", "0", "--max-tokens", "8000"], environment())
        try:
            read_until(terminal, b"> ")
            os.write(terminal, b"Tell me a very long story.\n")
            seen = read_until(terminal, b"story.\r\n")
            while not seen.split(b"story.\r\n", 1)[1].strip():  # until the answer has begun
                seen += os.read(terminal, 4096)
            os.write(terminal, b"\x03")  # Ctrl-C: back to the prompt
            read_until(terminal, b"[stopped]\r\n> ", seen.split(b"story.\r\n", 1)[1])
            os.write(terminal, b"\x03")  # Ctrl-C at the prompt: a new prompt
            read_until(terminal, b"> ")
            os.write(terminal, b"/stats\n")
            read_until(terminal, b"> ", read_until(terminal, b"1 exchanges").split(b"1 exchanges", 1)[1])
            os.write(terminal, b"\x04")  # Ctrl-D
            read_to_end(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
            pid = 0
        finally:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(terminal)


class Simulator(unittest.TestCase):
    def test_a_run_repeats(self):
        first, second = (json.loads(run("sim", "--json", "--seed", "1", "--steps", "1000", "--ranks", "2").stdout) for _ in range(2))
        self.assertEqual(first["violations"], [])
        self.assertGreater(first["outputs_checked"], 50)
        self.assertEqual(first["digest"], second["digest"])

    def test_progress_and_interrupt(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([BINARY, "sim", "--seed", "1", "--steps", "900000000"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=slave, env=environment())
        os.close(slave)
        read_until(master, b"steps, ")
        process.send_signal(signal.SIGINT)
        report = process.stdout.read().decode()
        process.stdout.close()
        self.assertEqual(process.wait(PATIENCE_S), 130)
        read_to_end(master)
        os.close(master)
        self.assertIn("violations  0", report)


class Bench(unittest.TestCase):
    def test_throughput(self):
        outcome = run("bench", "throughput", "--model", PROBE, "--requests", "4", "--prompt-len", "4", "--output-len", "2", "--concurrency", "1,4",
                      "--json", "--isa", "generic", "--threads", "2")
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
        report = json.loads(outcome.stdout)
        self.assertEqual((report["backend"], report["isa"], report["threads"]), ("cpu", "generic", 2))
        points = report["points"]
        self.assertEqual([point["concurrency"] for point in points], [1, 4])
        for point in points:
            self.assertEqual(point["median"]["output_tokens"], 8)
            self.assertGreater(point["median"]["output_tokens_per_s"], 0)

    def test_what_ran_is_resolved(self):
        flags = ["bench", "throughput", "--model", PROBE, "--requests", "1", "--prompt-len", "2", "--output-len", "1", "--concurrency", "1", "--json"]
        report = json.loads(run(*flags).stdout)
        self.assertNotIn(report["isa"], ("auto", ""))
        self.assertGreater(report["threads"], 0)
        outcome = run(*flags, "--backend", "ref", "--threads", "3", "--log-level", "info")
        report = json.loads(outcome.stdout)
        self.assertEqual((report["backend"], report["threads"]), ("ref", 3))
        self.assertNotIn("isa", report)
        self.assertIn("computing on ref, 3 threads", outcome.stderr)

    def test_interrupt(self):
        master, slave = pty.openpty()
        process = subprocess.Popen([BINARY, "bench", "throughput", "--requests", "1000", "--prompt-len", "100"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=slave, env=environment())
        os.close(slave)
        read_until(master, b"requests, ")  # the progress line
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE_S), 130)
        read_to_end(master)
        os.close(master)


class Tools(unittest.TestCase):
    def test_codec_serve_answers_line_by_line(self):
        lines = ['{"file":"numbers","id":"a","json":"1e-5"}', "", "broken", '{"file":"render","id":"b","protocol":"chat","request":{"model":"none","messages":[]}}']
        outcome = run("codec-serve", "--tokenizer", NANO, text="\n".join(lines))
        answers = [json.loads(line) for line in outcome.stdout.splitlines()]
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual([answer.get("id") for answer in answers], ["a", None, "b"])
        self.assertEqual(answers[0]["text"], "1e-05")
        self.assertIn("error", answers[1])
        self.assertEqual(answers[2]["expect"]["status"], 400)
        self.assertEqual(run("codec-serve", "--tokenizer", "/nowhere").returncode, EXIT["not_found"])
    def test_generate_under_a_grammar(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as schema:
            schema.write('{"type":"array","items":{"enum":["red","blue"]},"minItems":2,"maxItems":3}')
            schema.flush()
            outcome = run("generate", "--json", "--json-schema", schema.name, "--temperature", "1.5", "--seed", "7", "--max-tokens", "60", "Name colours.")
            answer = json.loads(outcome.stdout)
            self.assertEqual(answer["finish_reason"], "stop", outcome.stderr)
            self.assertTrue(2 <= len(json.loads(answer["text"])) <= 3 and set(json.loads(answer["text"])) <= {"red", "blue"}, answer["text"])
            twice = run("generate", "--json-schema", schema.name, "--regex", "a", "Hi")
            self.assertEqual(twice.returncode, EXIT["invalid_argument"])
        self.assertRegex(run("generate", "--raw", "--regex", "(yes|no)!", "Once upon a time").stdout, r"^(yes|no)!$")
        bad = run("generate", "--regex", "a(?=b)", "Hi")
        self.assertEqual(bad.returncode, EXIT["invalid_argument"])
        self.assertIn("--regex: regex: look-ahead is not supported at byte 1", bad.stderr)
        text = run("generate", "--json-schema", '{"type":"array"}', "Hi")
        self.assertEqual(text.returncode, EXIT["invalid_argument"])
        self.assertIn("--json-schema: this is JSON itself; write it into a file", text.stderr)

    def test_drafts_do_not_change_the_answer(self):
        ids = [json.loads(run("generate", "--json", "--seed", "5", "--max-tokens", "40", *flags, "Hi").stdout)["ids"]
               for flags in ([], ["--speculation", "off"], ["--speculation", "ngram", "--draft-tokens", "2"])]
        self.assertEqual(ids[0], ids[1])
        self.assertEqual(ids[0], ids[2])

    def test_calibrate_needs_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "out.json"
            few = run("calibrate", "--requests", "2", "--max-tokens", "6", "--out", str(file))
            self.assertEqual(few.returncode, EXIT["invalid_argument"])
            self.assertRegex(few.stderr, r"rounds had drafts to verify, where 200 to fit")
            self.assertFalse(file.exists())

    def test_grammar_check_and_serve(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as schema:
            schema.write('{"type":"array","items":{"type":"boolean"}}')
            schema.flush()
            self.assertEqual(run("grammar", "check", schema.name, "[true,false]").stdout, "accepted\n")
            refused = run("grammar", "check", schema.name, "[true,1]")
            self.assertEqual(refused.returncode, EXIT["invalid_argument"])
            self.assertIn("refused at byte 6 (line 1, column 7), in the value at /1", refused.stdout)
        requests = ['{"op":"compile","kind":"regex","spec":"a[bc]"}', '{"op":"check","text":"ab"}', '{"op":"quit"}']
        served = run("grammar-serve", text="\n".join(requests))
        self.assertEqual([json.loads(line)["ok"] for line in served.stdout.splitlines()], [True, True, True])

    def test_tokenize_round_trip(self):
        text = "Line one\r\n\n  日本語 🙂\t<｜User｜>"
        with tempfile.NamedTemporaryFile("wb") as file:
            file.write(text.encode())
            file.flush()
            ids = run("tokenize", "--prompt-file", file.name).stdout
        decoded = subprocess.run([BINARY, "tokenize", "--decode"], input=ids.encode(), capture_output=True, env=environment(), timeout=PATIENCE_S)
        self.assertEqual(decoded.stdout, text.encode())

    def test_inspect(self):
        outcome = run("inspect")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("DeepSeek-V4.1", outcome.stdout)
        report = json.loads(run("inspect", "--json", NANO).stdout)
        self.assertTrue(report)
        missing = run("inspect", "/nonexistent")
        self.assertEqual(missing.returncode, EXIT["not_found"])
        self.assertEqual(run("inspect", "--json", "--model", NANO).stdout, run("inspect", "--json", NANO).stdout)
        twice = run("inspect", "--model", NANO, NANO)
        self.assertEqual(twice.returncode, EXIT["invalid_argument"])
        self.assertIn("named twice", twice.stderr)

    def test_weights_digest(self):
        digest = json.loads(run("inspect", "--json", "--digest").stdout)["weights_digest"]
        self.assertIn(digest, run("inspect", "--digest").stdout)
        said = run("generate", "--raw", "--max-tokens", "1", "--weights-digest", digest, "Once")
        self.assertEqual(said.returncode, 0, said.stderr)
        for command in (["generate", "Once"], ["serve", "--port", "0"], ["calibrate"], ["bench", "throughput"], ["chat"]):
            other = run(*command[:1], "--weights-digest", "0" * 64, *command[1:])
            self.assertEqual(other.returncode, EXIT["corrupt"], other.stderr)
            self.assertIn(digest, other.stderr)
        with tempfile.TemporaryDirectory() as folder:
            cache = pathlib.Path(folder) / "cache"
            command = ["generate", "--raw", "--max-tokens", "1", "--weight-cache", cache, "--weights-digest", digest, "Once"]
            self.assertEqual(run(*command).returncode, 0)
            written = cache.read_bytes()
            cache.write_bytes(written[:-100] + bytes(100))
            again = run(*command)
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertIn("is damaged and written anew", again.stderr)
            self.assertEqual(cache.read_bytes(), written)
        short = run("generate", "--weights-digest", "abc", "Once")
        self.assertEqual(short.returncode, EXIT["invalid_argument"], short.stderr)

    def test_dump_of_another_model(self):
        outcome = run("dump", "--compare", PROBE / "golden_t5.safetensors")
        self.assertEqual(outcome.returncode, EXIT["invalid_argument"])
        self.assertIn("could not be compared", outcome.stderr)
        self.assertIn("instead of", outcome.stdout)  # the table is printed all the same

    def test_plan(self):
        outcome = run("plan", "--max-seqs", 4, "--max-tokens", 1000)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("history of 4096 tokens", outcome.stdout)  # 8 blocks of 128 for each of 4
        refused = run("plan", "--json", "--memory-limit", "1MiB")
        self.assertEqual(refused.returncode, EXIT["resource_exhausted"])
        self.assertFalse(json.loads(refused.stdout)["fits"])
        self.assertIn("1.00 MiB may be used", refused.stderr)
        # Every placement: what runs also plans, and what cannot run is refused by both with the same words. A GPU is
        # planned for without one.
        places = ["device", "host", "disk"]
        for backend in ["ref", "cpu", "cuda"]:
            for experts, engram in itertools.product(places, places):
                flags = ["--backend", backend, "--experts", experts, "--engram", engram]
                if experts == "disk":
                    flags += ["--expert-memory", "500KiB"]
                plan = run("plan", "--json", *flags)
                if backend == "ref" and experts == "disk":
                    self.assertIn("every expert in memory; use --backend cpu", plan.stderr)
                    self.assertEqual(plan.returncode, EXIT["unsupported"], flags)
                    self.assertEqual(run("generate", *flags, "Hi").stderr, plan.stderr)
                    continue
                self.assertEqual(plan.returncode, 0, (flags, plan.stderr))
                planned = json.loads(plan.stdout)
                expected = ["a token"] * [experts, engram].count("disk") + ["each layer"] * (backend == "cuda" and experts == "disk")
                self.assertEqual([" ".join(note.split()[:2]) for note in planned["notes"]], expected, flags)
                if backend == "cuda":
                    self.assertEqual(planned["device_bytes"] + planned["host_bytes"], planned["total_bytes"])
                    limit = {"device": "device memory", "host": "PCIe", "disk": "disk"}
                    if engram != "disk":  # nano's rows of tables take longer than all else
                        self.assertEqual(planned["speeds"][0]["limit"], limit[experts], flags)
                    self.assertIn(" in main memory\n", run("plan", *flags).stdout)
                elif engram == "disk":
                    self.assertEqual(run("generate", *flags, "--max-tokens", 1, "Hi").returncode, 0, flags)
        # A GPU that is not here is named by its memory, and then decides; otherwise it is said that nothing was checked.
        for room, code in [("1GiB", 0), ("100MiB", EXIT["resource_exhausted"])]:
            plan = run("plan", "--backend", "cuda", "--device-memory", room)
            self.assertEqual(plan.returncode, code, plan.stderr)
            self.assertNotIn("not checked", plan.stdout + plan.stderr)
        self.assertIn("of device memory are planned", plan.stderr)
        self.assertIn("100.00 MiB may be used", plan.stderr)
        plan = run("plan", "--backend", "cuda", "--json")
        self.assertNotEqual(json.loads(plan.stdout)["device_checked"], "--device-memory" in plan.stderr)
        # The configuration alone is enough.
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(NANO / "config.json", folder)
            self.assertEqual(run("plan", "--model", folder).returncode, 0)

    def test_dump_and_compare(self):
        with tempfile.TemporaryDirectory() as folder:
            tensors = pathlib.Path(folder) / "tensors.safetensors"
            outcome = run("dump", "--model", PROBE, "--ids", "-", "--greedy", "2", "--out", tensors, text="[5, 6, 7]")
            self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
            again = run("dump", "--model", PROBE, "--compare", tensors)
            self.assertEqual((again.returncode, again.stderr), (0, ""))
            rows = [line.split() for line in again.stdout.splitlines()[1:]]
            self.assertIn("logits", [row[0] for row in rows])
            for name, value, *measure in rows:
                self.assertEqual(float(value), 1 if "overlap" in measure else 0, name)

    def test_dump_of_the_shortest_truncated_decoder(self):
        with tempfile.TemporaryDirectory() as folder:
            tensors = pathlib.Path(folder) / "tensors.safetensors"
            # One tail row has one row of logits; chunks after which no row has any; a chunk larger than any step.
            for chunk in ("0", "2", "16777216"):
                outcome = run("dump", "--model", PROBE, "--ids", "-", "--truncate-decoder", "1", "--chunk", chunk, "--greedy", "2",
                              "--out", tensors, text="[5, 6, 7, 8, 9]")
                self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
                header = tensors.read_bytes()
                self.assertIn(b'"replay.logits":{"dtype":"F32","shape":[1,512]', header)

    def test_compare_with_the_official_code(self):
        outcome = run("dump", "--model", PROBE, "--compare", PROBE / "golden_t5.safetensors")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        values = {line.split()[0]: line.split()[1] for line in outcome.stdout.splitlines()[1:]}
        self.assertLess(float(values["logits"]), 0.15)

    def test_compare_refuses_what_is_no_golden_file(self):
        outcome = run("dump", "--compare", NANO / "config.json")
        self.assertEqual(outcome.returncode, EXIT["corrupt"], outcome.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main()
