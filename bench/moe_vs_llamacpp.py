#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""MXFP4 experts of one row, V4.1's shape: Galley against llama.cpp's mul_mat_id, as many bytes, in turn in one run.

llama.cpp's libraries come from its PyPI source package, built for this machine:
  pip download --no-deps --no-binary :all: llama-cpp-python; tar xf llama_cpp_python-*.tar.gz
  cmake -S llama_cpp_python-*/vendor/llama.cpp -B DIR -DBUILD_SHARED_LIBS=ON -DLLAMA_BUILD_{TESTS,TOOLS,SERVER}=OFF
  cmake --build DIR --target ggml-cpu
  bench/moe_vs_llamacpp.py --galley build/release/galley --libraries DIR/bin
Seven experts of 24 are multiplied at a time, other ones each time, so that no cache holds them; llama.cpp with its
weights as they are in a file and re-laid out as it does by itself when it loads them.
"""
import argparse
import ctypes
import os
import pathlib
import re
import statistics
import subprocess
import time

MXFP4, F32, I32 = 39, 0, 26  # ggml's numbers of the formats
BLOCK_BYTES, BLOCK_VALUES = 17, 32
DIM, INTER, HELD, CHOSEN = 5120, 2304, 24, 7


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(directory):
    base = ctypes.CDLL(str(directory / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(directory / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    for library, name, result, arguments in [
        (base, "ggml_init", pointer, [InitParams]),
        (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, i64, i64]),
        (base, "ggml_new_tensor_3d", pointer, [pointer, ctypes.c_int, i64, i64, i64]),
        (base, "ggml_mul_mat_id", pointer, [pointer, pointer, pointer, pointer]),
        (base, "ggml_mul", pointer, [pointer, pointer, pointer]),
        (base, "ggml_new_graph", pointer, [pointer]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (base, "ggml_backend_alloc_ctx_tensors_from_buft", pointer, [pointer, pointer]),
        (base, "ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
        (base, "ggml_backend_cpu_buffer_type", pointer, []),
        (base, "ggml_backend_tensor_set", None, [pointer, pointer, ctypes.c_size_t, ctypes.c_size_t]),
        (base, "ggml_backend_graph_compute", ctypes.c_int, [pointer, pointer]),
        (cpu, "ggml_backend_cpu_init", pointer, []),
        (cpu, "ggml_backend_cpu_set_n_threads", None, [pointer, ctypes.c_int]),
        (cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", pointer, []),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return base, cpu


class LlamaExperts:
    """Gate, up and down products of CHOSEN experts, held in a buffer of that type."""

    def __init__(self, base, cpu, buffer_type, threads):
        self.base = base
        self.backend = cpu.ggml_backend_cpu_init()
        cpu.ggml_backend_cpu_set_n_threads(self.backend, threads)
        held = base.ggml_init(InitParams(1 << 20, None, True))
        gate, up = (base.ggml_new_tensor_3d(held, MXFP4, DIM, INTER, HELD) for _ in range(2))
        down = base.ggml_new_tensor_3d(held, MXFP4, INTER, DIM, HELD)
        if not base.ggml_backend_alloc_ctx_tensors_from_buft(held, buffer_type):
            raise SystemExit("llama.cpp could not allocate the experts")
        size = HELD * DIM * INTER // BLOCK_VALUES * BLOCK_BYTES
        # Any codes, scales near one.
        block = bytes((120 + i % 8) if j == 0 else (i * 37 + j * 101) & 255 for i in range(4096) for j in range(17))
        data = (block * (size // len(block) + 1))[:size]
        for tensor in (gate, up, down):
            base.ggml_backend_tensor_set(tensor, data, 0, size)
        context = base.ggml_init(InitParams(4 << 20, None, True))
        x = base.ggml_new_tensor_3d(context, F32, DIM, 1, 1)
        self.ids = base.ggml_new_tensor_2d(context, I32, CHOSEN, 1)
        # The product of gate and up stands for the activation, which costs nothing beside them.
        hidden = base.ggml_mul(context, base.ggml_mul_mat_id(context, gate, x, self.ids),
                               base.ggml_mul_mat_id(context, up, x, self.ids))
        self.graph = base.ggml_new_graph(context)
        base.ggml_build_forward_expand(self.graph, base.ggml_mul_mat_id(context, down, hidden, self.ids))
        base.ggml_backend_alloc_ctx_tensors(context, self.backend)
        values = (ctypes.c_float * DIM)(*[((i * 7919) % 1000) / 500 - 1 for i in range(DIM)])
        base.ggml_backend_tensor_set(x, values, 0, DIM * 4)
        self.bytes = CHOSEN * 3 * DIM * INTER // BLOCK_VALUES * BLOCK_BYTES
        self.runs = 0

    def rate(self):
        """Bytes a second, median of many."""
        times = []
        for _ in range(24):
            ids = (ctypes.c_int32 * CHOSEN)(*[(self.runs * CHOSEN + i) % HELD for i in range(CHOSEN)])
            self.runs += 1
            self.base.ggml_backend_tensor_set(self.ids, ids, 0, CHOSEN * 4)
            begin = time.perf_counter()
            if self.base.ggml_backend_graph_compute(self.backend, self.graph) != 0:
                raise SystemExit("llama.cpp could not compute the products")
            times.append(time.perf_counter() - begin)
        return self.bytes / statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--galley", required=True)
    parser.add_argument("--libraries", required=True, type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    threads = options.threads or len(os.sched_getaffinity(0))
    base, cpu = load(options.libraries)
    plain = LlamaExperts(base, cpu, base.ggml_backend_cpu_buffer_type(), threads)
    repacked = LlamaExperts(base, cpu, cpu._Z35ggml_backend_cpu_repack_buffer_typev(), threads)
    command = [options.galley, "bench", "layers", "--shape", "v41", "--only", "moe", "--threads", str(threads)]
    rows = []
    print("GB/s of a round: memory read, Galley, llama.cpp, llama.cpp re-laid out")
    for _ in range(options.rounds):
        before = plain.rate() / 1e9, repacked.rate() / 1e9
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        after = plain.rate() / 1e9, repacked.rate() / 1e9
        read = float(re.search(r"memory read ([\d.]+) GB/s", report).group(1))
        ours = float(re.search(r"^experts, MXFP4 +[\d.]+ +[\d.]+ +([\d.]+)", report, re.M).group(1))
        rows.append((read, ours, (before[0] + after[0]) / 2, (before[1] + after[1]) / 2))
        print("  ".join(f"{value:6.1f}" for value in rows[-1]))
    for name, share in [
        ("Galley / memory read", lambda r: r[1] / r[0]),
        ("Galley / llama.cpp", lambda r: r[1] / r[2]),
        ("Galley / llama.cpp re-laid out", lambda r: r[1] / r[3]),
    ]:
        shares = sorted(share(row) for row in rows)
        print(f"{name}: {statistics.median(shares):.2f} ({shares[0]:.2f} to {shares[-1]:.2f})")


if __name__ == "__main__":
    main()
