#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MXFP4 products of one row: Galley's experts against llama.cpp's matrix product, the same bytes, one run.

llama.cpp comes as its own shared libraries, for example those of the PyPI package llama-cpp-py-sync:
  python3 -m venv DIR && DIR/bin/pip install --no-deps llama-cpp-py-sync
  bench/moe_vs_llamacpp.py --galley build/release/galley --libraries DIR/lib/python3*/site-packages/llama_cpp_py_sync
Both read more than caches hold. --processor-time measures processor time instead of wall time, for a machine that
others use too; then take --threads 1.
"""
import argparse
import ctypes
import pathlib
import re
import subprocess
import time

MXFP4, F32 = 39, 0  # ggml's numbers of the two formats
BLOCK_BYTES, BLOCK_VALUES = 17, 32


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(directory):
    flags = ctypes.RTLD_GLOBAL
    base = ctypes.CDLL(str(directory / "libggml-base.so.0"), mode=flags)
    cpu = ctypes.CDLL(str(directory / "libggml-cpu.so.0"), mode=flags)
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in [
        ("ggml_init", pointer, [InitParams]), ("ggml_free", None, [pointer]),
        ("ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, i64, i64]),
        ("ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        ("ggml_new_graph", pointer, [pointer]), ("ggml_get_data", pointer, [pointer]),
        ("ggml_build_forward_expand", None, [pointer, pointer]),
    ]:
        function = getattr(base, name)
        function.restype, function.argtypes = result, arguments
    cpu.ggml_graph_compute_with_ctx.restype = ctypes.c_int
    cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, ctypes.c_int]
    return base, cpu


def llamacpp_rate(directory, threads, clock):
    """Bytes a second of one product with a matrix of 400 MB."""
    base, cpu = load(directory)
    columns, rows = 5120, 147456
    size = rows * columns // BLOCK_VALUES * BLOCK_BYTES
    context = base.ggml_init(InitParams(size + (64 << 20), None, False))
    weight = base.ggml_new_tensor_2d(context, MXFP4, columns, rows)
    x = base.ggml_new_tensor_2d(context, F32, columns, 1)
    # Random codes, scales near one.
    pattern = bytes((120 + i % 8) if j == 0 else (i * 37 + j * 101) & 255 for i in range(160 * 64) for j in range(17))
    data = base.ggml_get_data(weight)
    for offset in range(0, size, len(pattern)):
        ctypes.memmove(data + offset, pattern, min(len(pattern), size - offset))
    values = (ctypes.c_float * columns)(*[((i * 7919) % 1000) / 500 - 1 for i in range(columns)])
    ctypes.memmove(base.ggml_get_data(x), values, columns * 4)
    product = base.ggml_mul_mat(context, weight, x)
    graph = base.ggml_new_graph(context)
    base.ggml_build_forward_expand(graph, product)
    best = float("inf")
    for _ in range(9):
        begin = clock()
        if cpu.ggml_graph_compute_with_ctx(context, graph, threads) != 0:
            raise SystemExit("llama.cpp could not compute the product")
        best = min(best, clock() - begin)
    base.ggml_free(context)
    return size / best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--galley", required=True)
    parser.add_argument("--libraries", required=True, type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    import os
    threads = options.threads or len(os.sched_getaffinity(0))
    command = [options.galley, "bench", "layers", "--shape", "v41", "--threads", str(threads)]
    if options.processor_time:
        command.append("--processor-time")
    clock = (lambda: time.process_time() / threads) if options.processor_time else time.perf_counter
    theirs = llamacpp_rate(options.libraries, threads, clock)
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(report)
    read = float(re.search(r"memory read ([\d.]+) GB/s", report).group(1))
    ours = float(re.search(r"^experts +[\d.]+ +[\d.]+ +([\d.]+)", report, re.M).group(1))
    print(f"llama.cpp MXFP4 product, one row: {theirs / 1e9:.1f} GB/s, {100 * theirs / 1e9 / read:.0f}% of read")
    print(f"Galley experts, one row: {ours:.1f} GB/s, {ours * 1e9 / theirs:.2f} times as many")


if __name__ == "__main__":
    main()
