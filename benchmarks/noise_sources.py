"""Speed of the noise source over torch.randn float64, side by side in one process.

python benchmarks/noise_sources.py [--json]

Every ratio is median(time of torch.randn) / median(time of the source) for the same number of
normals, rounds interleaved so that both meet the same machine; higher is better. One thread.
"""

import argparse
import json
import statistics

import torch

from benchmarks.common.stopwatch import Work, cpu_seconds
from manifed.privacy.noise import NoiseSource, Stream

COUNT = 1_000_000
COHORT, SHAPE = 1274, (785,)
FEW = 10
ROUNDS = 41


def interleaved(actions: dict[str, Work], repeats: int) -> dict[str, float]:
    """Median seconds of every action, one of each in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(ROUNDS):
        for name, action in actions.items():
            seconds[name].append(cpu_seconds(action, repeats))
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure() -> dict[str, float]:
    """All ratios, and the microseconds of a small draw."""
    torch.set_num_threads(1)
    seeded, system = NoiseSource.from_seed(0), NoiseSource.from_os()
    summed = NoiseSource.from_os(precision="summed")
    generator = torch.Generator().manual_seed(0)
    rounds = iter(range(1 << 24))

    def draw(source: NoiseSource, shape: tuple[int, ...], partition: int | range = 0) -> object:
        return source.normals(
            shape, stream=Stream.GRADIENT_NOISE, partition=partition, server_round=next(rounds)
        )

    def randn(*shape: int) -> object:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    large = interleaved(
        {
            "randn": lambda: randn(COUNT),
            "system": lambda: draw(system, (COUNT,)),
            "seeded": lambda: draw(seeded, (COUNT,)),
            "summed": lambda: draw(summed, (COUNT,)),
            "uniforms": lambda: seeded.uniforms(
                (COUNT,), stream=Stream.COHORT, partition=0, server_round=next(rounds)
            ),
            "randn cohort": lambda: randn(COHORT, *SHAPE),
            "cohort": lambda: draw(seeded, SHAPE, range(COHORT)),
        },
        repeats=1,
    )
    small = interleaved({"few": lambda: draw(seeded, (FEW,))}, repeats=500)
    return {
        "system_over_torch_randn": large["randn"] / large["system"],
        "seeded_over_torch_randn": large["randn"] / large["seeded"],
        "cohort_over_torch_randn": large["randn cohort"] / large["cohort"],
        "summed_over_torch_randn": large["randn"] / large["summed"],
        "uniforms_over_torch_randn": large["randn"] / large["uniforms"],
        "million_normals_per_second": COUNT / large["seeded"] / 1e6,
        "microseconds_of_ten_normals": 1e6 * small["few"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    wants_json = parser.parse_args().json
    found = measure()
    if wants_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:30s} {value:8.2f}")


if __name__ == "__main__":
    main()
