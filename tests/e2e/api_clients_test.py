#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the client scripts beside the checkout (../shared/api/clients), which use the real SDKs, against `galley serve` on the embedded model.

Usage: api_clients_test.py BINARY VENV_DIR. The SDKs are installed into VENV_DIR once. Skipped (code 77) when the scripts
are not there or the packages cannot be installed.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENTS = ROOT.parent / "shared" / "api" / "clients"
PACKAGES = ["openai", "anthropic", "httpx", "pydantic"]
# Scripts of these say that they are not installed and pass; the packages are large, so they are taken where they come in time.
MORE_PACKAGES = ["langchain-openai", "litellm"]
# What nano has not: vision and embeddings. The scripts then check that both are refused politely.
LACKING = "images,embeddings"
KEY = "sk-test"
SKIP = 77


def python_with_sdks(folder):
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    def missing(packages):
        modules = ", ".join(package.replace("-", "_") for package in packages)
        return subprocess.run([python, "-c", "import " + modules], capture_output=True).returncode != 0

    def install(packages, seconds):
        try:
            return subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, timeout=seconds).returncode == 0
        except subprocess.TimeoutExpired:
            return False
    if missing(PACKAGES) and not install(PACKAGES, 600):
        return None
    for package in MORE_PACKAGES:
        if missing([package]):
            install([package], 300)
    return python


def main():
    binary, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if not CLIENTS.is_dir():
        print("skipped: ../shared/api/clients is absent")
        return SKIP
    python = python_with_sdks(folder)
    if python is None:
        print("skipped: the SDKs cannot be installed here")
        return SKIP
    # First every script against an open server, then what is about mistakes and keys against one that has a key.
    return run(binary, python, "run_all.py", LACKING + ",auth") or run(binary, python, "errors_httpx.py", LACKING, "--api-key", KEY)


def run(binary, python, script, lacking, *flags):
    server = subprocess.Popen([binary, "serve", "--backend", "cpu", "--port", "0", "--max-seq-len", "4096", "--max-seqs", "32", "--no-log-requests", *flags],
                              stderr=subprocess.PIPE, encoding="utf-8")
    try:
        base = next(m.group(1) for m in (re.search(r"listening on (http://\S+)", line) for line in server.stderr) if m)
        environment = {**os.environ, "API_BASE": base, "API_KEY": KEY, "API_SKIP": lacking, "API_TIMEOUT": "120", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([python, CLIENTS / script], env=environment).returncode
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
