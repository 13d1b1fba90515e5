"""Whether this machine's processors are cores of their own, and how long they stay so.

    hatch run python benchmarks/cores.py [--windows 1000]

Two threads, each bound to a processor, run a loop of fused multiply-adds on registers: no memory, no calls, no pool. In
each window the first runs alone, then both run together, and the best of eight counts, over the best that was seen.
1.0 together means two cores; 2.0 means that the two share one core's arithmetic, with each other or with somebody else.
Three pauses between windows: none, 5 ms, 50 ms. Needs a C compiler, Linux and x86-64 with FMA.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import numpy as np

SLOW = 1.4
"""From this multiple of the best on a window counts as slow: the two kinds lie at 1.0 and 1.8 to 2.0."""

SOURCE = r"""
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
static void bind_to(int c) { cpu_set_t s; CPU_ZERO(&s); CPU_SET(c, &s); sched_setaffinity(0, sizeof s, &s); }

static volatile float sink;
static double work(long n) {
  double began = now();
  __m256 a[10], x = _mm256_set1_ps(1e-9f), y = _mm256_set1_ps(0.999f);
  for (int i = 0; i < 10; i++) a[i] = _mm256_set1_ps(i);
  for (long k = 0; k < n; k++)
    for (int i = 0; i < 10; i++) a[i] = _mm256_fmadd_ps(a[i], y, x);
  float s = 0;
  for (int i = 0; i < 10; i++) s += a[i][0];
  sink = s;
  return now() - began;
}

enum { ROUNDS = 8, N = 20000 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static int window = 0;
static atomic_int ready = 0, go = 0, done = 0;
static double other[ROUNDS];

static void *second(void *arg) {  // asleep between windows, so that the first is alone
  bind_to(1);
  for (int seen = 0;;) {
    pthread_mutex_lock(&lock);
    while (window == seen) pthread_cond_wait(&woken, &lock);
    seen = window;
    pthread_mutex_unlock(&lock);
    for (int r = 0; r < ROUNDS; r++) {
      int turn = seen * ROUNDS + r + 1;
      atomic_fetch_add(&ready, 1);
      while (atomic_load(&go) != turn) {}
      other[r] = work(N);
      atomic_store(&done, turn);
    }
  }
  return arg;
}

int main(int argc, char **argv) {
  int windows = atoi(argv[1]), pause_us = atoi(argv[2]);
  pthread_t thread;
  bind_to(0);
  pthread_create(&thread, 0, second, 0);
  work(100L * N);
  for (int w = 1; w <= windows; w++) {
    if (pause_us) usleep(pause_us);
    double alone = 1e9, mine = 1e9, theirs = 1e9;
    for (int i = 0; i < 3; i++) { double t = work(N); if (t < alone) alone = t; }
    pthread_mutex_lock(&lock);
    window = w;
    pthread_cond_signal(&woken);
    pthread_mutex_unlock(&lock);
    for (int r = 0; r < ROUNDS; r++) {
      while (atomic_load(&ready) != (w - 1) * ROUNDS + r + 1) {}
      int turn = w * ROUNDS + r + 1;
      atomic_store(&go, turn);
      double t = work(N);
      while (atomic_load(&done) != turn) {}
      if (t < mine) mine = t;
      if (other[r] < theirs) theirs = other[r];
    }
    printf("%.3f %.3f %.3f\n", alone * 1e6, mine * 1e6, theirs * 1e6);
  }
  return 0;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1000, help="of each pause; a fifth of them at 50 ms")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tt-cores-") as folder:
        source, program = Path(folder, "cores.c"), Path(folder, "cores")
        source.write_text(SOURCE)
        flags = ["-O2", "-mavx2", "-mfma", "-pthread"]
        built = subprocess.run(["cc", *flags, str(source), "-o", str(program)], capture_output=True, text=True)
        if built.returncode:
            sys.exit(f"the loop cannot be compiled here: {built.stderr.strip()[-500:]}")
        print("pause   alone slow  together slow  of those: alone was fast  windows in a row, slow and fast together")
        for pause_us in (0, 5_000, 50_000):
            windows = options.windows // (5 if pause_us == 50_000 else 1)
            done = subprocess.run([program, str(windows), str(pause_us)], check=True, capture_output=True, text=True)
            print(_row(pause_us, np.array([line.split() for line in done.stdout.splitlines()], dtype=float)))


def _row(pause_us: int, us: np.ndarray) -> str:
    """A line about the windows of one pause; `us` `(windows, 3)`: alone, and together the first's and the second's."""
    slow = us / us[:, 0].min() > SLOW
    alone, together = slow[:, 0], slow[:, 1:].any(axis=1)
    rows = {kind: [len(list(g)) for k, g in groupby(together) if k == kind] or [0] for kind in (True, False)}
    shared = (together & ~alone).sum() / max(1, together.sum())
    dwell = f"{np.mean(rows[True]):.0f} and {np.mean(rows[False]):.0f}"
    return f"{pause_us / 1e3:4.0f} ms {alone.mean():12.0%} {together.mean():14.0%} {shared:25.0%}  {dwell}"


if __name__ == "__main__":
    main()
