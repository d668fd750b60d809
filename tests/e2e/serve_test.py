#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the built `galley serve` on the embedded model and talks to it over HTTP, as clients, proxies and operators do.

Usage: serve_test.py BINARY [TESTCLASS…]. Only the standard library is needed.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NANO = ROOT / "models" / "nano"
BINARY = None
# A generous bound for machines that are busy with other tests.
PATIENCE_S = 60
HI = [{"role": "user", "content": "Hi"}]
OFF = {"thinking": {"type": "disabled"}}


def clean_environment(**variables):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GALLEY_", "DEEPINFER_"))}
    kept.update(variables)
    return kept


class Server:
    """A server on a port that the system chose; its standard error is read all the time."""

    def __init__(self, *flags, max_seq_len=1024, **variables):
        command = [BINARY, "serve", "--port", "0", "--max-seq-len", str(max_seq_len), "--max-seqs", "4", *map(str, flags)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", env=clean_environment(**variables))
        self.lines = []
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        line = self.wait_for_line(r"listening on http://127\.0\.0\.1:(\d+)")
        self.port = int(line.group(1))

    def _read(self):
        for line in self.process.stderr:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.lines.append(None)
            self.changed.notify_all()

    def wait_for_line(self, pattern):
        def found():
            return next((m for m in (re.search(pattern, x) for x in self.lines if x is not None) if m), None)
        with self.changed:
            self.changed.wait_for(lambda: found() or None in self.lines, PATIENCE_S)
            match = found()
        if not match:
            raise AssertionError(f"no line like {pattern!r}: {self.lines}")
        return match

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def ask(self, method, path, body=None, **headers):
        connection = self.connect()
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, data, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def chat(self, **members):
        return {"model": "nano", "messages": HI, "max_tokens": 8, "temperature": 0, **OFF, **members}

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2]
        return sum(float(x) for x in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M))

    def wait_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(what)
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM):
        """Exit code after the signal; with None, after what was sent before."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self.process.stderr.close()
        return code


class Served(unittest.TestCase):
    """One server for all tests of a class."""

    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


def events(text):
    """(event name, data) of a stream; comments are left out."""
    out = []
    for block in text.strip().split("\n\n"):
        fields = [line.partition(": ")[::2] for line in block.split("\n") if not line.startswith(":")]
        if fields:
            out.append((dict(fields).get("event"), "\n".join(v for k, v in fields if k == "data")))
    return out


class Apis(Served):
    def test_chat_whole_and_streamed_say_the_same(self):
        status, headers, body = self.server.ask("POST", "/v1/chat/completions", self.server.chat())
        self.assertEqual(status, 200, body)
        self.assertEqual(headers["content-type"], "application/json")
        answer = json.loads(body)
        status, headers, body = self.server.ask("POST", "/v1/chat/completions", self.server.chat(stream=True))
        self.assertTrue(headers["content-type"].startswith("text/event-stream"))
        chunks = [data for _, data in events(body)]
        self.assertEqual(chunks[-1], "[DONE]")
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in map(json.loads, chunks[:-1]))
        self.assertEqual(text, answer["choices"][0]["message"]["content"])
        self.assertEqual(json.loads(chunks[-2])["usage"]["completion_tokens"], answer["usage"]["completion_tokens"])

    def test_every_api_answers(self):
        for path, body, member in [
            ("/v1/completions", {"model": "nano", "prompt": "Once upon", "max_tokens": 4}, "choices"),
            ("/v1/responses", {"model": "nano", "input": "Hi", "max_output_tokens": 4, "reasoning": {"effort": "none"}}, "output"),
            ("/anthropic/v1/messages", {"model": "nano", "messages": HI, "max_tokens": 4, **OFF}, "content"),
            ("/v1/messages/count_tokens", {"model": "nano", "messages": HI, **OFF}, "input_tokens"),
            ("/tokenize", {"prompt": "Once"}, "tokens"),
        ]:
            status, _, text = self.server.ask("POST", path, body)
            self.assertEqual(status, 200, text)
            self.assertIn(member, json.loads(text))

    def test_a_seed_repeats_itself_and_hits_the_cache(self):
        prompt = " ".join(["Lily found a strange key in the garden."] * 40)
        request = {"model": "nano", "prompt": prompt, "max_tokens": 6, "seed": 7, "temperature": 1}
        self.assertEqual(self.server.ask("POST", "/flush_cache")[0], 200)
        first = json.loads(self.server.ask("POST", "/v1/completions", request)[2])
        second = json.loads(self.server.ask("POST", "/v1/completions", request)[2])
        self.assertEqual(first["choices"][0]["text"], second["choices"][0]["text"])
        self.assertGreater(first["usage"]["prompt_tokens"], 256)
        self.assertGreaterEqual(second["usage"]["prompt_cache_hit_tokens"], 128)
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], second["usage"]["prompt_cache_hit_tokens"])

    def test_an_echo_scores_a_text_as_it_was_written(self):
        def ask(prompt, **members):
            body = {"model": "nano", "prompt": prompt, "temperature": 0, "logprobs": 0, **members}
            status, _, text = self.server.ask("POST", "/v1/completions", body)
            self.assertEqual(status, 200, text)
            return json.loads(text)["choices"][0]
        written = ask("Once upon a time", max_tokens=6, ignore_eos=True)
        echoed = ask("Once upon a time" + written["text"], max_tokens=1, echo=True)
        count = len(written["logprobs"]["tokens"])
        self.assertEqual(echoed["logprobs"]["tokens"][-count - 1:-1], written["logprobs"]["tokens"])
        for again, first in zip(echoed["logprobs"]["token_logprobs"][-count - 1:-1], written["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(again, first, delta=0.02)
        self.assertTrue(echoed["text"].startswith("Once upon a time" + written["text"]))

    def test_with_tools_and_a_format_the_answer_is_a_call_or_has_the_form(self):
        schema = {"type": "object", "properties": {"unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["unit"], "additionalProperties": False}
        tool = {"type": "function", "function": {"name": "report", "parameters": schema, "strict": True}}
        for seed in range(4):
            body = self.server.chat(temperature=1, seed=seed, max_tokens=120, tools=[tool], response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
            status, _, text = self.server.ask("POST", "/v1/chat/completions", body)
            self.assertEqual(status, 200, text)
            choice = json.loads(text)["choices"][0]
            if choice["finish_reason"] == "length":
                continue
            calls = choice["message"].get("tool_calls") or []
            self.assertEqual(choice["finish_reason"], "tool_calls" if calls else "stop", text)
            said = [call["function"]["arguments"] for call in calls] or [choice["message"]["content"]]
            for one in said:
                self.assertIn(json.loads(one)["unit"], schema["properties"]["unit"]["enum"])

    def test_ids_and_traces_come_back(self):
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        _, headers, _ = self.server.ask("GET", "/v1/models", x_request_id="mine", traceparent=parent)
        self.assertEqual((headers["x-request-id"], headers["traceparent"]), ("mine", parent))

    def test_mistakes_are_4xx_and_the_connection_lives_on(self):
        connection = self.server.connect()
        for body in ("", "{", "[]", "\xff", '{"a":1}{"b":2}', "[" * 5000):
            connection.request("POST", "/v1/chat/completions", body.encode("latin-1"))
            response = connection.getresponse()
            self.assertEqual(response.status, 400)
            self.assertIn("error", json.loads(response.read()))
        connection.request("POST", "/v1/chat/completions", json.dumps(self.server.chat(max_tokens=1)))
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        self.assertEqual(self.server.ask("GET", "/nothing")[0], 404)
        self.assertEqual(self.server.ask("PUT", "/v1/chat/completions", "{}")[0], 405)

    def test_lists_up_to_their_limits_suit_the_engine(self):
        members = {"stop_token_ids": [5] * 1023, "bad_words": ["x" * 1024] * 64, "allowed_token_ids": [300] * 2560,
                   "logit_bias": {str(i): 1 for i in range(2560)}, "repetition_penalty": 0.01, "top_k": 1000000, "n": 16}
        for name, value in members.items():
            status, _, text = self.server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "a", "max_tokens": 1, name: value})
            self.assertEqual(status, 200, name + text)

    def test_operators_endpoints(self):
        for path in ("/health", "/live", "/ready", "/ping", "/version", "/server_info", "/load", "/stats"):
            self.assertEqual(self.server.ask("GET", path)[0], 200, path)
        info = json.loads(self.server.ask("GET", "/server_info")[2])
        self.assertEqual((info["served_model_names"], info["max_model_len"]), (["nano"], 1024))
        banner = next(line for line in self.server.lines if line and line.startswith("galley "))
        self.assertTrue(banner.endswith(f" on {info['backend']} {info['isa']}, {info['threads']} thread" + "s" * (info["threads"] != 1)), banner)
        self.assertIn("vllm:num_requests_running", self.server.ask("GET", "/metrics")[2])


class Cancelling(Served):
    def test_a_closed_connection_frees_its_sequence(self):
        for stream in (True, False):
            aborted = self.server.metric("galley_requests_finished_total")
            body = json.dumps(self.server.chat(max_tokens=900, ignore_eos=True, stream=stream))
            with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE_S) as client:
                client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                self.server.wait_until(lambda: self.server.metric("galley_requests_running") >= 1, "never ran")
                if stream:
                    self.assertIn(b"200", client.recv(64))
            self.server.wait_until(lambda: self.server.metric("galley_requests_open") == 0, "still open")
            self.assertEqual(self.server.metric("galley_requests_running"), 0)
            self.assertEqual(self.server.metric("galley_requests_finished_total"), aborted + 1)


class Security(Served):
    flags = ("--api-key", "sk-one", "--served-model-name", "first", "--served-model-name", "second")

    def test_keys(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
            keys.write("# people\nsk-file\n")
            keys.flush()
            server = Server("--api-key-file", keys.name, GALLEY_API_KEY="sk-environment")
            try:
                for key, status in (("sk-file", 200), ("sk-environment", 200), ("sk-other", 401)):
                    self.assertEqual(server.ask("GET", "/v1/models", authorization=f"Bearer {key}")[0], status, key)
            finally:
                server.stop()
        self.assertEqual(self.server.ask("GET", "/v1/models")[0], 401)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)
        status, _, body = self.server.ask("POST", "/v1/messages", {}, x_api_key="sk-wrong")
        self.assertEqual((status, json.loads(body)["error"]["type"]), (401, "authentication_error"))

    def test_served_names(self):
        models = json.loads(self.server.ask("GET", "/v1/models", authorization="Bearer sk-one")[2])
        self.assertEqual([m["id"] for m in models["data"]], ["first", "second"])
        status, _, body = self.server.ask("POST", "/v1/completions", {"model": "second", "prompt": "a", "max_tokens": 1}, authorization="Bearer sk-one")
        self.assertEqual((status, json.loads(body)["model"]), (200, "second"))


class Stopping(unittest.TestCase):
    # An answer of a thousand tokens is there sooner than a server without other work stops.
    def begin_stream(self, server):
        connection = server.connect()
        connection.request("POST", "/v1/chat/completions", json.dumps(server.chat(max_tokens=7000, ignore_eos=True, stream=True)))
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertTrue(response.readline())
        return connection, response

    def test_sigterm_lets_streams_go_on_and_then_ends_each_once(self):
        server = Server("--shutdown-grace", "0.2", "--shutdown-timeout", "0.3", max_seq_len=8192)
        connection, response = self.begin_stream(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("shutting down; 1 requests are open")
        rest = events(response.read().decode())
        self.assertIn("shutting down", json.loads(rest[-1][1])["error"]["message"])
        self.assertEqual(sum("error" in json.loads(data) for _, data in rest if data.startswith("{")), 1)
        connection.close()
        self.assertEqual(server.stop(None), 0)

    def test_sigterm_waits_for_what_is_open(self):
        server = Server("--shutdown-grace", "0")
        answer = {}
        asking = threading.Thread(target=lambda: answer.update(got=server.ask("POST", "/v1/completions", {"model": "nano", "prompt": "Once", "max_tokens": 12, "ignore_eos": True})))
        asking.start()
        server.wait_until(lambda: server.metric("galley_requests_open") >= 1 or not asking.is_alive(), "never opened")
        server.process.send_signal(signal.SIGTERM)
        asking.join(PATIENCE_S)
        self.assertEqual(answer["got"][0], 200, answer)
        self.assertEqual(server.stop(None), 0)
        line = next(x for x in (json.loads(x) for x in server.lines if x and x.startswith("{")) if "finish" in x)
        self.assertEqual((line["finish"], line["completion_tokens"], line["status"]), ("length", 12, 200))
        self.assertNotIn("Once", json.dumps(line))

    def test_a_second_signal_is_immediate(self):
        server = Server("--shutdown-timeout", "600", max_seq_len=8192)
        connection, _ = self.begin_stream(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("shutting down")
        self.assertEqual(server.stop(signal.SIGINT), 128 + signal.SIGINT)
        connection.close()


class Places(Served):
    """Where a schema or pattern is wrong, as the real grammar engine says it."""

    def test_errors_say_where_and_say_it_once(self):
        def schema(of_a):
            return {"type": "object", "properties": {"a": of_a}}
        look_ahead = {"type": "string", "pattern": "x(?=y)"}
        tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": schema(look_ahead)}}
        cases = [
            ({"regex": "x(?=y)"}, "regex", "at byte 1"),
            ({"guided_json": schema(look_ahead)}, "guided_json", "at /properties/a/pattern: "),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema(look_ahead)}}}, "response_format", "at /properties/a/pattern: "),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema({"type": "x"})}}}, "response_format", "at /properties/a/type"),
            ({"tools": [tool]}, "tools", "parameters of tool 'f' at /properties/a/pattern: "),
            ({"ebnf": "root ::= x"}, "ebnf", "at byte 9"),
        ]
        for members, param, place in cases:
            status, _, text = self.server.ask("POST", "/v1/chat/completions", self.server.chat(**members))
            error = json.loads(text)["error"]
            self.assertEqual((status, error["param"]), (400, param), text)
            self.assertIn(place, error["message"])
            self.assertLessEqual(error["message"].count("at byte"), 1, text)


class Flags(unittest.TestCase):
    def refused(self, text, *flags, code=None):
        outcome = subprocess.run([BINARY, "serve", *flags], capture_output=True, encoding="utf-8", timeout=PATIENCE_S, env=clean_environment())
        self.assertNotEqual(outcome.returncode, 0)
        if code is not None:
            self.assertEqual(outcome.returncode, code)
        self.assertIn(text, outcome.stderr)

    def test_flags_of_other_engines(self):
        server = Server("--model-path", NANO, "--tensor-parallel-size", "1", "--trust-remote-code", "--enable-prefix-caching",
                        "--tool-call-parser=deepseek_v41", "--max-num-batched-tokens", "512", "--kv-cache-dtype", "auto", "--generation-config", "vllm")
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        self.assertEqual(server.stop(), 0)
        self.refused("--memory-limit", "--gpu-memory-utilization", "0.9")
        self.refused("one device", "--tp", "8")
        self.refused("--no-prefix-caching", "--disable-radix-cache")
        self.refused("--generation-config", "--sampling-defaults", "openai")
        self.refused("-tp: not an option of Galley", "-tp", "2")

    def test_several_names_and_short_lengths(self):
        server = Server("--model", NANO, "--max-model-len", "1K", "--served-model-name", "one", "two")
        try:
            # The banner: model, memory plan, addresses, in this order.
            banner = "\n".join(x for x in server.lines if x)
            self.assertRegex(banner, rf"^galley \d+\.\d+\.\d+ serves one, two from {re.escape(str(NANO))} on cpu \w+, \d+ threads?\nMemory plan\n")
            units = {"KiB": 1, "MiB": 1024, "GiB": 1024**2}
            rows = [(kind, float(size) * units[unit]) for kind, size, unit in re.findall(r"^  (\w+) .* ([\d.]+) ([KMG]iB)$", banner, re.M)]
            *parts, (total, all_of_it), (limit, _) = rows
            self.assertEqual((parts[0][0], total, limit), ("weights", "total", "limit"))
            self.assertAlmostEqual(sum(size for _, size in parts) / all_of_it, 1, places=2)
            self.assertRegex(banner, r"\n4 sequences at once, up to 1024 tokens each; no API key: everybody may ask\nlistening on http://127\.0\.0\.1:\d+$")
            models = json.loads(server.ask("GET", "/v1/models")[2])["data"]
            self.assertEqual([(m["id"], m["max_model_len"]) for m in models], [("one", 1024), ("two", 1024)])
            self.refused("another program listens there", "--port", str(server.port))
        finally:
            self.assertEqual(server.stop(), 0)
        self.refused("at least 2", "--max-seq-len", "1")
        self.refused("given twice", str(NANO), "--model", str(NANO))
        self.refused("is no origin", "--cors-origin", "https://chat.example.org/")

    def test_wrong_settings_are_named(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            config.write('{"temperature": -1}')
            config.flush()
            self.refused("temperature is -1", "--generation-config", config.name)
        self.refused("--tls-key", "--tls-certificate", "x.pem")
        self.refused("nowhere.pem: cannot read the TLS certificate: No such file", "--tls-certificate", "nowhere.pem", "--tls-key", "x.pem", code=3)
        self.refused("nowhere", str(ROOT / "nowhere"))
        self.refused("takes one model", str(NANO), "another")
        self.refused("visible ASCII", "--api-key", "two words")


if __name__ == "__main__":
    BINARY = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=1)
