# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium driven over its debugging pipe, with Python's standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """Path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page. Messages are JSON between zero bytes, on the browser's descriptors 3 (in) and 4 (out)."""

    def __init__(self, path, width=1280, height=800, timeout=60):
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="galley_page_")
        read_in, self.write_in = os.pipe()
        self.read_out, write_out = os.pipe()

        def place():
            # Copies above 4 first: the pipes' own numbers may be 3 and 4.
            source, sink = os.dup(read_in), os.dup(write_out)
            high_source, high_sink = os.dup(source), os.dup(sink)
            os.dup2(high_source, 3)
            os.dup2(high_sink, 4)

        self.process = subprocess.Popen(
            [path, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
             "--disable-extensions", f"--user-data-dir={self.profile}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(read_in)
        os.close(write_out)
        self.buffer = b""
        self.counter = 0
        self.events = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.write_in)
        os.close(self.read_out)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            if time.monotonic() > deadline:
                raise TimeoutError("the browser does not answer")
            import select
            if select.select([self.read_out], [], [], 1)[0]:
                piece = os.read(self.read_out, 1 << 16)
                if not piece:
                    raise RuntimeError("the browser ended")
                self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.counter += 1
        request = {"id": self.counter, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write_in, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            message = self._read(deadline)
            if message.get("id") == self.counter:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def js(self, expression):
        """Value of a JavaScript expression; promises are waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait(self, expression, seconds=30):
        """Until the expression is true."""
        deadline = time.monotonic() + seconds
        while not (value := self.js(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"still not true after {seconds} s: {expression}")
            time.sleep(0.05)
        return value

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code, number):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number,
                      text="\r" if key == "Enter" and kind == "keyDown" else "")

    def screen(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def complaints(self):
        """What the page's console and the network said that no good page makes them say."""
        found = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif event.get("method") == "Log.entryAdded" and params["entry"]["source"] != "network":
                found.append(params["entry"]["text"])
        return found

    def requested(self):
        """Addresses of everything that the page asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]
