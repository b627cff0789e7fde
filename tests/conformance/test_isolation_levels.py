"""The quick part of test_isolation.py with the kernels of three instruction sets.

`ATEN_CPU_CAPABILITY` selects torch's own kernels alone. MKL takes `MKL_ENABLE_INSTRUCTIONS` on
processors of its maker, and `MKL_CBWR` on any; oneDNN and OpenBLAS have their own.
"""

import os
import subprocess
import sys

import pytest
import torch

from tests.fresh import ROOT

CAPABILITY = torch.backends.cpu.get_cpu_capability().lower()
LEVELS = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OPENBLAS_CORETYPE": "Nehalem",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "OPENBLAS_CORETYPE": "SkylakeX",
    },
}  # fmt: skip
HERE = list(LEVELS)[: 1 + list(LEVELS).index(CAPABILITY)]
"""Those that this processor has, each with what the one before it lacks."""
CONTROL = """
import numpy as np
import torch

rows = torch.randn(63, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
whole = rows @ rows[0]
print(sum(bool((rows[:n] @ rows[0] != whole[:n]).any()) for n in range(1, 63)))
values = torch.sigmoid(rows).sum(), torch.linalg.eigh(rows.mT @ rows)[0].sum()
print(*[float(v).hex() for v in values], float(np.vecdot(rows, rows).sum()).hex())
"""
"""How many batches give a row's product, as it was once computed, other bits; and some numbers."""


def ran(level, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**environment, **LEVELS[level]}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_each_level_has_kernels_of_its_own_that_treat_rows_by_their_number():
    found = {level: ran(level, "-c", CONTROL).splitlines() for level in HERE}
    assert all(int(lines[0]) > 0 for lines in found.values())
    assert len({lines[1] for lines in found.values()}) == len(HERE)


@pytest.mark.slow
@pytest.mark.one_week_in(3)
@pytest.mark.parametrize("level", HERE)
def test_records_are_apart_with_the_kernels_of_each_level(level):
    ran(level, "-m", "pytest", "-q", "-x", "tests/conformance/test_isolation.py")
