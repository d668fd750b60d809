# SPDX-License-Identifier: Apache-2.0
"""The built-in page in a headless browser: against a server of this file that says what a test wants it to say, and against
`galley serve` with the embedded model.

Usage: page_test.py page.html [--galley BINARY] [--pictures FOLDER]. Ends with 77, which ctest shows as skipped, where no
browser is.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser  # noqa: E402

PARSER = argparse.ArgumentParser()
PARSER.add_argument("page", type=pathlib.Path)
PARSER.add_argument("--galley", type=pathlib.Path)
PARSER.add_argument("--pictures", type=pathlib.Path)
OPTIONS = PARSER.parse_args()
PAGE, PICTURES = OPTIONS.page, OPTIONS.pictures

METRICS = """# HELP galley_decode_rows_total x
# TYPE galley_decode_rows_total counter
galley_decode_rows_total{{model_name="nano"}} {rows}
galley_prefill_rows_total{{model_name="nano"}} {rows}
galley_prefix_cache_queries_total{{model_name="nano"}} 200
galley_prefix_cache_hits_total{{model_name="nano"}} 150
galley_requests_finished_total{{model_name="nano",reason="stop"}} 40
galley_requests_finished_total{{model_name="nano",reason="length"}} 2
galley_time_to_first_token_seconds_bucket{{model_name="nano",le="0.1"}} 10
galley_time_to_first_token_seconds_bucket{{model_name="nano",le="0.3"}} 30
galley_time_to_first_token_seconds_bucket{{model_name="nano",le="+Inf"}} 30
"""
STATS = {
    "model": "nano", "version": "0.1", "ready": True, "open": 3, "running": 3, "waiting": 1,
    "blocks_total": 100, "blocks_active": 25, "blocks_cached": 10,
    "recent": [
        {"id": "chatcmpl-1", "model": "nano", "route": "chat", "stream": True, "finish": "stop", "prompt_tokens": 120,
         "cached_tokens": 64, "completion_tokens": 11, "queue_s": 0.001, "first_token_s": 0.25, "total_s": 1.25},
        {"id": "chatcmpl-2", "model": "nano", "route": "messages", "stream": False, "finish": "abort", "prompt_tokens": 5,
         "cached_tokens": 0, "completion_tokens": 0, "queue_s": None, "first_token_s": None, "total_s": 12.5},
    ],
}


def chunk(delta, finish=None):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


class Fake(http.server.BaseHTTPRequestHandler):
    """Answers from `server.script`: a status and body, or a list of what a stream says and waits for."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def say(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        server = self.server
        if server.key and self.path != "/" and self.headers["Authorization"] != "Bearer " + server.key:
            return self.say(401, "application/json", b'{"error":{"message":"no key"}}')
        server.rows += 50
        pages = {
            "/": ("text/html; charset=utf-8", lambda: PAGE.read_bytes()),
            "/v1/models": ("application/json", lambda: b'{"data":[{"id":"nano"},{"id":"nano-two"}]}'),
            "/stats": ("application/json", lambda: json.dumps(STATS).encode()),
            "/metrics": ("text/plain", lambda: METRICS.format(rows=server.rows).encode()),
        }
        if self.path not in pages:
            return self.say(404, "text/plain", b"no")
        kind, body = pages[self.path]
        self.say(200, kind, body())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        script = self.server.script
        if isinstance(script, tuple):
            return self.say(script[0], "application/json", json.dumps(script[1]).encode())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for item in script:
                if isinstance(item, threading.Event):
                    # A client that goes away shows when something is written to it.
                    deadline = time.monotonic() + 30
                    while not item.wait(0.05) and time.monotonic() < deadline:
                        self.wfile.write(b": keep-alive\n\n")
                else:
                    text = item if isinstance(item, str) else json.dumps(item)
                    self.wfile.write(b"data: " + text.encode() + b"\n\n")
        except (BrokenPipeError, ConnectionResetError):
            self.server.gone.set()
        self.close_connection = True


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        cls.server.daemon_threads = True
        cls.server.rows, cls.server.key, cls.server.asked, cls.server.script = 0, None, [], []
        cls.server.gone = threading.Event()
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()
        cls.url = f"http://127.0.0.1:{cls.server.server_port}/"
        cls.browser = browser.Browser(browser.find())

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.server.shutdown()

    def setUp(self):
        self.server.key, self.server.asked, self.server.script = None, [], []
        self.server.gone.clear()
        self.browser.events.clear()
        self.browser.screen(1280, 800)
        self.browser.scheme("light")
        self.browser.open(self.url)
        self.browser.js("localStorage.clear(); sessionStorage.clear()")
        self.browser.open(self.url)

    def picture(self, name):
        if PICTURES:
            self.browser.picture(PICTURES / (name + ".png"))

    def ask(self, text):
        self.browser.js("document.getElementById('prompt').focus()")
        self.browser.type(text)
        self.browser.press("Enter", "Enter", 13)

    def last(self, selector):
        return f"([...document.querySelectorAll('.turn.assistant')].at(-1)?.querySelector({json.dumps(selector)})?.textContent ?? '')"

    def test_what_it_shows_of_the_server(self):
        page = self.browser
        page.wait("document.getElementById('state').textContent === 'nano · ready'")
        page.wait("document.getElementById('speed').textContent !== '–'")
        text = lambda name: page.js(f"document.getElementById('{name}').textContent")
        self.assertEqual([text(name) for name in ("running", "waiting", "kv", "hits", "ended")],
                         ["3", "1", "25 of 100", "75 %", "42"])
        self.assertEqual(text("ttft"), "150 ms")  # 15 of 30: a quarter of the way from 0.1 to 0.3 after the first 10
        self.assertGreater(float(text("speed")), 0)
        self.assertEqual(page.js("document.querySelectorAll('#last tr').length"), 2)
        self.assertEqual(page.js("[...document.querySelectorAll('#last tr')[0].cells].map((c) => c.textContent).join('|')"),
                         "chat|120|64|11|250 ms|1.25 s|10.0|stop")  # 10 tokens after the first in one second
        self.assertEqual(page.js("[...document.querySelectorAll('#last tr')[1].cells].map((c) => c.textContent).join('|')"),
                         "messages|5|0|0|–|12.5 s|–|abort")
        self.assertEqual(page.js("[...document.getElementById('model').options].map((o) => o.value).join()"), "nano,nano-two")
        self.assertEqual(page.complaints(), [])
        self.assertEqual([url for url in page.requested() if not url.startswith(self.url) and not url.startswith("data:")], [])
        self.picture("wide")

    def test_an_answer_is_shown_while_it_comes(self):
        page = self.browser
        go_on, end = threading.Event(), threading.Event()
        self.server.script = [
            chunk({"role": "assistant", "reasoning_content": "Let me see."}), chunk({"content": "Hel"}), go_on,
            chunk({"content": "lo <img src=x onerror=alert(1)>\n```python\nprint(1)\n```\nbye"}), end,
            chunk({}, "length"), {"choices": [], "usage": {"completion_tokens": 7}}, "[DONE]"]
        page.js("document.getElementById('thinking').click()")
        self.ask("Say hello")
        page.wait(self.last(".said > div:not(.thinking)") + " === 'Hel'")
        self.assertEqual(page.js("document.getElementById('send').textContent"), "Stop")
        self.assertEqual(page.js("document.getElementById('talk').getAttribute('aria-busy')"), "true")
        self.assertFalse(page.js("document.querySelector('details.thinking').open"), "thinking is folded")
        self.assertEqual(page.js(self.last("details.thinking .text")), "Let me see.")
        go_on.set()
        page.wait(self.last("pre") + " === 'print(1)'")
        self.assertEqual(page.js("document.querySelectorAll('#talk img').length"), 0, "text is never HTML")
        self.assertIn("<img src=x onerror=alert(1)>", page.js(self.last(".said")))
        end.set()
        page.wait(self.last(".figures") + ".includes('7 tokens')")
        self.assertIn("ended by length", page.js(self.last(".figures")))
        self.assertEqual(page.js("document.getElementById('send').textContent"), "Send")
        self.picture("answer")
        path, body = self.server.asked[0]
        self.assertEqual(path, "/v1/chat/completions")
        self.assertEqual(body["messages"], [{"role": "user", "content": "Say hello"}])
        self.assertEqual((body["model"], body["stream"], body["thinking"]), ("nano", True, {"type": "enabled"}))
        # The next turn carries the conversation, without the thoughts.
        self.server.script = [chunk({"content": "Again."}, "stop"), "[DONE]"]
        page.js("document.getElementById('system').value = 'Be brief.'; document.getElementById('temperature').value = '0.5'")
        self.ask("Again")
        page.wait(self.last(".said") + ".startsWith('Again.')")
        body = self.server.asked[1][1]
        self.assertEqual([message["role"] for message in body["messages"]], ["system", "user", "assistant", "user"])
        self.assertNotIn("Let me see", json.dumps(body))
        self.assertEqual(body["temperature"], 0.5)
        page.js("document.getElementById('fresh').click()")
        self.assertEqual(page.js("document.querySelectorAll('.turn').length"), 0)
        self.assertEqual(page.complaints(), [])

    def test_stopping_lets_the_server_know(self):
        never = threading.Event()
        self.server.script = [chunk({"content": "Once"}), never]
        self.ask("Tell me a story")
        self.browser.wait(self.last(".said") + " === 'Once'")
        self.browser.js("document.getElementById('send').click()")
        self.browser.wait(self.last(".error") + " === 'stopped'")
        self.assertTrue(self.server.gone.wait(20), "the connection stayed open")

    def test_failures_are_told(self):
        cases = [
            ((429, {"error": {"message": "the queue is full"}}), "429: the queue is full"),
            ((500, "nonsense"), "500: "),
            ([chunk({"content": "a"}), {"error": {"message": "the device failed"}}], "the device failed"),
            ([chunk({"content": "a"})], "the stream broke off"),
        ]
        for script, expected in cases:
            self.server.script = script
            self.ask("x")
            self.browser.wait(self.last(".error") + f".startsWith({json.dumps(expected)})")
            self.assertEqual(self.browser.js("document.getElementById('send').textContent"), "Send")
        self.assertEqual(self.browser.complaints(), [])

    def test_a_key_is_asked_for_and_sent(self):
        self.server.key = "secret"
        self.browser.open(self.url)
        self.browser.wait("document.getElementById('state').textContent.includes('API key')")
        self.browser.js("const k = document.getElementById('key'); k.value = 'secret'; k.dispatchEvent(new Event('change'))")
        self.browser.wait("document.getElementById('state').textContent === 'nano · ready'")
        self.assertEqual(self.browser.js("Object.values(localStorage).includes('secret')"), False)

    def test_on_a_phone(self):
        page = self.browser
        page.screen(360, 740, phone=True)
        page.open(self.url)
        page.wait("document.getElementById('state').textContent === 'nano · ready'")
        self.server.script = [chunk({"content": "word " * 200 + "x" * 200 + "\n```\n" + "code " * 60 + "\n```"}, "stop"), "[DONE]"]
        page.js("document.getElementById('prompt').value = 'Hi'; document.getElementById('send').click()")
        page.wait(self.last("pre") + ".startsWith('code')")
        fits = "document.documentElement.scrollWidth <= 360 && document.body.scrollHeight <= 740"
        shown = lambda name: page.js(f"document.getElementById('{name}').getClientRects().length > 0")
        self.assertTrue(page.js(fits))
        self.assertEqual((shown("chat"), shown("numbers")), (True, False))
        self.picture("phone_chat")
        small = page.js("[...document.querySelectorAll('button, select, input:not([type=checkbox]), summary')]"
                        ".filter((e) => e.getClientRects().length && e.getBoundingClientRect().height < 32).map((e) => e.id || e.tagName).join()")
        self.assertEqual(small, "", "too small for a finger")
        page.js("document.querySelector('#tabs [data-tab=numbers]').click()")
        self.assertEqual((shown("chat"), shown("numbers")), (False, True))
        self.assertTrue(page.js(fits))
        self.picture("phone_metrics")

    def test_colours_can_be_read_in_both_schemes(self):
        page = self.browser
        ratio = """(() => {
          const style = getComputedStyle(document.documentElement);
          const light = (name) => {
            const c = style.getPropertyValue(name).trim().slice(1).match(/../g).map((h) => parseInt(h, 16) / 255)
              .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
          };
          const pairs = [['--ink', '--ground'], ['--ink', '--card'], ['--ink', '--own'], ['--quiet', '--ground'],
                         ['--quiet', '--card'], ['--accent', '--card'], ['--on-accent', '--accent'], ['--bad', '--card']];
          return pairs.map(([a, b]) => [light(a), light(b)].sort((x, y) => y - x)).map(([x, y]) => (x + 0.05) / (y + 0.05));
        })()"""
        grounds = set()
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            self.assertGreaterEqual(min(page.js(ratio)), 4.5, scheme)  # WCAG 2, level AA
            grounds.add(page.js("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(len(grounds), 2)
        self.picture("dark")
        page.js("document.getElementById('theme').click()")  # auto → light, whatever the system says
        page.scheme("dark")
        self.assertEqual(page.js("document.documentElement.dataset.theme"), "light")
        self.assertGreaterEqual(min(page.js(ratio)), 4.5)

    def test_everything_has_a_name(self):
        self.browser.js("document.getElementById('settings').open = true")
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        wanted = {"button", "textbox", "combobox", "checkbox", "spinbutton", "meter", "log", "region", "image", "navigation"}
        seen = set()
        for node in nodes:
            role = node.get("role", {}).get("value")
            if node.get("ignored") or role not in wanted:
                continue
            seen.add(role)
            self.assertTrue(node.get("name", {}).get("value"), f"a {role} has no name")
        self.assertLessEqual({"button", "textbox", "combobox", "checkbox", "spinbutton", "log"}, seen)


@unittest.skipIf(OPTIONS.galley is None, "no --galley was given")
class RealServerTest(unittest.TestCase):
    """The page that the program itself delivers, with the model that comes with it."""

    def setUp(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GALLEY_", "DEEPINFER_"))}
        self.process = subprocess.Popen([OPTIONS.galley, "serve", "--port", "0", "--max-seq-len", "1024"],
                                        stderr=subprocess.PIPE, encoding="utf-8", env=environment)
        address = next((found for line in self.process.stderr if (found := re.search(r"listening on (http://\S+)", line))), None)
        self.assertIsNotNone(address, "the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.browser = browser.Browser(browser.find())
        self.url = address.group(1) + "/"

    def tearDown(self):
        self.browser.close()
        self.process.terminate()
        self.process.wait(60)

    def test_a_chat(self):
        page = self.browser
        page.open(self.url)
        page.wait("document.getElementById('state').dataset.state === 'ready'")
        page.wait("document.getElementById('model').value !== ''")
        page.js("document.getElementById('most').value = '24'; document.getElementById('prompt').focus()")
        page.type("Tell me a story")
        page.press("Enter", "Enter", 13)
        page.wait("document.querySelector('.turn.assistant .figures')?.textContent.includes('tokens/s')", 120)
        self.assertEqual(page.js("document.querySelectorAll('#talk .error').length"), 0)
        self.assertGreater(page.js("document.querySelector('.turn.assistant .said').textContent.length"), 20)
        page.wait("document.querySelector('#last tr').cells.length === 8")
        self.assertEqual(page.js("document.querySelector('#last tr').cells[3].textContent"), "24")
        page.wait("document.getElementById('ended').textContent === '1' && document.getElementById('ttft').textContent !== '–'")
        self.assertEqual(page.complaints(), [])
        if PICTURES:
            page.picture(PICTURES / "real.png")


if __name__ == "__main__":
    if browser.find() is None:
        print("SKIPPED: no browser (" + ", ".join(browser.NAMES) + ") is installed; Debian's package is chromium")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
